//! A row of the queue that this daemon has claimed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio_postgres::types::ToSql;
use tokio_util::sync::CancellationToken;

use super::session::{PostgresSession, RENEWAL_FRACTION, to_integer};
use crate::{
    api::v1::{FleetJobRecord, FleetJobState, JobState},
    daemon::{
        error::Error,
        fleet::{
            backoff::retry,
            failure::failed,
            in_flight::InFlightClaim,
            transition::{ended, may_run_again},
            work_source::{
                ClaimedWork, FinishOutcome, JobEnd, ReleaseReason, SourceUnavailable, Work,
            },
        },
        task::BoxFuture,
    },
};

/// `$2` daemon, `$3` attempts, `$4` start, `$5` the approval.
const SHOW_APPROVAL: &str = "
    UPDATE jig_jobs SET approval_id = $5
    WHERE id = $1 AND state = 'claimed' AND claimed_by = $2 AND attempts = $3
        AND claimed_start = $4
    RETURNING id";
#[derive(Debug)]
pub(super) struct PostgresClaim {
    session: Arc<PostgresSession>,
    work: Work,
    /// The row of the claim.
    record: FleetJobRecord,
    /// Whether a caller at any daemon cancels the job.
    is_cancelled: AtomicBool,
    _in_flight: InFlightClaim,
}

impl PostgresClaim {
    pub(super) fn new(
        session: Arc<PostgresSession>,
        work: Work,
        record: FleetJobRecord,
        in_flight: InFlightClaim,
    ) -> Self {
        let is_cancelled = AtomicBool::new(false);
        Self { session, work, record, is_cancelled, _in_flight: in_flight }
    }

    async fn renew(&self) -> Result<(), SourceUnavailable> {
        let renewed = self.session.renew(&self.work.id, &self.record).await?;
        let Some(is_cancelled) = renewed else {
            return Err(SourceUnavailable::new("another daemon has ended the job, or has it now"));
        };
        self.is_cancelled.store(is_cancelled, Ordering::Relaxed);
        Ok(())
    }

    async fn finish_job(&self, end: JobEnd, stop: &CancellationToken) -> FinishOutcome {
        let JobEnd { job, stopped_by_shutdown, .. } = end;
        let is_lost = job.state() == JobState::Lost;
        if (is_lost || stopped_by_shutdown) && may_run_again(&self.record, self.session.max_deliver)
        {
            return self.requeue(self.record.attempts, Duration::ZERO, stop).await;
        }
        self.end(&ended(&self.work.id, &self.record, job), stop).await
    }

    /// Stores the end of the job, until the server has answered or `stop` is cancelled.
    async fn end(&self, ended: &FleetJobRecord, stop: &CancellationToken) -> FinishOutcome {
        let what = "store the end of a fleet job";
        let outcome = retry(stop, &self.work.id, what, || self.try_end(ended)).await;
        outcome.unwrap_or(FinishOutcome::Unknown)
    }

    async fn try_end(&self, ended: &FleetJobRecord) -> Result<FinishOutcome, SourceUnavailable> {
        let id = &self.work.id;
        if self.session.end(id, &self.record, ended, false).await? {
            return Ok(FinishOutcome::Stored);
        }
        let found = self.session.find(id).await?.map(|found| found.record);
        // An earlier attempt was stored, and its acknowledgement was lost.
        if found
            .as_ref()
            .is_some_and(|found| found.state() == FleetJobState::Ended && found.job == ended.job)
        {
            return Ok(FinishOutcome::Stored);
        }
        tracing::warn!(
            job = id,
            daemon = found.map(|found| found.daemon_id),
            "the claim of a fleet job was lost: the result of this daemon is dropped"
        );
        Ok(FinishOutcome::Superseded)
    }

    /// Puts the job into the queue again. `counted` are the attempts that count.
    async fn requeue(
        &self,
        counted: u32,
        delay: Duration,
        stop: &CancellationToken,
    ) -> FinishOutcome {
        let id = &self.work.id;
        let give_back = || self.session.requeue(id, &self.record, counted, delay);
        match retry(stop, id, "give a fleet job back", give_back).await {
            Some(true) => FinishOutcome::Requeued,
            Some(false) => FinishOutcome::Superseded,
            None => FinishOutcome::Unknown,
        }
    }
}

impl ClaimedWork for PostgresClaim {
    fn work(&self) -> &Work {
        &self.work
    }

    fn progress_interval(&self) -> Duration {
        self.session.lease / RENEWAL_FRACTION
    }

    fn progress(&self) -> BoxFuture<'_, Result<(), SourceUnavailable>> {
        Box::pin(self.renew())
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    fn show_approval<'a>(
        &'a self,
        approval_id: &'a str,
    ) -> BoxFuture<'a, Result<(), SourceUnavailable>> {
        Box::pin(async move {
            let FleetJobRecord { daemon_id, start_id, attempts, .. } = &self.record;
            let attempts = to_integer(*attempts);
            let parameters: [&(dyn ToSql + Sync); 5] =
                [&self.work.id, daemon_id, &attempts, start_id, &approval_id];
            self.session.change(SHOW_APPROVAL, &parameters).await.map(drop)
        })
    }

    fn finish<'a>(
        &'a self,
        end: JobEnd,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, FinishOutcome> {
        Box::pin(self.finish_job(end, stop))
    }

    fn release<'a>(
        &'a self,
        reason: ReleaseReason,
        delay: Duration,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, FinishOutcome> {
        let counted = reason.counted_attempts(self.record.attempts);
        Box::pin(self.requeue(counted, delay, stop))
    }

    fn reject<'a>(
        &'a self,
        error: &'a Error,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, FinishOutcome> {
        Box::pin(async move { self.end(&failed(&self.work.id, &self.record, error), stop).await })
    }
}
