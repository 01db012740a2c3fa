//! A row of the queue that this daemon has claimed.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    job_row::JobRow,
    session::{PostgresSession, is_claim},
};
use crate::{
    api::v1::{FleetJobRecord, FleetJobState},
    daemon::{
        error::Error,
        fleet::{
            backoff::retry,
            failure::failed,
            in_flight::InFlightClaim,
            transition::ended,
            work_source::{
                ClaimedWork, FinishOutcome, JobEnd, Progress, ReleaseReason, SourceUnavailable,
                Work,
            },
        },
        task::BoxFuture,
    },
};

/// Part of the lease after which it is renewed.
const RENEWAL_FRACTION: u32 = 3;

/// `$3` the approval.
const SHOW_APPROVAL: &str = concat!("UPDATE jig_jobs SET approval_id = $3 WHERE ", is_claim!());

#[derive(Debug)]
pub(super) struct PostgresClaim {
    session: Arc<PostgresSession>,
    work: Work,
    row: JobRow,
    _in_flight: InFlightClaim,
}

impl PostgresClaim {
    pub(super) fn new(
        session: Arc<PostgresSession>,
        work: Work,
        row: JobRow,
        in_flight: InFlightClaim,
    ) -> Self {
        Self { session, work, row, _in_flight: in_flight }
    }

    async fn renew(&self) -> Result<Progress, SourceUnavailable> {
        Ok(match self.session.renew(&self.row).await? {
            Some(false) => Progress::Kept,
            Some(true) => Progress::CancelRequested,
            None => Progress::ClaimLost,
        })
    }

    async fn finish_job(&self, end: JobEnd, stop: &CancellationToken) -> FinishOutcome {
        let record = &self.row.record;
        if end.runs_again(record, self.session.max_deliver) {
            return self.requeue(record.attempts, Duration::ZERO, stop).await;
        }
        self.end(&ended(&self.work.id, record, end.job), stop).await
    }

    /// Stores the end of the job, until the server has answered or `stop` is cancelled.
    async fn end(&self, ended: &FleetJobRecord, stop: &CancellationToken) -> FinishOutcome {
        let what = "store the end of a fleet job";
        let outcome = retry(stop, &self.work.id, what, || self.try_end(ended)).await;
        outcome.unwrap_or(FinishOutcome::Unknown)
    }

    async fn try_end(&self, ended: &FleetJobRecord) -> Result<FinishOutcome, SourceUnavailable> {
        let id = &self.work.id;
        if self.session.end(&self.row, ended).await? {
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
        let give_back = || self.session.requeue(&self.row, counted, delay);
        match retry(stop, &self.work.id, "give a fleet job back", give_back).await {
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

    fn progress(&self) -> BoxFuture<'_, Result<Progress, SourceUnavailable>> {
        Box::pin(self.renew())
    }

    fn show_approval<'a>(
        &'a self,
        approval_id: &'a str,
    ) -> BoxFuture<'a, Result<(), SourceUnavailable>> {
        Box::pin(async move {
            let JobRow { id, claimed_at, .. } = &self.row;
            self.session.query(SHOW_APPROVAL, &[id, claimed_at, &approval_id]).await.map(drop)
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
        let counted = reason.counted_attempts(self.row.record.attempts);
        Box::pin(self.requeue(counted, delay, stop))
    }

    fn reject<'a>(
        &'a self,
        error: &'a Error,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, FinishOutcome> {
        Box::pin(
            async move { self.end(&failed(&self.work.id, &self.row.record, error), stop).await },
        )
    }
}
