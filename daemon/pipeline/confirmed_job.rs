//! Runs a job once it may begin: one of the fleet may be held until the fleet has confirmed it.

use std::sync::Arc;

use super::{Pipeline, job_runner::JobRunEnd, jobs::JobHandle};
use crate::daemon::store::jobs::JobState;

impl Pipeline {
    /// Runs a job, after a wait if it is held.
    pub(super) async fn run_confirmed_job(self: &Arc<Self>, handle: &JobHandle) -> JobRunEnd {
        if let Some(held) = self.held_jobs.find(&handle.snapshot().job.id) {
            tokio::select! {
                biased;
                // Also if the hold has ended by now.
                () = handle.cancel_token().cancelled() => {
                    return JobRunEnd::Done(JobState::Cancelled, None);
                }
                () = held.cancelled() => {}
                () = self.shutdown.draining_token().cancelled_owned() => {
                    return JobRunEnd::NotStarted;
                }
            }
        }
        self.run_job(handle).await
    }
}
