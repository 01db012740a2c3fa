//! Fleet jobs in PostgreSQL, for the services of every daemon: submits them, finds them by their rows,
//! waits for their ends and cancels them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message as _;
use tokio::time::timeout_at;
use tokio_postgres::types::ToSql;

use super::{
    job_row::{JobRow, require_no_artifacts},
    session::{MAX_WAIT, PostgresSession},
};
use crate::{
    api::v1::watch_job_response::Event,
    daemon::{
        error::{Error, Reason},
        fleet::{
            record_job::{cancelled_in_queue, to_fleet_job},
            work_source::{SourceUnavailable, fleet_job_id},
        },
        pipeline::{
            access::principal::key_principal_name,
            fleet_jobs::{FleetJob, FleetJobEvents, FleetJobs, FleetSubmission},
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
/// Ends a queued job with the result `$2`. The daemon that has a claimed one reads that it is to cancel
/// it when it renews the lease.
const CANCEL: &str = "
    UPDATE jig_jobs AS job SET cancel_requested = true, state = next.state, outcome = next.outcome,
        result = next.result, ended_at = next.ended_at
    FROM (VALUES ('queued', 'ended', 'cancelled', $2::bytea, now()), ('claimed', 'claimed', NULL, NULL, NULL))
        AS next (earlier, state, outcome, result, ended_at)
    WHERE id = $1 AND job.state = next.earlier";

/// The jobs of a fleet, by their rows.
#[derive(Debug, Clone)]
pub(crate) struct PostgresJobs {
    session: Arc<PostgresSession>,
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
    pub(crate) fn new(session: Arc<PostgresSession>) -> Self {
        Self { session }
    }

    async fn submit_job(&self, submission: FleetSubmission) -> Result<FleetJob, Error> {
        require_no_artifacts(&submission.request)?;
        self.require_key_of_queue(&submission.queue, &submission.principal)?;
        let FleetSubmission { queue, workspace, request_id, session, traceparent, request, .. } =
            submission;
        let id = fleet_job_id(&queue, &request_id);
        let body = request.encode_to_vec();
        let parameters: [&(dyn ToSql + Sync); 7] = [
            &queue,
            &workspace,
            &request_id,
            &session,
            &traceparent,
            &body,
            &request.retry_if_lost,
        ];
        self.session.query(SUBMIT, &parameters).await?;

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
        let known = self.session.queues.iter().find(|known| known.name == queue);
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

    fn to_job(&self, row: JobRow) -> FleetJob {
        to_fleet_job(&row.id, row.record, self.session.result_retention)
    }

    /// Waits for the end of a job. A wait that fails is repeated for some time.
    async fn wait_for_end(
        &self,
        id: &str,
        until: Option<Instant>,
    ) -> Result<Option<FleetJob>, Error> {
        let is_over = || until.is_some_and(|until| until <= Instant::now());
        let soonest = |delay| {
            let then = Instant::now() + delay;
            until.map_or(then, |until| until.min(then))
        };
        let mut failures = 0;
        loop {
            let look = async {
                // Before the row is read, so that no change is missed.
                let notifications = self.session.connection().await?.subscribe()?;
                Ok::<_, SourceUnavailable>((self.find_job(id).await?, notifications))
            };
            match look.await {
                Ok((found, mut notifications)) => {
                    let has_ended = found.as_ref().is_none_or(|found| found.job.end_time.is_some());
                    if has_ended || is_over() {
                        return Ok(found);
                    }
                    failures = 0;
                    let changed = notifications.wait_for(|notified| notified.id == id);
                    // The row says what has changed.
                    let _elapsed = timeout_at(soonest(MAX_WAIT).into(), changed).await;
                }
                Err(error) => {
                    failures += 1;
                    if failures == MAX_WAIT_ATTEMPTS || is_over() {
                        return Err(error.into());
                    }
                    task::sleep_until(Some(soonest(RETRY_INTERVAL))).await;
                }
            }
        }
    }

    async fn cancel_job(&self, id: &str) -> Result<(), Error> {
        if let Some(row) = self.session.find(id).await? {
            let cancelled = cancelled_in_queue(id, &row.record).job.unwrap_or_default();
            self.session.query(CANCEL, &[&id, &cancelled.encode_to_vec()]).await?;
        }
        Ok(())
    }
}

impl FleetJobs for PostgresJobs {
    fn submit(&self, submission: FleetSubmission) -> BoxFuture<'_, Result<FleetJob, Error>> {
        Box::pin(self.submit_job(submission))
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
