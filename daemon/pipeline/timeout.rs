//! The timeout of a call, for tools that do not enforce their own.

use std::time::{Duration, Instant};

use tokio::{
    task::JoinHandle,
    time::{timeout, timeout_at},
};
use tokio_util::sync::DropGuard;

use crate::daemon::{
    error::{Error, Reason},
    tool::Tool,
};

/// Time that a cancelled tool has after its timeout to report how it ended.
const TIMEOUT_RESULT_GRACE: Duration = Duration::from_millis(50);

/// The timeout of a started call.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallTimeout {
    expires_at: Instant,
    duration: Duration,
    /// Whether a repeat of the call could change something a second time.
    is_mutating: bool,
}

impl CallTimeout {
    /// Starts a timeout of `duration` now.
    pub(super) fn start(duration: Duration, is_mutating: bool) -> Self {
        Self { expires_at: Instant::now() + duration, duration, is_mutating }
    }

    fn error(self, tool: &str) -> Error {
        let check =
            if self.is_mutating { " Check what it changed before you repeat it." } else { "" };
        let text = format!(
            "{tool} timed out after {:?}.{check} Ask for less, or retry when the machine is less busy",
            self.duration
        );
        Error::new(Reason::Timeout, text)
    }
}

/// Waits for a tool's task, until its timeout unless the tool enforces its own.
///
/// `abandon_guard` cancels the tool when the timeout expires or the caller goes away.
pub(super) async fn await_with_timeout<T: Tool>(
    mut task: JoinHandle<Result<T::Response, Error>>,
    call_timeout: CallTimeout,
    abandon_guard: DropGuard,
) -> Result<T::Response, Error> {
    if T::ENFORCES_OWN_TIMEOUT {
        let result = task.await;
        drop(abandon_guard);
        return result.map_err(Error::internal)?;
    }

    if let Ok(result) = timeout_at(call_timeout.expires_at.into(), &mut task).await {
        drop(abandon_guard);
        return result.map_err(Error::internal)?;
    }

    // Most tools end at once when they are cancelled. Their result says whether they did anything.
    drop(abandon_guard);
    let ended = timeout(TIMEOUT_RESULT_GRACE, task).await;
    ended.map_err(|_| call_timeout.error(T::NAME))?.map_err(Error::internal)?
}

/// The error of a stream at the deadline of its caller.
pub(crate) fn stream_deadline_error(method: &str) -> Error {
    let text = format!(
        "the deadline of the call (grpc-timeout or connect-timeout-ms) ended the stream {method}: open it again, or set a longer deadline"
    );
    Error::new(Reason::Timeout, text)
}
