//! Deadlines of calls, kept by the client itself.
//!
//! tonic sends `grpc-timeout` and keeps it too, but reports it as CANCELLED, and only until the
//! headers of the answer have come: a stream would run on. So the same time is kept here, around
//! it, until the last message.

use std::{future::Future, time::Duration};

use tokio::time::Instant;
use tonic::Status;

use super::error::CallError;

/// When a call must be over.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallDeadline {
    limit: Option<(Instant, Duration)>,
}

impl CallDeadline {
    /// A deadline so long after now.
    pub(super) fn after(time: Option<Duration>) -> Self {
        Self { limit: time.and_then(|time| Some((Instant::now().checked_add(time)?, time))) }
    }

    /// Waits for a part of the call, but not beyond the deadline.
    pub(super) async fn enforce<T>(
        self,
        part: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, CallError> {
        let Some((at, time)) = self.limit else {
            return part.await.map_err(CallError::from);
        };
        tokio::select! {
            // First the answer: one that came in time counts, even when nobody looked until now.
            biased;
            result = part => result.map_err(|status| {
                let error = CallError::from(status);
                // tonic's own timer, or the reset of a daemon whose timer was faster than ours.
                if error.code == tonic::Code::Cancelled && (Instant::now() >= at || error.message == TONIC_TIMEOUT_MESSAGE) {
                    return CallError::deadline_exceeded(time);
                }
                error
            }),
            () = tokio::time::sleep_until(at) => Err(CallError::deadline_exceeded(time)),
        }
    }
}

/// What tonic says, as a server and as a client, when a deadline passed.
const TONIC_TIMEOUT_MESSAGE: &str = "Timeout expired";

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn what_comes_in_time_is_returned() {
        let deadline = CallDeadline::after(Some(Duration::from_secs(60)));
        assert_eq!(deadline.enforce(ready(Ok(7))).await.unwrap(), 7);
        assert_eq!(CallDeadline::after(None).enforce(ready(Ok(7))).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_deadline_that_passes_is_deadline_exceeded() {
        let deadline = CallDeadline::after(Some(Duration::from_millis(1)));
        let error = deadline.enforce::<()>(pending()).await.unwrap_err();
        assert_eq!(error.code, Code::DeadlineExceeded);
        assert_eq!(error.reason.as_deref(), Some("TIMEOUT"));
    }

    #[tokio::test]
    async fn tonics_own_timer_is_deadline_exceeded_too() {
        let deadline = CallDeadline::after(Some(Duration::from_secs(60)));
        let expired = ready(Err::<(), _>(Status::cancelled(TONIC_TIMEOUT_MESSAGE)));
        assert_eq!(deadline.enforce(expired).await.unwrap_err().code, Code::DeadlineExceeded);
        let cancelled = ready(Err::<(), _>(Status::cancelled("by the daemon")));
        assert_eq!(deadline.enforce(cancelled).await.unwrap_err().code, Code::Cancelled);
    }
}
