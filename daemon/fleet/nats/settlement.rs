//! Settles the claims of an earlier start of this daemon by their records, without their messages:
//! these may be delivered to other daemons, which leave a claimed job alone.

use tokio_util::sync::CancellationToken;

use super::{bucket::RecordError, claims::JobClaims};
use crate::{
    api::v1::{FleetJobRecord, FleetJobState, Job, JobState},
    daemon::fleet::{
        backoff::retry,
        job_artifacts::JobArtifacts,
        transition::{ended, is_claim_of, requeued},
        work_source::{JobEnd, SourceUnavailable},
    },
};

impl JobClaims {
    /// Whether this daemon still has the claim of a job.
    pub(super) async fn has_claim(&self, id: &str, claim: &str) -> Result<bool, SourceUnavailable> {
        Ok(self.own_claim(id, claim).await?.is_some())
    }

    /// Stores the end of a job, if this daemon still has its claim. Repeats it until the server has
    /// answered or `stop` is cancelled. Returns whether this daemon no longer has the claim.
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
        let (own, revision) = match self.own_claim(id, claim).await? {
            None => return Ok(true),
            Some((Ok(own), revision)) => (own, revision),
            Some((Err(error), revision)) => {
                tracing::warn!(%error, job = id, "replacing a damaged record of a fleet job");
                (rebuilt_claim(end, &self.identity.daemon_id), revision)
            }
        };
        // After its last attempt, its message becomes a dead letter, at a daemon that gets it.
        let is_retried = job.state() == JobState::Lost && own.retry_if_lost;
        let record = if is_retried || end.runs_again(&own, self.max_deliver) {
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

    /// Returns the record of a claim, and its revision. An error in place of the record: it is damaged,
    /// so no other daemon claims the job.
    async fn own_claim(
        &self,
        id: &str,
        claim: &str,
    ) -> Result<Option<(Result<FleetJobRecord, SourceUnavailable>, u64)>, SourceUnavailable> {
        let daemon_id = &self.identity.daemon_id;
        let is_own = |record: &FleetJobRecord| is_claim_of(record, daemon_id, claim);
        let found = self.records.read(id).await?;
        Ok(found.filter(|(record, _)| record.as_ref().map_or(true, is_own)))
    }
}

/// The record of a claim, as far as the job of this daemon says. It has no digest of the request, and
/// permits no repetition.
fn rebuilt_claim(end: &JobEnd, daemon_id: &str) -> FleetJobRecord {
    let Job { queue, tool, dialect, priority, session, principal, submit_time, .. } = &end.job;
    let workspace = end.artifacts.as_ref().map(JobArtifacts::workspace);
    FleetJobRecord {
        state: FleetJobState::Claimed.into(),
        queue: queue.clone(),
        workspace: workspace.unwrap_or_default().to_owned(),
        tool: tool.clone(),
        dialect: dialect.clone(),
        priority: *priority,
        session: session.clone(),
        principal: principal.clone(),
        daemon_id: daemon_id.to_owned(),
        attempts: 1,
        submit_time: *submit_time,
        claim_time: *submit_time,
        ..FleetJobRecord::default()
    }
}
