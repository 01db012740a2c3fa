//! The seam between the runner and the queues of a fleet: where jobs come from, and where their
//! results go.
//!
//! A source hands each piece of work to one daemon at a time, and again to some daemon if that one
//! dies. It stores one result for each. What this daemon has begun is in its own database: a source
//! is not asked about it.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    counts::{FleetPlace, FleetQueueState},
    job_artifacts::JobArtifacts,
    transition::may_run_again,
};
use crate::{
    api::{
        self,
        v1::{FleetJobRecord, Job, SubmitJobRequest},
    },
    daemon::{
        checksum::sha256,
        error::{Error, Reason},
        pipeline::{
            Pipeline,
            fleet_jobs::{FLEET_JOB_ID_DIGITS, FLEET_JOB_ID_PREFIX},
            jobs::{JobSnapshot, wire::wire_job},
        },
        task::BoxFuture,
    },
};

/// When a caller may repeat a call that did not reach the source. A server restarts in seconds.
const UNAVAILABLE_RETRY_AFTER: Duration = Duration::from_secs(1);

/// A queue of jobs that daemons share.
pub(crate) trait WorkSource: Send + Sync + 'static {
    /// Returns some of the claims that this daemon has without running their jobs: of an earlier start,
    /// or of an attempt whose answer was lost. For a source that does not hand them out again by itself.
    fn resume(&self) -> BoxFuture<'_, Result<Vec<Box<dyn ClaimedWork>>, SourceUnavailable>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Waits until there is work and free places for it, and claims one piece for each place.
    ///
    /// Takes a place before it claims: queues that share places must not claim for the same one.
    /// Returns soon after `stop` is cancelled, with what was claimed until then. Not cancel safe:
    /// claims of a dropped future are lost to this daemon until the source hands them out again.
    fn claim<'a>(
        &'a self,
        places: &'a Arc<FleetQueueState>,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Vec<PlacedWork>, SourceUnavailable>>;
}

/// Claimed work, and the place that it takes until the source has its end.
pub(crate) type PlacedWork = (Box<dyn ClaimedWork>, FleetPlace);

/// Work that this daemon has claimed. No other daemon gets it while the claim is kept.
pub(crate) trait ClaimedWork: Send + Sync {
    fn work(&self) -> &Work;

    /// How often [`Self::progress`] must be called.
    fn progress_interval(&self) -> Duration;

    /// Keeps the claim. A failure is no reason to stop: the next call may succeed in time.
    fn progress(&self) -> BoxFuture<'_, Result<Progress, SourceUnavailable>>;

    /// Shows callers the approval that the job waits for. Empty: it no longer waits for one.
    fn show_approval<'a>(
        &'a self,
        approval_id: &'a str,
    ) -> BoxFuture<'a, Result<(), SourceUnavailable>>;

    /// Stores the ended job, then acknowledges the work. Repeats both until the source answers or
    /// `stop` is cancelled.
    ///
    /// A job that was lost, or that the shutdown of this daemon has stopped, goes to another daemon
    /// if its submission allows that.
    fn finish<'a>(
        &'a self,
        end: JobEnd,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, FinishOutcome>;

    /// Gives work back that has not begun. The source hands it out again after `delay`.
    fn release<'a>(
        &'a self,
        reason: ReleaseReason,
        delay: Duration,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, FinishOutcome>;

    /// Stores that the job has failed with this error, and removes the work from the queue.
    fn reject<'a>(
        &'a self,
        error: &'a Error,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, FinishOutcome>;
}

/// What became of a claim that was to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Kept,
    /// It is kept, and a caller at any daemon cancels the job.
    CancelRequested,
    /// Another daemon has the job, or it has ended: this daemon does not get the claim back.
    ClaimLost,
}

/// A job from the queue of a fleet.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    /// Id of the fleet job.
    pub(crate) id: String,
    pub(crate) queue: String,
    /// Workspace of this daemon that the job runs in.
    pub(crate) workspace: String,
    /// Principal whose rights the job has, by its name in records (`key:NAME`).
    pub(crate) principal: String,
    /// `None` for the default session.
    pub(crate) session: Option<String>,
    /// Trace context of the submission, if any.
    pub(crate) traceparent: Option<String>,
    /// Identifies the claim. It is the same when this daemon still has the claim after a restart.
    pub(crate) claim_id: String,
    /// The start of this daemon that made the claim, if the claim was found and not made now: its job
    /// may have begun.
    pub(crate) resumed_from: Option<String>,
    /// Whether a caller cancels the job: it does not begin.
    pub(crate) is_cancelled: bool,
    /// Whether a daemon has published the job. It has counted it against the caller's rate limit.
    pub(crate) is_rate_counted: bool,
    pub(crate) request: SubmitJobRequest,
}

/// Why work is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseReason {
    /// The daemon has no place for it, or is shutting down. It does not count as an attempt.
    NoPlace,
    /// The daemon could not begin it. After too many attempts, the job fails.
    Failure,
}

impl ReleaseReason {
    /// Returns the attempts that count, with the one that is given back.
    pub(super) fn counted_attempts(self, attempts: u32) -> u32 {
        match self {
            Self::NoPlace => attempts.saturating_sub(1),
            Self::Failure => attempts,
        }
    }
}

/// An ended job of this daemon.
#[derive(Debug, Clone)]
pub(crate) struct JobEnd {
    /// The job with its result, as this daemon knows it.
    pub(crate) job: Job,
    /// Its artifacts, for a source that stores them. `None` if this daemon did not run it.
    pub(crate) artifacts: Option<JobArtifacts>,
    /// Whether the shutdown of this daemon has stopped it.
    pub(crate) stopped_by_shutdown: bool,
}

impl JobEnd {
    /// Returns the end of a job that this daemon has run, unless its result is unreadable.
    pub(super) fn of_snapshot(
        pipeline: &Arc<Pipeline>,
        snapshot: JobSnapshot,
        stopped_by_shutdown: bool,
    ) -> Result<Self, Error> {
        let artifacts = JobArtifacts::new(Arc::clone(pipeline), &snapshot.job);
        Ok(Self { job: wire_job(snapshot, &pipeline.jobs)?, artifacts, stopped_by_shutdown })
    }

    /// Whether another daemon is to run the job again.
    pub(super) fn runs_again(&self, record: &FleetJobRecord, max_deliver: u32) -> bool {
        let is_stopped = self.job.state() == api::v1::JobState::Lost || self.stopped_by_shutdown;
        is_stopped && may_run_again(record, max_deliver)
    }
}

/// What became of claimed work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinishOutcome {
    /// The source has stored the result of this daemon.
    Stored,
    /// The source has another result, or another daemon has the work.
    Superseded,
    /// The work is in the queue again.
    Requeued,
    /// The source did not answer until the daemon stopped.
    Unknown,
}

/// A source does not answer, or not as it should.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the servers of the fleet cannot be used: {0}")]
pub(crate) struct SourceUnavailable(pub(crate) String);

impl SourceUnavailable {
    pub(crate) fn new(cause: impl std::fmt::Display) -> Self {
        Self(cause.to_string())
    }
}

impl From<SourceUnavailable> for Error {
    fn from(error: SourceUnavailable) -> Self {
        let text = "the servers of the fleet do not answer: retry later with the same request id";
        Self::new(Reason::FleetUnavailable, text)
            .with_retry_after(UNAVAILABLE_RETRY_AFTER)
            .with_cause(error)
    }
}

/// Returns the id of the fleet job that was submitted to `queue` with `request_id`.
///
/// Programs that publish jobs without a daemon compute it too, to find the result.
pub(crate) fn fleet_job_id(queue: &str, request_id: &str) -> String {
    let sum = sha256(format!("{queue}/{request_id}").as_bytes());
    format!("{FLEET_JOB_ID_PREFIX}{}", &sum[..FLEET_JOB_ID_DIGITS])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ids_are_those_of_other_programs() {
        // printf '%s' build/request-1 | sha256sum
        assert_eq!(fleet_job_id("build", "request-1"), "fleet-7a61ed7351f071be21e73060c62d236f");
    }
}
