//! Stores the ends of jobs. A job has ended, and is published, once the database has its end.
//!
//! The database may be unable to store it (no space, or locked by another program). The daemon then
//! repeats the attempt, and makes a last one before it exits. Until then the job keeps its state.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use tokio::time::sleep;

use super::{JobRegistry, handle::JobHandle};
use crate::daemon::store::{
    database::DatabaseError,
    failure::STORE_RETRY_INTERVAL,
    jobs::{JobState, now_to_millis},
};

impl JobRegistry {
    /// Stores that a job that was about to run is queued again. Nothing of it was done.
    pub(in crate::daemon::pipeline) async fn record_requeue(&self, handle: &JobHandle) {
        if handle.snapshot().job.state != JobState::Running {
            return;
        }
        // Without this, the next daemon takes the job for lost.
        if self.store_with_retries(|| self.table.record_requeue(handle.id())).await {
            handle.update(|snapshot| {
                snapshot.job.state = JobState::Queued;
                snapshot.job.started = None;
            });
        }
    }

    /// Stores how a job ended, and publishes it. The job keeps its slot until then, which limits
    /// the ends that are not stored yet.
    pub(in crate::daemon::pipeline) async fn complete(
        self: &Arc<Self>,
        handle: &JobHandle,
        state: JobState,
        result: Option<Bytes>,
    ) {
        let entry =
            self.state().live_jobs.get(&handle.id()).map(|live_job| live_job.queue_entry.clone());
        self.record_end(handle, state, result).await;
        if let Some(entry) = entry {
            self.state().queues.remove(&entry);
        }
    }

    /// Cancels a job. A queued one ends here; a running one is signalled to end.
    pub(crate) async fn cancel(self: &Arc<Self>, handle: &JobHandle) {
        handle.cancel_token().cancel();
        let was_queued = {
            let mut state = self.state();
            let entry = state
                .live_jobs
                .get(&handle.id())
                .filter(|live_job| !live_job.has_task)
                .map(|live_job| live_job.queue_entry.clone());
            entry.is_some_and(|entry| state.queues.remove(&entry))
        };
        if was_queued {
            self.record_end(handle, JobState::Cancelled, None).await;
        }
    }

    /// Cancels all jobs of a workspace, and waits for their ends.
    pub(in crate::daemon::pipeline) async fn end_all_in(self: &Arc<Self>, workspace: &str) {
        // After the submissions in progress. Later ones see the deletion.
        drop(self.submit_lock.write().await);
        let handles: Vec<_> = {
            let state = self.state();
            let live = state.live_jobs.values().map(|live_job| &live_job.handle);
            live.filter(|handle| handle.is_in_workspace(workspace)).cloned().collect()
        };
        for handle in &handles {
            self.cancel(handle).await;
        }
        for handle in &handles {
            handle.wait_for_end().await;
        }
    }

    async fn record_end(
        self: &Arc<Self>,
        handle: &JobHandle,
        state: JobState,
        result: Option<Bytes>,
    ) {
        self.erase_params(handle.id()).await;
        let ended = now_to_millis();
        let attempt = || self.table.record_end(handle.id(), state, ended, result.clone());
        if !self.store_with_retries(attempt).await {
            return;
        }

        handle.update(|snapshot| {
            snapshot.job.state = state;
            snapshot.job.ended = Some(ended);
            snapshot.result = result;
        });

        self.state().live_jobs.remove(&handle.id());
        self.ended.count(state);
    }

    /// Repeats `attempt` until it succeeds, or until the daemon exits. Returns whether it
    /// succeeded.
    ///
    /// When the daemon starts to drain, it tries at once: clients that wait learn the end early.
    async fn store_with_retries<F>(&self, attempt: impl Fn() -> F) -> bool
    where
        F: Future<Output = Result<(), DatabaseError>>,
    {
        let draining = self.shutdown.draining_token();
        let terminate = self.shutdown.terminate_token();
        let kill = self.shutdown.kill_token();
        let mut is_first = true;

        loop {
            let was_draining = draining.is_cancelled();
            let is_last = terminate.is_cancelled() || kill.is_cancelled();
            let Err(error) = attempt().await else {
                return true;
            };
            if is_last {
                tracing::error!(%error, "cannot store the state of a job");
                return false;
            }
            if is_first {
                tracing::warn!(%error, "cannot store the state of a job yet");
            }

            is_first = false;
            tokio::select! {
                () = sleep(STORE_RETRY_INTERVAL) => {}
                () = draining.cancelled(), if !was_draining => {}
                () = terminate.cancelled() => {}
                () = kill.cancelled() => {}
            }
        }
    }
}
