//! What became of jobs, as it is kept: an end is one, and is told, once the log has it. A log that cannot take it
//! at the moment, for want of room or because another program holds it, is asked again until it can, and by a
//! daemon that ends for a last time. Until then the job is as it was, for all who look.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use tokio::time::sleep;

use super::{JobRegistry, STORE_RETRY_INTERVAL, handle::JobHandle};
use crate::daemon::store::{
    database::DatabaseError,
    jobs::{JobState, now_to_millis},
};

impl JobRegistry {
    /// Keeps that a job that was about to run waits again: nothing of it was done.
    pub(in crate::daemon::pipeline) async fn record_requeue(&self, handle: &JobHandle) {
        if handle.snapshot().job.state != JobState::Running {
            return;
        }
        // Otherwise the next daemon will take it for lost.
        if self.store_with_retries(|| self.log.record_requeue(handle.id())).await {
            handle.update(|seen| {
                seen.job.state = JobState::Queued;
                seen.job.started = None;
            });
        }
    }

    /// Keeps how a job that ran has ended, and tells those who wait. It has its place until then: what is not
    /// kept yet is no more than what can run.
    pub(in crate::daemon::pipeline) async fn complete(
        self: &Arc<Self>,
        handle: &JobHandle,
        state: JobState,
        result: Option<Bytes>,
    ) {
        let entry = self.state().live_jobs.get(&handle.id()).map(|known| known.queue_entry.clone());
        self.record_end(handle, state, result).await;
        if let Some(entry) = entry {
            self.state().queues.remove(&entry);
        }
    }

    /// Ends a job: one that waits, here; one that runs is told to end.
    pub(crate) async fn cancel(self: &Arc<Self>, handle: &JobHandle) {
        handle.cancel_token().cancel();
        let waits = {
            let mut state = self.state();
            let known = state.live_jobs.get(&handle.id());
            let entry = known.filter(|known| !known.has_task);
            let entry = entry.map(|known| known.queue_entry.clone());
            entry.is_some_and(|entry| state.queues.remove(&entry))
        };
        if waits {
            self.record_end(handle, JobState::Cancelled, None).await;
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
        let attempt = || self.log.record_end(handle.id(), state, ended, result.clone());
        if !self.store_with_retries(attempt).await {
            return;
        }
        handle.update(|seen| {
            seen.job.state = state;
            seen.job.ended = Some(ended);
            seen.result = result;
        });
        self.state().live_jobs.remove(&handle.id());
    }

    /// Has the log take something, as soon as it can. Answers whether it has, when the daemon ends: as that
    /// begins it is tried at once, so that who waits is told, and no time is lost.
    async fn store_with_retries<F>(&self, attempt: impl Fn() -> F) -> bool
    where
        F: Future<Output = Result<(), DatabaseError>>,
    {
        let begun = self.shutdown.draining_token();
        let (end, kill) = (self.shutdown.terminate_token(), self.shutdown.kill_token());
        let mut is_first = true;
        loop {
            let was_draining = begun.is_cancelled();
            let is_last = end.is_cancelled() || kill.is_cancelled();
            let Err(error) = attempt().await else {
                return true;
            };
            if is_last {
                tracing::error!(%error, "what became of a job could not be kept");
                return false;
            }
            if is_first {
                tracing::warn!(%error, "what became of a job cannot be kept yet");
            }
            is_first = false;
            tokio::select! {
                () = sleep(STORE_RETRY_INTERVAL) => {}
                () = begun.cancelled(), if !was_draining => {}
                () = end.cancelled() => {}
                () = kill.cancelled() => {}
            }
        }
    }
}
