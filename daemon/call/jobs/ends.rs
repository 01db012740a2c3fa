//! What became of jobs, as it is kept: an end is one, and is told, once the log has it. A log that cannot take it
//! at the moment, for want of room or because another program holds it, is asked again until it can, and by a
//! daemon that ends for a last time. Until then the job is as it was, for all who look.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use tokio::time::sleep;

use super::{Jobs, RETRY, live::Live};
use crate::daemon::store::{
    database::DatabaseError,
    jobs::{JobState, now},
};

impl Jobs {
    /// Keeps that a job that was about to run waits again: nothing of it was done.
    pub(in crate::daemon::call) async fn take_back(&self, live: &Live) {
        if live.seen().job.state != JobState::Running {
            return;
        }
        // Otherwise the next daemon will take it for lost.
        if self.persist(|| self.log.requeue(live.id())).await {
            live.change(|seen| {
                seen.job.state = JobState::Queued;
                seen.job.started = None;
            });
        }
    }

    /// Keeps how a job that ran has ended, and tells those who wait. It has its place until then: what is not
    /// kept yet is no more than what can run.
    pub(in crate::daemon::call) async fn end(
        self: &Arc<Self>,
        live: &Live,
        state: JobState,
        result: Option<Bytes>,
    ) {
        let entry = self.state().known.get(&live.id()).map(|known| known.entry.clone());
        self.finish(live, state, result).await;
        if let Some(entry) = entry {
            self.state().queues.leave(&entry);
        }
    }

    /// Ends a job: one that waits, here; one that runs is told to end.
    pub(crate) async fn cancel(self: &Arc<Self>, live: &Live) {
        live.cancelled().cancel();
        let waits = {
            let mut state = self.state();
            let known = state.known.get(&live.id());
            let entry = known.filter(|known| !known.has_task);
            let entry = entry.map(|known| known.entry.clone());
            entry.is_some_and(|entry| state.queues.leave(&entry))
        };
        if waits {
            self.finish(live, JobState::Cancelled, None).await;
        }
    }

    async fn finish(self: &Arc<Self>, live: &Live, state: JobState, result: Option<Bytes>) {
        self.erase(live.id()).await;
        let ended = now();
        let attempt = || self.log.end(live.id(), state, ended, result.clone());
        if !self.persist(attempt).await {
            return;
        }
        live.change(|seen| {
            seen.job.state = state;
            seen.job.ended = Some(ended);
            seen.result = result;
        });
        self.state().known.remove(&live.id());
    }

    /// Has the log take something, as soon as it can. Answers whether it has, when the daemon ends: as that
    /// begins it is tried at once, so that who waits is told, and no time is lost.
    async fn persist<F>(&self, attempt: impl Fn() -> F) -> bool
    where
        F: Future<Output = Result<(), DatabaseError>>,
    {
        let begun = self.drain.begun_token();
        let (end, kill) = (self.drain.end_token(), self.drain.kill_token());
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
                () = sleep(RETRY) => {}
                () = begun.cancelled(), if !was_draining => {}
                () = end.cancelled() => {}
                () = kill.cancelled() => {}
            }
        }
    }
}
