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

/// Waits for a tool's task, until `deadline` unless the tool enforces its own timeout.
///
/// `abandon_guard` cancels the tool when the timeout expires or the caller goes away.
pub(super) async fn await_with_timeout<T: Tool>(
    mut task: JoinHandle<Result<T::Response, Error>>,
    deadline: Instant,
    abandon_guard: DropGuard,
) -> Result<T::Response, Error> {
    if T::ENFORCES_OWN_TIMEOUT {
        let result = task.await;
        drop(abandon_guard);
        return result.map_err(Error::internal)?;
    }

    if let Ok(result) = timeout_at(deadline.into(), &mut task).await {
        drop(abandon_guard);
        return result.map_err(Error::internal)?;
    }

    // Most tools end at once when they are cancelled. Their result says whether they did anything.
    drop(abandon_guard);
    let ended = timeout(TIMEOUT_RESULT_GRACE, task).await;
    ended.map_err(|_| timeout_error(T::NAME))?.map_err(Error::internal)?
}

/// The error of a call that ran longer than its timeout.
pub(crate) fn timeout_error(tool: &str) -> Error {
    let text = format!(
        "{tool} timed out. If it changes anything, check what it changed before you repeat it. Ask for less, or retry when the machine is less busy"
    );
    Error::new(Reason::Timeout, text)
}
