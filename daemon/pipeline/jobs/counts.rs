//! Numbers of jobs, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::daemon::store::jobs::JobState;

/// Jobs that have ended since the daemon started, by state.
#[derive(Debug, Default)]
pub(super) struct EndedJobCounts {
    succeeded: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
}

impl EndedJobCounts {
    /// Counts a job that has ended in `state`.
    pub(super) fn count(&self, state: JobState) {
        let count = match state {
            JobState::Succeeded => &self.succeeded,
            JobState::Failed => &self.failed,
            JobState::Cancelled => &self.cancelled,
            // The daemon that finds a lost job has not run it.
            JobState::Queued | JobState::Running | JobState::Lost => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts, with the names of the states.
    pub(super) fn by_state(&self) -> [(&'static str, u64); 3] {
        [("succeeded", &self.succeeded), ("failed", &self.failed), ("cancelled", &self.cancelled)]
            .map(|(state, count)| (state, count.load(Ordering::Relaxed)))
    }
}
