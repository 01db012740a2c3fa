//! Fleet jobs in PostgreSQL, for the services of every daemon: submits them, finds them by their rows,
//! waits for their ends and cancels them.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message as _;
use tokio_util::sync::CancellationToken;

use super::{
    job_row::{JobRow, require_no_artifacts},
    queue::wait_for_notification,
    retention::delete_old_rows,
    session::{MAX_WAIT, PostgresSession, outcome},
};
use crate::{
    api::v1::{Job, JobState, watch_job_response::Event},
    daemon::{
        config::fleet::FleetQueueConfig,
        error::{Error, Reason},
        fleet::{
            record_job::{cancelled_in_queue, to_fleet_job},
            work_source::{SourceUnavailable, fleet_job_id},
        },
        pipeline::{
            access::principal::key_principal_name,
            fleet_jobs::{
                FleetArtifactReader, FleetJob, FleetJobEvents, FleetJobs, FleetSubmission,
            },
        },
        task::{self, BoxFuture},
    },
};

/// Delay before a wait that has failed begins again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Attempts to wait, which is about the time that a server takes to restart.
const MAX_WAIT_ATTEMPTS: usize = 10;

const SUBMIT: &str = "
    INSERT INTO jig_jobs (queue, workspace, request_id, session, traceparent, request, retry_if_lost)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (id) DO NOTHING";
const CANCEL_QUEUED: &str = "
    UPDATE jig_jobs SET state = 'ended', outcome = $2, result = $3, ended_at = now()
    WHERE id = $1 AND state = 'queued'
    RETURNING id";
/// Its daemon reads that when it renews the lease.
const CANCEL_CLAIMED: &str = "
    UPDATE jig_jobs SET cancel_requested = true WHERE id = $1 AND state = 'claimed'";

/// The jobs of a fleet, by their rows.
#[derive(Debug, Clone)]
pub(crate) struct PostgresJobs {
    session: Arc<PostgresSession>,
    queues: Arc<[FleetQueueConfig]>,
}

/// The states of one watched job.
struct RowWatch {
    jobs: PostgresJobs,
    id: String,
    /// Whether a state was sent.
    has_begun: bool,
    is_finished: bool,
}

impl PostgresJobs {
    pub(crate) fn new(session: &PostgresSession, queues: Vec<FleetQueueConfig>) -> Self {
        Self { session: session.with_own_connection(), queues: queues.into() }
    }

    /// Deletes the rows of old jobs once in a while, until `stop` is cancelled.
    pub(crate) fn delete_old(
        &self,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        delete_old_rows(Arc::clone(&self.session), stop)
    }

    async fn submit_job(&self, submission: FleetSubmission) -> Result<FleetJob, Error> {
        require_no_artifacts(&submission.request)?;
        self.require_key_of_queue(&submission.queue, &submission.principal)?;
        let FleetSubmission { queue, workspace, request_id, session, traceparent, request, .. } =
            submission;
        let id = fleet_job_id(&queue, &request_id);
        let body = request.encode_to_vec();
        self.session
            .query(
                SUBMIT,
                &[
                    &queue,
                    &workspace,
                    &request_id,
                    &session,
                    &traceparent,
                    &body,
                    &request.retry_if_lost,
                ],
            )
            .await?;

        let row = self.session.find(&id).await?;
        let row = row.ok_or_else(|| SourceUnavailable::new("the new row was deleted"))?;
        let record = &row.record;
        if *row.request != *body || record.workspace != workspace || record.session != session {
            let text = "the queue has another job with this jig-request-id: give each job an id of its own";
            return Err(Error::new(Reason::RequestIdReused, text));
        }
        Ok(self.to_job(row))
    }

    /// Rows do not name the caller, so its job gets the rights of the queue's key.
    fn require_key_of_queue(&self, queue: &str, principal: &str) -> Result<(), Error> {
        let known = self.queues.iter().find(|known| known.name == queue);
        let Some(known) = known else {
            let text = "must be a queue of this daemon, which knows the key of its jobs: submit to a daemon with this queue, or insert a row into jig_jobs";
            return Err(Error::invalid_field("queue", text));
        };
        if known.key.as_deref().is_some_and(|key| key_principal_name(key) == principal) {
            return Ok(());
        }
        let text = format!(
            "jobs of the queue {queue} run with the rights of its key, which this call does not have: call with that key, or insert a row into jig_jobs"
        );
        Err(Error::new(Reason::Forbidden, text).with_metadata("principal", principal))
    }

    async fn find_job(&self, id: &str) -> Result<Option<FleetJob>, SourceUnavailable> {
        Ok(self.session.find(id).await?.map(|row| self.to_job(row)))
    }

    fn to_job(&self, mut row: JobRow) -> FleetJob {
        if row.record.principal.is_empty() {
            // The job has not ended. It has the rights of the queue's key.
            let queue = self.queues.iter().find(|queue| queue.name == row.record.queue);
            let key = queue.and_then(|queue| queue.key.as_deref());
            row.record.principal = key.map(key_principal_name).unwrap_or_default();
        }
        to_fleet_job(&row.id, row.record, self.session.result_retention)
    }

    /// Waits for the end of a job. A wait that fails is repeated for some time.
    async fn wait_for_end(
        &self,
        id: &str,
        until: Option<Instant>,
    ) -> Result<Option<FleetJob>, Error> {
        let mut failures = 0;
        loop {
            match self.wait_for_change(id, until).await {
                Ok(Some(job)) if job.job.end_time.is_none() => failures = 0,
                Ok(found) => return Ok(found),
                Err(error) => {
                    failures += 1;
                    if failures == MAX_WAIT_ATTEMPTS {
                        return Err(error.into());
                    }
                    let retry = Instant::now() + RETRY_INTERVAL;
                    task::sleep_until(Some(retry.min(until.unwrap_or(retry)))).await;
                }
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(self.find_job(id).await?);
            }
        }
    }

    /// Returns a job that has ended. Waits for a change of another one first.
    async fn wait_for_change(
        &self,
        id: &str,
        until: Option<Instant>,
    ) -> Result<Option<FleetJob>, SourceUnavailable> {
        let connection = self.session.connection().await?;
        // Before the row is read, so that no change is missed.
        let mut notifications = connection.subscribe()?;
        let found = self.find_job(id).await?;
        if found.as_ref().is_some_and(|found| found.job.end_time.is_none()) {
            let retry = Instant::now() + MAX_WAIT;
            let until = until.map_or(retry, |until| until.min(retry));
            if let Err(error) = wait_for_notification(&mut notifications, id, until).await {
                tracing::debug!(%error, job = id, "the wait for a fleet job goes on");
            }
            return self.find_job(id).await;
        }
        Ok(found)
    }

    async fn cancel_job(&self, id: &str) -> Result<(), Error> {
        let Some(row) = self.session.find(id).await? else { return Ok(()) };
        let cancelled = cancelled_in_queue(id, &row.record).job.unwrap_or_default();
        let (outcome, result) = (outcome(JobState::Cancelled), cancelled.encode_to_vec());
        let ended = self.session.change(CANCEL_QUEUED, &[&id, &outcome, &result]).await?;
        if ended.is_empty() {
            self.session.change(CANCEL_CLAIMED, &[&id]).await?;
        }
        Ok(())
    }
}

impl FleetJobs for PostgresJobs {
    fn submit(&self, submission: FleetSubmission) -> BoxFuture<'_, Result<FleetJob, Error>> {
        Box::pin(self.submit_job(submission))
    }

    fn is_unserved<'a>(&'a self, _queue: &'a str, _workspace: &'a str) -> BoxFuture<'a, bool> {
        // The table does not say.
        Box::pin(async { false })
    }

    fn find<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<FleetJob>, Error>> {
        Box::pin(async move { Ok(self.find_job(id).await?) })
    }

    fn wait<'a>(
        &'a self,
        id: &'a str,
        until: Option<Instant>,
    ) -> BoxFuture<'a, Result<Option<FleetJob>, Error>> {
        Box::pin(self.wait_for_end(id, until))
    }

    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.cancel_job(id))
    }

    fn load_result(&self, found: FleetJob) -> BoxFuture<'_, Result<Job, Error>> {
        Box::pin(async move { Ok(found.job) })
    }

    /// The table has no artifacts.
    fn open_artifact<'a>(
        &'a self,
        _object: &'a str,
    ) -> BoxFuture<'a, Result<Option<Box<dyn FleetArtifactReader>>, Error>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn watch<'a>(
        &'a self,
        id: &'a str,
        _offsets: [u64; 2],
    ) -> BoxFuture<'a, Result<Box<dyn FleetJobEvents>, Error>> {
        let (jobs, id) = (self.clone(), id.to_owned());
        Box::pin(async move {
            let watch = RowWatch { jobs, id, has_begun: false, is_finished: false };
            Ok(Box::new(watch) as Box<dyn FleetJobEvents>)
        })
    }
}

impl FleetJobEvents for RowWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Event>, Error>> {
        Box::pin(async move {
            if self.is_finished {
                return Ok(None);
            }
            let found = if self.has_begun {
                self.jobs.wait_for_end(&self.id, None).await?
            } else {
                self.jobs.find_job(&self.id).await?
            };
            self.has_begun = true;
            self.is_finished = found.as_ref().is_none_or(|found| found.job.end_time.is_some());
            Ok(found.map(|found| Event::Job(found.job)))
        })
    }
}
