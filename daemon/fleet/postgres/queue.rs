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
    job_row::JobRow,
    session::{PostgresSession, to_integer},
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

/// Time after which the table is read again without a notification. Firewalls and proxies cut
/// connections that are idle for longer.
const MAX_WAIT: Duration = Duration::from_secs(15);
/// The same as a part of the lease: the judgement of other daemons needs to know of outages.
const WAIT_FRACTION: u32 = 4;
/// Time between two claims while rows are due that another daemon has locked, and after the
/// connection was cut.
const MIN_WAIT: Duration = Duration::from_millis(200);

/// Claims due rows: `$1` queue, `$2` workspaces, `$3` count, `$4` daemon, `$5` seconds of the lease,
/// `$6` start. Materialized, so that the limit holds.
const CLAIM_QUEUED: &str = "
    WITH due AS MATERIALIZED (
        SELECT id FROM jig_jobs
        WHERE queue = $1 AND state = 'queued' AND not_before <= now()
            AND (workspace = '' OR workspace = ANY($2))
        ORDER BY not_before, id LIMIT $3 FOR UPDATE SKIP LOCKED)
    UPDATE jig_jobs AS job SET state = 'claimed', claimed_by = $4, claimed_start = $6,
        claimed_at = now(),
        lease_until = now() + make_interval(secs => $5),
        workspace = coalesce(nullif(job.workspace, ''), ($2::text[])[1]),
        attempts = job.attempts + 1
    FROM due WHERE job.id = due.id
    RETURNING job.*";
/// Finds the claims that this daemon had before, and those of dead daemons: `$3` daemon, `$4` jobs
/// that it runs, `$5` whether others may be dead, `$6` count, `$7` starts of this daemon. Other starts
/// with its name are other daemons. Jobs that may run in any workspace are those of every daemon.
const FIND_CLAIMED: &str = "
    SELECT * FROM jig_jobs
    WHERE queue = $1 AND state = 'claimed'
        AND ((claimed_by = $3 AND claimed_start = ANY($7) AND id <> ALL($4)
                AND workspace = ANY($2))
            OR ((claimed_by <> $3 OR claimed_start <> ALL($7)) AND $5 AND lease_until < now()
                AND (any_workspace OR workspace = ANY($2))))
    ORDER BY lease_until LIMIT $6";
/// Makes a found claim one of this daemon: `$2` daemon, `$3` attempts and `$4` start of the found one,
/// `$5` daemon, `$6` start, `$7` seconds of the lease, `$8` whether the found one is of this daemon,
/// `$9` workspaces.
const TAKE_CLAIMED: &str = "
    UPDATE jig_jobs SET claimed_by = $5, claimed_start = $6, approval_id = '',
        lease_until = now() + make_interval(secs => $7),
        claimed_at = CASE WHEN $8 THEN claimed_at ELSE now() END,
        workspace = CASE WHEN $8 OR NOT any_workspace THEN workspace ELSE ($9::text[])[1] END,
        attempts = attempts + CASE WHEN $8 THEN 0 ELSE 1 END
    WHERE id = $1 AND state = 'claimed' AND claimed_by = $2 AND attempts = $3
        AND claimed_start = $4 AND ($8 OR lease_until < now())
    RETURNING *";
/// Seconds until the next job is due, and until the next lease of another daemon ends: `$3` daemon,
/// `$4` its starts.
const NEXT_DUE: &str = "
    SELECT
        extract(epoch FROM (
            SELECT min(not_before) FROM jig_jobs
            WHERE queue = $1 AND state = 'queued' AND (workspace = '' OR workspace = ANY($2))
        ) - now())::float8,
        extract(epoch FROM (
            SELECT min(lease_until) FROM jig_jobs
            WHERE queue = $1 AND state = 'claimed' AND (any_workspace OR workspace = ANY($2))
                AND (claimed_by <> $3 OR claimed_start <> ALL($4))
        ) - now())::float8";

/// A queue, as this daemon takes jobs from it.
#[derive(Debug)]
pub(crate) struct PostgresQueue {
    session: Arc<PostgresSession>,
    queue: FleetQueueConfig,
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
        Self { session, queue }
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

    /// Claims at most `max` of the jobs that there are, those of dead daemons first.
    async fn claim_present(
        &self,
        connection: &PostgresConnection,
        max: usize,
    ) -> Result<ClaimedRows, SourceUnavailable> {
        let mut claimed = ClaimedRows::default();
        self.claim_claimed(connection, max, &mut claimed).await?;
        let missing = max - claimed.claims.len();
        if missing > 0 {
            let queued = self.claim_queued(connection, missing, &mut claimed).await;
            if let Err(error) = queued
                && claimed.claims.is_empty()
            {
                return Err(error);
            }
        }
        Ok(claimed)
    }

    async fn claim_queued(
        &self,
        connection: &PostgresConnection,
        max: usize,
        claimed: &mut ClaimedRows,
    ) -> Result<(), SourceUnavailable> {
        let PostgresSession { identity, lease, .. } = &*self.session;
        let (name, workspaces) = (&self.queue.name, &self.queue.workspaces);
        let (max, lease) = (to_limit(max), lease.as_secs_f64());
        let (daemon_id, start_id): (&str, &str) = (&identity.daemon_id, &identity.start_id);
        let rows = connection
            .change(CLAIM_QUEUED, &[name, workspaces, &max, &daemon_id, &lease, &start_id])
            .await?;
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

    /// Takes over claims of dead daemons, and claims that this one had before it was restarted. Jobs
    /// that must not run again are lost.
    async fn claim_claimed(
        &self,
        connection: &PostgresConnection,
        max: usize,
        claimed: &mut ClaimedRows,
    ) -> Result<(), SourceUnavailable> {
        let PostgresSession { identity, lease, in_flight, known_starts, .. } = &*self.session;
        let (name, workspaces) = (&self.queue.name, &self.queue.workspaces);
        let (max, lease) = (to_limit(max), lease.as_secs_f64());
        let (daemon_id, start_id): (&str, &str) = (&identity.daemon_id, &identity.start_id);
        let running = in_flight.all();
        let can_judge = self.can_judge();
        let parameters: [&(dyn ToSql + Sync); 7] =
            [name, workspaces, &daemon_id, &running, &can_judge, &max, known_starts];
        let found = connection.query(FIND_CLAIMED, &parameters).await?;
        // Leases may have ended while the server did not answer.
        let can_judge = self.can_judge();
        for row in found {
            let JobRow { id, record, .. } = JobRow::read(&row)?;
            let is_mine = self.session.is_own_claim(&record);
            if !is_mine && !can_judge {
                continue;
            }
            if !is_mine && !self.take_over(&id, &record).await? {
                claimed.any_changed = true;
                continue;
            }
            let attempts = to_integer(record.attempts);
            let FleetJobRecord { daemon_id: found_daemon, start_id: found_start, .. } = &record;
            let parameters: [&(dyn ToSql + Sync); 9] = [
                &id,
                found_daemon,
                &attempts,
                found_start,
                &daemon_id,
                &start_id,
                &lease,
                &is_mine,
                workspaces,
            ];
            let taken = connection.change(TAKE_CLAIMED, &parameters).await;
            let taken = taken.inspect_err(|_| self.session.reachability().reset())?;
            // Otherwise another daemon was faster, or the first one is alive.
            if let Some(row) = taken.first() {
                claimed.any_changed = true;
                let resumed_from = is_mine.then(|| found_start.clone());
                claimed.claims.extend(self.build_claim(JobRow::read(row)?, resumed_from).await?);
            }
        }
        Ok(())
    }

    /// Whether the job of a dead daemon may run again. Ends it as lost if not.
    async fn take_over(
        &self,
        id: &str,
        record: &FleetJobRecord,
    ) -> Result<bool, SourceUnavailable> {
        let runs_again = may_run_again(record, self.session.max_deliver);
        tracing::warn!(
            job = id,
            daemon = record.daemon_id,
            attempts = record.attempts,
            runs_again,
            "the daemon of a fleet job is dead"
        );
        if !runs_again {
            let record = &self.with_principal(record.clone());
            let lost = lost(id, record);
            let is_ended = self.session.end(id, record, &lost, true).await;
            if is_ended.inspect_err(|_| self.session.reachability().reset())? {
                self.session.log.report_end(id, &lost, Some(Reason::DaemonLost));
            }
        }
        Ok(runs_again)
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
        let lease_delay = delay(1).map(|delay| delay.max(self.time_until_judge()));
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
