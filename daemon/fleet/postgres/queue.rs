//! One queue of the fleet in PostgreSQL: claims rows, and waits for new ones.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::{sleep, sleep_until, timeout_at},
};
use tokio_postgres::types::ToSql;
use tokio_util::sync::CancellationToken;

use super::{
    claimed_row::PostgresClaim,
    connection::PostgresConnection,
    job_row::{JobRow, columns},
    session::{MAX_WAIT, PostgresSession, to_integer},
    suspects::Suspects,
};
use crate::{
    api::v1::FleetJobRecord,
    daemon::{
        config::fleet::FleetQueueConfig,
        error::{Error, Reason},
        fleet::{
            failure::{exhausted_error, failed, lost},
            transition::may_run_again,
            work_source::{ClaimedWork, SourceUnavailable, WorkSource},
        },
        pipeline::access::principal::key_principal_name,
        task::BoxFuture,
    },
};

/// [`MAX_WAIT`] as a part of the lease: the judgement of other daemons needs to know of outages.
const WAIT_FRACTION: u32 = 4;
/// Claims of dead daemons that one look finds, and those that it ends.
const MAX_EXPIRED: i64 = 10_000;
const MAX_ENDED: usize = 100;
/// Time between two claims while rows are due that another daemon has locked, and after the
/// connection was cut.
const MIN_WAIT: Duration = Duration::from_millis(200);

/// Claims due rows: `$1` queue, `$2` workspaces, `$3` count, `$4` daemon, `$5` seconds of the lease,
/// `$6` start, without `$7` jobs that it runs. By workspace, so that rows of others, which can be many, are not read. Materialized, so
/// that the limit holds.
const CLAIM_QUEUED: &str = concat!(
    "
    WITH due AS MATERIALIZED (
        SELECT found.id AS due_id FROM unnest($2::text[] || ''::text) AS served (name),
            LATERAL (
                SELECT id, not_before FROM jig_jobs
                WHERE queue = $1 AND workspace = served.name AND state = 'queued'
                    AND not_before <= now() AND id <> ALL($7)
                ORDER BY not_before, id LIMIT $3 FOR UPDATE SKIP LOCKED) AS found
        ORDER BY found.not_before, found.id LIMIT $3)
    UPDATE jig_jobs AS job SET state = 'claimed', claimed_by = $4, claimed_start = $6,
        claimed_at = now(),
        lease_until = now() + make_interval(secs => $5),
        workspace = coalesce(nullif(job.workspace, ''), ($2::text[])[1]),
        attempts = job.attempts + 1
    FROM due WHERE job.id = due.due_id
    RETURNING ",
    columns!()
);
/// Takes up the claims of `$3` daemon, `$4` its starts, without `$5` jobs that it runs: `$6` start, `$7`
/// seconds of the lease. Other starts with its name are other daemons.
const RESUME: &str = concat!(
    "
    WITH own AS MATERIALIZED (
        SELECT id AS own_id, claimed_start AS resumed_from FROM jig_jobs
        WHERE queue = $1 AND state = 'claimed' AND workspace = ANY($2)
            AND claimed_by = $3 AND claimed_start = ANY($4) AND id <> ALL($5)
        FOR UPDATE)
    UPDATE jig_jobs AS job SET claimed_start = $6, approval_id = '',
        lease_until = now() + make_interval(secs => $7)
    FROM own WHERE job.id = own.own_id
    RETURNING own.resumed_from, ",
    columns!()
);
/// Finds claims of other daemons whose leases have ended, in whatever workspace: `$2` daemon, `$3` its
/// starts, `$4` count.
const FIND_EXPIRED: &str = "
    SELECT id, lease_until FROM jig_jobs
    WHERE queue = $1 AND state = 'claimed' AND lease_until < now()
        AND (claimed_by <> $2 OR claimed_start <> ALL($3))
    ORDER BY lease_until LIMIT $4";
/// Queues a job of a dead daemon again: `$2` daemon, `$3` attempts, `$4` start. It keeps its place in
/// the queue.
const REQUEUE_EXPIRED: &str = "
    UPDATE jig_jobs SET state = 'queued', approval_id = '', claimed_by = NULL, claimed_start = '',
        workspace = CASE WHEN any_workspace THEN '' ELSE workspace END,
        lease_until = NULL, claimed_at = NULL
    WHERE id = $1 AND state = 'claimed' AND claimed_by = $2 AND attempts = $3
        AND claimed_start = $4 AND lease_until < now()
    RETURNING id";
/// Seconds until the next job is due, and until the next lease of another daemon ends: `$3` daemon,
/// `$4` its starts.
const NEXT_DUE: &str = "
    SELECT
        extract(epoch FROM (
            SELECT min(found.not_before) FROM unnest($2::text[] || ''::text) AS served (name),
                LATERAL (
                    SELECT min(not_before) AS not_before FROM jig_jobs
                    WHERE queue = $1 AND workspace = served.name AND state = 'queued') AS found
        ) - now())::float8,
        extract(epoch FROM (
            SELECT min(lease_until) FROM jig_jobs
            WHERE queue = $1 AND state = 'claimed'
                AND (claimed_by <> $3 OR claimed_start <> ALL($4))
        ) - now())::float8";

/// A queue, as this daemon takes jobs from it.
#[derive(Debug)]
pub(crate) struct PostgresQueue {
    session: Arc<PostgresSession>,
    queue: FleetQueueConfig,
    suspects: Suspects,
}

/// The claims of one look at the table.
#[derive(Default)]
struct ClaimedRows {
    claims: Vec<Box<dyn ClaimedWork>>,
    /// Whether rows were changed: there may be more.
    any_changed: bool,
}

impl PostgresQueue {
    pub(crate) fn new(session: Arc<PostgresSession>, queue: FleetQueueConfig) -> Self {
        let suspects = Suspects::new(session.lease);
        Self { session, queue, suspects }
    }

    async fn claim_rows(
        &self,
        max: usize,
        stop: &CancellationToken,
    ) -> Result<Vec<Box<dyn ClaimedWork>>, SourceUnavailable> {
        while !stop.is_cancelled() {
            let connection = self.session.connection().await?;
            // Before the table is read, so that no job is missed.
            let mut notifications = connection.subscribe()?;
            let claimed = self.claim_present(&connection, max).await?;
            if !claimed.claims.is_empty() {
                return Ok(claimed.claims);
            }
            if claimed.any_changed {
                continue;
            }

            let until = Instant::now() + self.next_due(&connection).await?;
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = sleep_until(until.into()) => {}
                notified = self.wait_for_job(&mut notifications) => {
                    if notified.is_err() {
                        // The connection was cut, as those of idle sessions are.
                        sleep(MIN_WAIT).await;
                    }
                }
            }
        }
        Ok(Vec::new())
    }

    /// Claims at most `max` of the jobs that there are, after those of dead daemons have ended.
    async fn claim_present(
        &self,
        connection: &PostgresConnection,
        max: usize,
    ) -> Result<ClaimedRows, SourceUnavailable> {
        let mut claimed = ClaimedRows::default();
        self.end_dead(connection, &mut claimed).await?;
        self.claim_queued(connection, max, &mut claimed).await?;
        Ok(claimed)
    }

    async fn claim_queued(
        &self,
        connection: &PostgresConnection,
        max: usize,
        claimed: &mut ClaimedRows,
    ) -> Result<(), SourceUnavailable> {
        let PostgresSession { identity, in_flight, lease, .. } = &*self.session;
        let (name, workspaces) = (&self.queue.name, &self.queue.workspaces);
        let (max, lease) = (to_limit(max), lease.as_secs_f64());
        let (daemon_id, start_id): (&str, &str) = (&identity.daemon_id, &identity.start_id);
        let running = in_flight.all();
        let parameters: [&(dyn ToSql + Sync); 7] =
            [name, workspaces, &max, &daemon_id, &lease, &start_id, &running];
        let rows = connection.change(CLAIM_QUEUED, &parameters).await?;
        for row in rows {
            claimed.any_changed = true;
            let row = JobRow::read(&row)?;
            if row.record.attempts > self.session.max_deliver {
                let record = self.with_principal(row.record);
                let error = exhausted_error(record.attempts - 1);
                self.reject(&row.id, &record, &error).await?;
            } else {
                claimed.claims.extend(self.build_claim(row, None).await?);
            }
        }
        Ok(())
    }

    /// Ends the claims of dead daemons: jobs that may run again are queued again, others are lost.
    async fn end_dead(
        &self,
        connection: &PostgresConnection,
        claimed: &mut ClaimedRows,
    ) -> Result<(), SourceUnavailable> {
        if !self.can_judge() {
            return Ok(());
        }
        let PostgresSession { identity, known_starts, .. } = &*self.session;
        let daemon_id: &str = &identity.daemon_id;
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&self.queue.name, &daemon_id, known_starts, &MAX_EXPIRED];
        let found = connection.query(FIND_EXPIRED, &parameters).await?;
        // Leases may have ended while the server did not answer.
        if !self.can_judge() {
            return Ok(());
        }
        let found: Result<_, tokio_postgres::Error> =
            found.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect();
        let found = found.map_err(SourceUnavailable::new)?;
        let dead = self.suspects.note(found, Instant::now());
        for id in dead.iter().take(MAX_ENDED) {
            // What keeps this daemon from it may keep the other one from the renewal.
            let ended = self.end_claim(connection, id).await;
            claimed.any_changed |= ended.inspect_err(|_| self.session.reachability().reset())?;
        }
        Ok(())
    }

    /// Takes up the claims that this daemon has and does not keep, however many they are.
    async fn resume_claims(&self) -> Result<Vec<Box<dyn ClaimedWork>>, SourceUnavailable> {
        let PostgresSession { identity, in_flight, known_starts, lease, .. } = &*self.session;
        let (name, workspaces) = (&self.queue.name, &self.queue.workspaces);
        let (daemon_id, start_id): (&str, &str) = (&identity.daemon_id, &identity.start_id);
        let (running, lease) = (in_flight.all(), lease.as_secs_f64());
        let parameters: [&(dyn ToSql + Sync); 7] =
            [name, workspaces, &daemon_id, known_starts, &running, &start_id, &lease];
        let mut claims = Vec::new();
        for row in self.session.change(RESUME, &parameters).await? {
            let resumed_from = row.try_get("resumed_from").map_err(SourceUnavailable::new)?;
            claims.extend(self.build_claim(JobRow::read(&row)?, Some(resumed_from)).await?);
        }
        Ok(claims)
    }

    /// Ends the claim of a dead daemon, unless it has been renewed. Returns whether it has ended.
    async fn end_claim(
        &self,
        connection: &PostgresConnection,
        id: &str,
    ) -> Result<bool, SourceUnavailable> {
        let Some(JobRow { record, .. }) = self.session.find(id).await? else { return Ok(false) };
        let record = &self.with_principal(record);
        let FleetJobRecord { daemon_id, start_id, attempts, .. } = record;
        let runs_again = may_run_again(record, self.session.max_deliver);
        let has_ended = if runs_again {
            let attempts = to_integer(*attempts);
            let parameters: [&(dyn ToSql + Sync); 4] = [&id, daemon_id, &attempts, start_id];
            !connection.change(REQUEUE_EXPIRED, &parameters).await?.is_empty()
        } else {
            let lost = lost(id, record);
            let has_ended = self.session.end(id, record, &lost, true).await?;
            if has_ended {
                self.session.log.report_end(id, &lost, Some(Reason::DaemonLost));
            }
            has_ended
        };
        if has_ended {
            tracing::warn!(
                job = id,
                daemon = daemon_id,
                attempts,
                runs_again,
                "the daemon of a fleet job is dead"
            );
        }
        Ok(has_ended)
    }

    /// Builds the claim of a row. An invalid job fails instead.
    async fn build_claim(
        &self,
        mut row: JobRow,
        resumed_from: Option<String>,
    ) -> Result<Option<Box<dyn ClaimedWork>>, SourceUnavailable> {
        row.record = self.with_principal(row.record);
        match row.to_work(&self.queue, resumed_from) {
            Ok(work) => {
                let session = Arc::clone(&self.session);
                let in_flight = self.session.in_flight.begin(&row.id);
                Ok(in_flight.map(|in_flight| {
                    Box::new(PostgresClaim::new(session, work, row.record, in_flight))
                        as Box<dyn ClaimedWork>
                }))
            }
            Err(error) => {
                let reason = error.reason.name();
                tracing::warn!(%error, reason, job = row.id, "rejected a row of the fleet");
                self.reject(&row.id, &row.record, &error).await?;
                Ok(None)
            }
        }
    }

    /// Ends a job that this daemon has claimed and does not run.
    async fn reject(
        &self,
        id: &str,
        record: &FleetJobRecord,
        error: &Error,
    ) -> Result<(), SourceUnavailable> {
        let failed = failed(id, record, error);
        if self.session.end(id, record, &failed, false).await? {
            self.session.log.report_end(id, &failed, Some(error.reason));
        }
        Ok(())
    }

    /// Adds the principal of the queue.
    fn with_principal(&self, record: FleetJobRecord) -> FleetJobRecord {
        let principal = self.queue.key.as_deref().map(key_principal_name).unwrap_or_default();
        FleetJobRecord { principal, ..record }
    }

    /// Time until this daemon may take others for dead.
    fn time_until_judge(&self) -> Duration {
        self.session.reachability().time_until_judge(Instant::now())
    }

    fn can_judge(&self) -> bool {
        self.time_until_judge().is_zero()
    }

    /// How long to wait without a notification.
    async fn next_due(
        &self,
        connection: &PostgresConnection,
    ) -> Result<Duration, SourceUnavailable> {
        let PostgresSession { identity, known_starts, .. } = &*self.session;
        let daemon_id: &str = &identity.daemon_id;
        let (name, workspaces) = (&self.queue.name, &self.queue.workspaces);
        let parameters: [&(dyn ToSql + Sync); 4] = [name, workspaces, &daemon_id, known_starts];
        let rows = connection.query(NEXT_DUE, &parameters).await?;
        let delay = |column| {
            let seconds: Option<f64> = rows.first().and_then(|row| row.try_get(column).ok()?);
            // A lease or a delay that has ended is due now.
            seconds.map(|secs| Duration::try_from_secs_f64(secs.max(0.0)).unwrap_or(MAX_WAIT))
        };
        let job_delay = delay(0).unwrap_or(MAX_WAIT);
        let lease_delay = delay(1).map(|delay| {
            delay.max(self.time_until_judge()).max(self.suspects.time_until_first(Instant::now()))
        });
        let max = (self.session.lease / WAIT_FRACTION).min(MAX_WAIT);
        Ok(job_delay.min(lease_delay.unwrap_or(MAX_WAIT)).clamp(MIN_WAIT, max))
    }

    /// Waits for a notification of a new job in this queue.
    async fn wait_for_job(
        &self,
        notifications: &mut broadcast::Receiver<Arc<str>>,
    ) -> Result<(), SourceUnavailable> {
        loop {
            match notifications.recv().await {
                Ok(notification) => {
                    let mut words = notification.splitn(3, ' ');
                    if words.next() == Some("queued")
                        && words.nth(1).is_none_or(|queue| queue == self.queue.name)
                    {
                        return Ok(());
                    }
                }
                Err(RecvError::Lagged(_)) => return Ok(()),
                Err(RecvError::Closed) => {
                    return Err(SourceUnavailable::new("the connection broke"));
                }
            }
        }
    }
}

impl WorkSource for PostgresQueue {
    fn resume(&self) -> BoxFuture<'_, Result<Vec<Box<dyn ClaimedWork>>, SourceUnavailable>> {
        Box::pin(self.resume_claims())
    }

    fn claim<'a>(
        &'a self,
        max: usize,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Vec<Box<dyn ClaimedWork>>, SourceUnavailable>> {
        Box::pin(self.claim_rows(max, stop))
    }
}

/// Waits until a notification names this job, or `until`.
pub(super) async fn wait_for_notification(
    notifications: &mut broadcast::Receiver<Arc<str>>,
    id: &str,
    until: Instant,
) -> Result<(), SourceUnavailable> {
    loop {
        match timeout_at(until.into(), notifications.recv()).await {
            Ok(Ok(notification)) if notification.split(' ').nth(1) != Some(id) => {}
            Ok(Ok(_) | Err(RecvError::Lagged(_))) | Err(_) => return Ok(()),
            Ok(Err(RecvError::Closed)) => {
                return Err(SourceUnavailable::new("the connection broke"));
            }
        }
    }
}

fn to_limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
