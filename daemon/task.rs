//! The one place where tasks are started: each has a name, keeps the span it was started in, and is
//! waited for when the daemon drains.

use std::{future::Future, sync::OnceLock, time::Instant};

use tokio::task::JoinHandle;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};
use tracing::Instrument as _;

static TRACKER: OnceLock<TaskTracker> = OnceLock::new();

/// Starts a task.
pub(crate) fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let span = tracing::Span::current();
    let future = async move {
        tracing::trace!(task = name, "task started");
        future.await
    };
    #[expect(clippy::disallowed_methods, reason = "this is the place")]
    tokio::spawn(future.instrument(span))
}

/// Starts a task that the daemon waits for before it exits: one that holds somebody's work.
pub(crate) fn spawn_tracked<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    spawn(name, tracker().track_future(future))
}

/// Makes the daemon wait, before it exits, until the token is dropped.
pub(crate) fn delay_shutdown() -> TaskTrackerToken {
    tracker().token()
}

/// Runs a function that blocks, on a thread kept for such.
pub(crate) fn spawn_blocking<T: Send + 'static>(
    function: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let span = tracing::Span::current();
    #[expect(clippy::disallowed_methods, reason = "this is the place")]
    tokio::task::spawn_blocking(move || span.in_scope(function))
}

/// Waits until `instant`; for ever where there is none.
pub(crate) async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits until no tracked task is left.
pub(crate) async fn wait_for_tracked() {
    tracker().close();
    tracker().wait().await;
}

fn tracker() -> &'static TaskTracker {
    TRACKER.get_or_init(TaskTracker::new)
}
