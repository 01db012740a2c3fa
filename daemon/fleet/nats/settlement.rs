//! Settles the claims of an earlier start of this daemon by their records, without their messages:
//! these may be delivered to other daemons, which leave a claimed job alone.

use tokio_util::sync::CancellationToken;

use super::{bucket::RecordError, claims::JobClaims};
use crate::{
    api::v1::{FleetJobRecord, FleetJobState, JobState},
    daemon::fleet::{
        backoff::retry,
        transition::{ended, is_claim_of, may_run_again, requeued},
        work_source::{JobEnd, SourceUnavailable},
    },
};

impl JobClaims {
    /// Whether this daemon has the claim of a job still.
    pub(super) async fn has_claim(&self, id: &str, claim: &str) -> Result<bool, SourceUnavailable> {
        Ok(self.own_claim(id, claim).await?.is_some())
    }

    /// Stores the end of a job, if this daemon has its claim still. Repeats it until the server has
    /// answered or `stop` is cancelled. Returns whether this daemon has the claim no more.
    pub(super) async fn settle(
        &self,
        id: &str,
        claim: &str,
        end: &JobEnd,
        stop: &CancellationToken,
    ) -> bool {
        let attempt = async || loop {
            match self.try_settle(id, claim, end, stop).await {
                Ok(is_settled) => return Ok(is_settled),
                // Another part of this daemon, or another daemon, has changed the record.
                Err(RecordError::Conflict) => {}
                Err(RecordError::Unavailable(error)) => return Err(error),
            }
        };
        retry(stop, id, "store the end of a fleet job", attempt).await.unwrap_or(false)
    }

    async fn try_settle(
        &self,
        id: &str,
        claim: &str,
        end: &JobEnd,
        stop: &CancellationToken,
    ) -> Result<bool, RecordError> {
        let job = &end.job;
        let Some((own, revision)) = self.own_claim(id, claim).await? else {
            return Ok(true);
        };
        let is_lost = job.state() == JobState::Lost;
        // Its message is needed, for the dead letters: it is delivered again.
        if is_lost && own.retry_if_lost && !may_run_again(&own, self.max_deliver) {
            return Ok(false);
        }
        let record = if is_lost && may_run_again(&own, self.max_deliver) {
            requeued(&own, own.attempts)
        } else {
            let mut record = ended(id, &own, job.clone());
            if !self.store_artifacts(id, end, &mut record, stop).await {
                return Ok(false);
            }
            self.results.detach_large(id, &mut record).await?;
            record
        };

        self.records.update(id, &record, revision).await?;
        if record.state() == FleetJobState::Ended {
            self.log.report_end(id, &record, None);
        } else {
            self.log.report_release(id, &record, &job.job_id);
        }
        tracing::info!(job = id, state = ?job.state(), "settled a fleet job of the last start");
        Ok(true)
    }

    async fn own_claim(
        &self,
        id: &str,
        claim: &str,
    ) -> Result<Option<(FleetJobRecord, u64)>, SourceUnavailable> {
        let found = self.records.get(id).await?;
        Ok(found.filter(|(record, _)| is_claim_of(record, &self.identity.daemon_id, claim)))
    }
}
