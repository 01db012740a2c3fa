//! Deadlines of calls, enforced by the client.
//!
//! tonic sends `grpc-timeout` and enforces it, but only until the response headers arrive, and it
//! reports CANCELLED. A stream would continue. This module enforces the same deadline until the
//! last message and reports DEADLINE_EXCEEDED.

use std::{future::Future, time::Duration};

use tokio::time::Instant;
use tonic::Status;

use super::error::CallError;

/// Point in time at which a call fails with DEADLINE_EXCEEDED.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallDeadline {
    limit: Option<(Instant, Duration)>,
}

impl CallDeadline {
    /// Returns a deadline `time` from now. Without `time` there is no deadline.
    pub(super) fn after(time: Option<Duration>) -> Self {
        Self { limit: time.and_then(|time| Some((Instant::now().checked_add(time)?, time))) }
    }

    /// Awaits one step of the call, at most until the deadline.
    pub(super) async fn enforce<T>(
        self,
        part: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, CallError> {
        let Some((at, time)) = self.limit else {
            return part.await.map_err(CallError::from);
        };

        tokio::select! {
            // The response first: a step that completed in time counts, even if it was not polled
            // since.
            biased;
            result = part => result.map_err(|status| {
                let error = CallError::from(status);
                // tonic's own timer fired, or the daemon's timer was faster and reset the stream.
                if error.code == tonic::Code::Cancelled && (Instant::now() >= at || error.message == TONIC_TIMEOUT_MESSAGE) {
                    return CallError::deadline_exceeded(time);
                }
                error
            }),
            () = tokio::time::sleep_until(at) => Err(CallError::deadline_exceeded(time)),
        }
    }
}

/// Message of tonic, as a server and as a client, when a deadline passed.
const TONIC_TIMEOUT_MESSAGE: &str = "Timeout expired";

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn result_in_time_is_returned() {
        let deadline = CallDeadline::after(Some(Duration::from_secs(60)));
        assert_eq!(deadline.enforce(ready(Ok(7))).await.unwrap(), 7);
        assert_eq!(CallDeadline::after(None).enforce(ready(Ok(7))).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn missed_deadline_is_deadline_exceeded() {
        let deadline = CallDeadline::after(Some(Duration::from_millis(1)));
        let error = deadline.enforce::<()>(pending()).await.unwrap_err();
        assert_eq!(error.code, Code::DeadlineExceeded);
        assert_eq!(error.reason.as_deref(), Some("TIMEOUT"));
    }

    #[tokio::test]
    async fn tonic_timer_is_deadline_exceeded() {
        let deadline = CallDeadline::after(Some(Duration::from_secs(60)));
        let expired = ready(Err::<(), _>(Status::cancelled(TONIC_TIMEOUT_MESSAGE)));
        assert_eq!(deadline.enforce(expired).await.unwrap_err().code, Code::DeadlineExceeded);
        let cancelled = ready(Err::<(), _>(Status::cancelled("by the daemon")));
        assert_eq!(deadline.enforce(cancelled).await.unwrap_err().code, Code::Cancelled);
    }
}
