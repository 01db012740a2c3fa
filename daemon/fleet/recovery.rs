//! Reports the ends of the fleet jobs that this daemon had when it last stopped.
//!
//! On NATS, their messages are delivered again, but to any daemon. So this one stores their ends by
//! itself. In PostgreSQL, their queues resume the claims, and store the ends.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{
    backoff::retry,
    fleet_session::FleetSession,
    local_job::{StoredFleetJob, mark_settled},
    running::RunningFleetJobs,
    work_source::JobEnd,
};
use crate::daemon::{
    pipeline::{
        Pipeline,
        jobs::{JobHandle, JobSnapshot, LiveOrEndedJob},
    },
    task,
};

/// Settles the jobs of earlier starts.
#[derive(Debug)]
pub(super) struct FleetRecovery {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) session: FleetSession,
    pub(super) running: Arc<RunningFleetJobs>,
    /// Cancelled when no more attempts to reach the servers are made.
    pub(super) give_up: CancellationToken,
}

impl FleetRecovery {
    /// Settles all jobs that have ended. Those that run again, or for the first time, are settled
    /// when they end.
    pub(super) async fn run(self: Arc<Self>, stored: Vec<StoredFleetJob>) {
        for job in stored {
            match self.pipeline.jobs.find(&job.workspace, &job.local_id).await {
                Ok(LiveOrEndedJob::Ended(snapshot)) => {
                    self.pipeline.held_jobs.release(&job.local_id);
                    // One whose end cannot be stored must not delay the others. Each had a place.
                    let recovery = Arc::clone(&self);
                    task::spawn_tracked("ended fleet job of the last start", async move {
                        recovery.settle(&job, *snapshot).await;
                    });
                }
                Ok(LiveOrEndedJob::Live(handle)) => {
                    let recovery = Arc::clone(&self);
                    task::spawn_tracked("fleet job of the last start", async move {
                        recovery.follow(job, handle).await;
                    });
                }
                // Removed in the meantime: it had ended long ago.
                Err(error) => tracing::debug!(%error, job = job.id, "a fleet job is gone"),
            }
            if self.give_up.is_cancelled() {
                return;
            }
        }
    }

    /// Waits for the end of a job, and settles it. One that the fleet has given up is cancelled before
    /// it begins.
    async fn follow(&self, job: StoredFleetJob, handle: Arc<JobHandle>) {
        let _running = self.running.add(&job.id, Arc::clone(&handle));
        if !self.has_claim(&job).await {
            tracing::warn!(
                job = job.id,
                "the fleet has given up a job of the last start: cancelling it"
            );
            self.pipeline.jobs.cancel(&handle).await;
            self.pipeline.held_jobs.release(&job.local_id);
            mark_settled(&self.pipeline, &job.id, &job.claim_id).await;
            return;
        }
        self.pipeline.held_jobs.release(&job.local_id);
        tokio::select! {
            biased;
            snapshot = handle.wait_for_end() => self.settle(&job, snapshot).await,
            // Its next start settles it.
            () = self.pipeline.shutdown.terminate_token().cancelled_owned() => {}
        }
    }

    async fn has_claim(&self, job: &StoredFleetJob) -> bool {
        let look_up = || self.session.has_claim(&job.id, &job.claim_id);
        let found = retry(&self.give_up, &job.id, "look a fleet job up", look_up).await;
        found.unwrap_or(true)
    }

    async fn settle(&self, job: &StoredFleetJob, snapshot: JobSnapshot) {
        match JobEnd::of_snapshot(&self.pipeline, snapshot, false) {
            Ok(end) => {
                let StoredFleetJob { id, claim_id, .. } = job;
                if self.session.settle(id, claim_id, &end, &self.give_up).await {
                    mark_settled(&self.pipeline, id, claim_id).await;
                }
            }
            Err(error) => {
                tracing::error!(%error, job = job.id, "the result of a job is unreadable")
            }
        }
    }
}
