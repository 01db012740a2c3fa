//! One queue of the fleet in PostgreSQL: claims rows, and waits for new ones.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::time::{sleep, sleep_until};
use tokio_postgres::types::ToSql;
use tokio_util::sync::CancellationToken;

use super::{
    claimed_row::PostgresClaim,
    connection::{STATEMENT_TIMEOUT, broken},
    job_row::{JobRow, columns},
    session::{MAX_WAIT, PostgresSession},
};
use crate::{
    api::v1::FleetJobRecord,
    daemon::{
        config::fleet::FleetQueueConfig,
        error::Reason,
        fleet::{
            counts::FleetQueueState,
            failure::{exhausted_error, failed},
            record_job::cancelled_in_queue,
            work_source::{ClaimedWork, PlacedWork, SourceUnavailable, WorkSource},
        },
        task::BoxFuture,
    },
};

/// Time between two claims while rows are due that another daemon has locked, and after the
/// connection was cut.
const MIN_WAIT: Duration = Duration::from_millis(200);
/// Part of the lease after which claims that the daemon does not keep are looked for again, and the
/// longest time. Sooner than other daemons look for dead ones.
const RESUME_FRACTION: u32 = 6;
const MAX_RESUME_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of the requests that one statement reads, beside the first one. A slow link must not exceed the
/// time limit of a statement.
const MAX_CLAIMED_BYTES: i64 = 256 << 10;

/// Claims due rows: `$1` queue, `$2` workspaces, `$3` count, `$4` daemon, `$5` its start, `$6` seconds
/// of the lease, `$7` bytes, without `$8` jobs that the daemon runs. By workspace, so that rows of
/// others, which can be many, are not read. Materialized, so that the limit holds. Foreign keys of
/// other tables lock rows for shares of their keys, which must not delay them.
const CLAIM: &str = concat!(
    "
    WITH due AS MATERIALIZED (
        SELECT found.id AS due_id, row_number() OVER in_order AS place,
            sum(found.size) OVER in_order AS bytes
        FROM unnest($2::text[] || ''::text) AS served (name),
            LATERAL (
                SELECT id, not_before, octet_length(request) AS size FROM jig_jobs
                WHERE queue = $1 AND workspace = served.name AND state = 'queued'
                    AND not_before <= now() AND id <> ALL($8)
                ORDER BY not_before, id LIMIT $3
                FOR NO KEY UPDATE SKIP LOCKED) AS found
        WINDOW in_order AS (ORDER BY found.not_before, found.id))
    UPDATE jig_jobs SET state = 'claimed', claimed_by = $4, claimed_start = $5,
        claimed_at = now(), lease_until = now() + make_interval(secs => $6),
        workspace = coalesce(nullif(workspace, ''), ($2::text[])[1]), attempts = attempts + 1
    WHERE id = ANY (ARRAY(
        SELECT due_id FROM due WHERE place <= $3 AND (place = 1 OR bytes <= $7)))
    RETURNING ",
    columns!()
);
/// Takes up the claims in `$1` queue of `$2` daemon, `$3` its starts, without `$4` jobs that it runs:
/// `$5` start, `$6` seconds of the lease. Other starts with its name are other daemons. What another
/// session has locked must not keep the daemon from the rest.
///
/// Takes up those that `$7` bytes have room for: they are in progress before the next. Of the others, it
/// renews those with less than half of their lease.
const RESUME: &str = concat!(
    "
    WITH own AS MATERIALIZED (
        SELECT id AS own_id, claimed_start AS resumed_from, octet_length(request) AS size
        FROM jig_jobs
        WHERE queue = $1 AND state = 'claimed'
            AND claimed_by = $2 AND claimed_start = ANY($3) AND id <> ALL($4)
        FOR NO KEY UPDATE SKIP LOCKED),
    placed AS (
        SELECT own_id, resumed_from,
            row_number() OVER in_order = 1 OR sum(size) OVER in_order <= $7 AS is_next
        FROM own WINDOW in_order AS (ORDER BY own_id)),
    resumed AS (
        UPDATE jig_jobs SET lease_until = now() + make_interval(secs => $6), approval_id = '',
            claimed_start = CASE WHEN is_next THEN $5 ELSE claimed_start END
        FROM placed WHERE id = own_id
            AND (is_next OR lease_until < now() + make_interval(secs => $6::float8 / 2))
        RETURNING jig_jobs.*, resumed_from, is_next)
    SELECT resumed_from, ",
    columns!(),
    " FROM resumed WHERE is_next"
);
/// Seconds until the next job is due, without `$3` jobs that this daemon runs.
const NEXT_DUE: &str = "
    SELECT extract(epoch FROM min(found.not_before) - now())::float8
    FROM unnest($2::text[] || ''::text) AS served (name),
        LATERAL (
            SELECT min(not_before) AS not_before FROM jig_jobs
            WHERE queue = $1 AND workspace = served.name AND state = 'queued'
                AND id <> ALL($3)) AS found";

/// A queue, as this daemon takes jobs from it.
#[derive(Debug)]
pub(crate) struct PostgresQueue {
    session: Arc<PostgresSession>,
    queue: FleetQueueConfig,
    /// When it looks again for claims that the daemon does not keep.
    next_resume: Mutex<Instant>,
}

type Claims = Vec<Box<dyn ClaimedWork>>;

impl PostgresQueue {
    pub(crate) fn new(session: Arc<PostgresSession>, queue: FleetQueueConfig) -> Self {
        Self { session, queue, next_resume: Mutex::new(Instant::now()) }
    }

    async fn claim_rows(
        &self,
        places: &Arc<FleetQueueState>,
        stop: &CancellationToken,
    ) -> Result<Vec<PlacedWork>, SourceUnavailable> {
        while !stop.is_cancelled() {
            let next_resume = *self.next_resume.lock().unwrap_or_else(PoisonError::into_inner);
            tokio::select! {
                biased;
                () = stop.cancelled() => continue,
                () = sleep_until(next_resume.into()) => {
                    let resumed = self.resume_claims().await?;
                    if resumed.is_empty() {
                        continue;
                    }
                    return Ok(resumed.into_iter().map(|work| (work, places.take_place())).collect());
                }
                () = places.wait_for_places(true) => {}
            }
            let taken = places.take_places(usize::MAX);
            if taken.is_empty() {
                continue;
            }
            // Before the table is read, so that no job is missed.
            let mut notifications = self.session.connection().await?.subscribe()?;
            let (found, claims) = self.claim_due(taken.len()).await?;
            if !claims.is_empty() {
                return Ok(claims.into_iter().zip(taken).collect());
            }
            drop(taken);
            // All were invalid: there may be more.
            if found > 0 {
                continue;
            }

            let delay = self.next_due().await?;
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = sleep(delay) => {}
                () = sleep_until(next_resume.into()) => {}
                is_new = notifications.wait_for(|notified| {
                    let name = &self.queue.name;
                    notified.is_queued && notified.queue.is_none_or(|queue| queue == name)
                }) => {
                    if !is_new {
                        // The connection was cut, as those of idle sessions are.
                        sleep(MIN_WAIT).await;
                    }
                }
            }
        }
        Ok(Vec::new())
    }

    /// Claims at most `max` of the jobs that are due. Returns how many rows it has found too.
    async fn claim_due(&self, max: usize) -> Result<(usize, Claims), SourceUnavailable> {
        let PostgresSession { identity, in_flight, lease, .. } = &*self.session;
        let FleetQueueConfig { name, workspaces, .. } = &self.queue;
        let (daemon_id, start_id): (&str, &str) = (&identity.daemon_id, &identity.start_id);
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let (lease, running) = (lease.as_secs_f64(), in_flight.all());
        let parameters: [&(dyn ToSql + Sync); 8] =
            [name, workspaces, &max, &daemon_id, &start_id, &lease, &MAX_CLAIMED_BYTES, &running];
        // Not repeated: rows of an answer that was lost are resumed.
        let connection = self.session.connection().await?;
        let rows = connection.query(STATEMENT_TIMEOUT, CLAIM, &parameters).await?;
        let rows = rows.ok_or_else(broken)?;
        let mut claims = Vec::new();
        for row in &rows {
            let row = self.session.read(row)?;
            if row.is_cancelled {
                // Its cancellation came when another daemon gave it back.
                self.end(&row, &cancelled_in_queue(&row.id, &row.record), None).await?;
            } else {
                claims.extend(self.build_claim(row, None).await?);
            }
        }
        Ok((rows.len(), claims))
    }

    /// Takes up some of the claims that this daemon has and does not keep: of an earlier start, of an
    /// answer that was lost, or of a job whose end the server has lost. The database of the daemon says
    /// what became of their jobs.
    async fn resume_claims(&self) -> Result<Claims, SourceUnavailable> {
        let PostgresSession { identity, in_flight, known_starts, lease, .. } = &*self.session;
        let (daemon_id, start_id): (&str, &str) = (&identity.daemon_id, &identity.start_id);
        let (name, running) = (&self.queue.name, in_flight.all());
        let lease_secs = lease.as_secs_f64();
        let parameters: [&(dyn ToSql + Sync); 7] =
            [name, &daemon_id, known_starts, &running, &start_id, &lease_secs, &MAX_CLAIMED_BYTES];
        let rows = self.session.query(RESUME, &parameters).await?;
        let mut claims = Vec::new();
        for row in &rows {
            let resumed_from = row.try_get("resumed_from").map_err(SourceUnavailable::new)?;
            claims.extend(self.build_claim(self.session.read(row)?, Some(resumed_from)).await?);
        }

        // There may be more.
        let interval = if rows.is_empty() {
            (*lease / RESUME_FRACTION).min(MAX_RESUME_INTERVAL)
        } else {
            Duration::ZERO
        };
        *self.next_resume.lock().unwrap_or_else(PoisonError::into_inner) =
            Instant::now() + interval;
        Ok(claims)
    }

    /// Builds the claim of a row. An invalid job fails instead.
    async fn build_claim(
        &self,
        mut row: JobRow,
        resumed_from: Option<String>,
    ) -> Result<Option<Box<dyn ClaimedWork>>, SourceUnavailable> {
        let earlier = row.record.attempts.saturating_sub(1);
        let work = if earlier >= self.session.max_deliver {
            Err(exhausted_error(earlier))
        } else {
            row.take_work(&self.queue, resumed_from)
        };
        match work {
            Ok(work) => Ok(self.session.in_flight.begin(&row.id).map(|in_flight| {
                let session = Arc::clone(&self.session);
                Box::new(PostgresClaim::new(session, work, row, in_flight)) as Box<dyn ClaimedWork>
            })),
            Err(error) => {
                let reason = error.reason.name();
                tracing::warn!(%error, reason, job = row.id, "rejected a row of the fleet");
                let failed = failed(&row.id, &row.record, &error);
                self.end(&row, &failed, Some(error.reason)).await?;
                Ok(None)
            }
        }
    }

    /// Ends a job that this daemon has claimed and does not run. `reason`: why it is rejected.
    async fn end(
        &self,
        claim: &JobRow,
        ended: &FleetJobRecord,
        reason: Option<Reason>,
    ) -> Result<(), SourceUnavailable> {
        if self.session.end(claim, ended).await? {
            self.session.log.report_end(&claim.id, ended, reason);
        }
        Ok(())
    }

    /// How long to wait without a notification.
    async fn next_due(&self) -> Result<Duration, SourceUnavailable> {
        let FleetQueueConfig { name, workspaces, .. } = &self.queue;
        let running = self.session.in_flight.all();
        let rows = self.session.query(NEXT_DUE, &[name, workspaces, &running]).await?;
        let delay: Option<f64> = rows.first().and_then(|row| row.try_get(0).ok()?);
        let delay = delay.and_then(|secs| Duration::try_from_secs_f64(secs.max(0.0)).ok());
        Ok(delay.unwrap_or(MAX_WAIT).clamp(MIN_WAIT, MAX_WAIT))
    }
}

impl WorkSource for PostgresQueue {
    fn resume(&self) -> BoxFuture<'_, Result<Claims, SourceUnavailable>> {
        Box::pin(self.resume_claims())
    }

    fn claim<'a>(
        &'a self,
        places: &'a Arc<FleetQueueState>,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Vec<PlacedWork>, SourceUnavailable>> {
        Box::pin(self.claim_rows(places, stop))
    }
}
