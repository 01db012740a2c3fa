//! Reports the ends of the fleet jobs that this daemon had when it last stopped.
//!
//! On NATS, their messages are delivered again, but to any daemon. So this one stores their ends by
//! itself. In PostgreSQL, their queues resume the claims, and store the ends.

use std::sync::{Arc, atomic::Ordering};

use super::{
    backoff::retry,
    fleet_session::FleetSession,
    local_job::{StoredFleetJob, mark_settled},
    runner::FleetRunner,
    work_source::JobEnd,
};
use crate::daemon::{
    pipeline::jobs::{JobHandle, JobSnapshot, LiveOrEndedJob},
    task,
};

/// Settles the jobs of earlier starts.
#[derive(Debug)]
pub(super) struct FleetRecovery {
    pub(super) session: FleetSession,
    pub(super) runner: Arc<FleetRunner>,
}

impl FleetRecovery {
    /// Settles all jobs that have ended. Those that run again, or for the first time, are settled
    /// when they end.
    pub(super) async fn run(self: Arc<Self>, stored: Vec<StoredFleetJob>) {
        let FleetRunner { pipeline, tasks, give_up, .. } = &*self.runner;
        for job in stored {
            match pipeline.jobs.find(&job.workspace, &job.local_id).await {
                Ok(LiveOrEndedJob::Ended(snapshot)) => {
                    pipeline.held_jobs.release(&job.local_id);
                    // One whose end cannot be stored must not delay the others. Each had a place.
                    let recovery = Arc::clone(&self);
                    let settled = async move { recovery.settle(&job, *snapshot).await };
                    let settled = tasks.track_future(settled);
                    task::spawn_tracked("ended fleet job of the last start", settled);
                }
                Ok(LiveOrEndedJob::Live(handle)) => {
                    let recovery = Arc::clone(&self);
                    let followed = async move { recovery.follow(job, handle).await };
                    let followed = tasks.track_future(followed);
                    task::spawn_tracked("fleet job of the last start", followed);
                }
                // Removed in the meantime: it had ended long ago.
                Err(error) => tracing::debug!(%error, job = job.id, "a fleet job is gone"),
            }
            if give_up.is_cancelled() {
                self.note_unsettled();
                return;
            }
        }
    }

    /// Waits for the end of a job, and settles it. One that the fleet has given up is cancelled before
    /// it begins.
    async fn follow(&self, job: StoredFleetJob, handle: Arc<JobHandle>) {
        let FleetRunner { pipeline, running, .. } = &*self.runner;
        let _running = running.add(&job.id, Arc::clone(&handle));
        if !self.has_claim(&job).await {
            tracing::warn!(
                job = job.id,
                "the fleet has given up a job of the last start: cancelling it"
            );
            pipeline.jobs.cancel(&handle).await;
            pipeline.held_jobs.release(&job.local_id);
            mark_settled(pipeline, &job.id, &job.claim_id).await;
            return;
        }
        pipeline.held_jobs.release(&job.local_id);
        tokio::select! {
            biased;
            snapshot = handle.wait_for_end() => self.settle(&job, snapshot).await,
            () = pipeline.shutdown.terminate_token().cancelled_owned() => self.note_unsettled(),
        }
    }

    async fn has_claim(&self, job: &StoredFleetJob) -> bool {
        let look_up = || self.session.has_claim(&job.id, &job.claim_id);
        let found = retry(&self.runner.give_up, &job.id, "look a fleet job up", look_up).await;
        found.unwrap_or(true)
    }

    async fn settle(&self, job: &StoredFleetJob, snapshot: JobSnapshot) {
        let FleetRunner { pipeline, give_up, .. } = &*self.runner;
        match JobEnd::of_snapshot(pipeline, snapshot, false) {
            Ok(end) => {
                let StoredFleetJob { id, claim_id, .. } = job;
                if self.session.settle(id, claim_id, &end, give_up).await {
                    mark_settled(pipeline, id, claim_id).await;
                } else {
                    self.note_unsettled();
                }
            }
            Err(error) => {
                tracing::error!(%error, job = job.id, "the result of a job is unreadable")
            }
        }
    }

    /// Notes that the next start of this daemon settles a job.
    fn note_unsettled(&self) {
        self.runner.has_unsettled.store(true, Ordering::Relaxed);
    }
}
