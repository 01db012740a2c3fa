//! Spawning of tasks and blocking work. Each task has a name and inherits the current span. The
//! daemon waits for tracked tasks before it exits.

use std::{future::Future, num::NonZeroUsize, pin::Pin, sync::OnceLock, thread, time::Instant};

use tokio::task::JoinHandle;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};
use tracing::Instrument as _;

/// A boxed future that can move between threads.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

static TRACKER: OnceLock<TaskTracker> = OnceLock::new();

/// Spawns a task in the current span.
pub(crate) fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let span = tracing::Span::current();
    let future = async move {
        tracing::trace!(task = name, "task started");
        future.await
    };
    #[expect(clippy::disallowed_methods, reason = "only this module spawns: it adds the span")]
    tokio::spawn(future.instrument(span))
}

/// Spawns a task that the daemon waits for before it exits.
pub(crate) fn spawn_tracked<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    spawn(name, tracker().track_future(future))
}

/// Returns a token that delays the daemon's exit until it is dropped.
pub(crate) fn delay_shutdown() -> TaskTrackerToken {
    tracker().token()
}

/// Runs a blocking function on a thread of the blocking pool, in the current span.
pub(crate) fn spawn_blocking<T: Send + 'static>(
    function: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let span = tracing::Span::current();
    #[expect(clippy::disallowed_methods, reason = "only this module spawns: it adds the span")]
    tokio::task::spawn_blocking(move || span.in_scope(function))
}

/// Sleeps until `instant`; forever if there is none.
pub(crate) async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns how many threads can run at once: the CPUs that the process may use, within its cgroup's
/// quota. Read once, because the kernel's answer comes from several files.
pub(crate) fn available_cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, NonZeroUsize::get))
}

/// Waits until all tracked tasks have ended.
pub(crate) async fn wait_for_tracked() {
    tracker().close();
    tracker().wait().await;
}

fn tracker() -> &'static TaskTracker {
    TRACKER.get_or_init(TaskTracker::new)
}
