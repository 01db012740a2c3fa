//! Counts the running and finished calls of a workspace.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Activity {
    active: AtomicUsize,
    /// Notified when the last running call ends.
    idle: Notify,
    finished: AtomicU64,
}

/// A running call. Counts as finished when dropped.
#[derive(Debug)]
pub(crate) struct ActiveCall(Arc<Activity>);

impl Activity {
    /// Counts a call as running.
    pub(crate) fn begin(self: &Arc<Self>) -> ActiveCall {
        self.active.fetch_add(1, Ordering::Relaxed);
        ActiveCall(Arc::clone(self))
    }

    pub(crate) fn active_calls(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Waits until no call runs.
    pub(crate) async fn wait_until_idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.active_calls() == 0 {
                return;
            }
            idle.await;
        }
    }

    pub(crate) fn finished_calls(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        self.0.finished.fetch_add(1, Ordering::Relaxed);
        if self.0.active.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
