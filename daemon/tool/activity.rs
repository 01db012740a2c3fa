//! Counts the running and finished calls of a workspace.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

#[derive(Debug, Default)]
pub(crate) struct Activity {
    active: AtomicUsize,
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

    pub(crate) fn finished_calls(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
        self.0.finished.fetch_add(1, Ordering::Relaxed);
    }
}
