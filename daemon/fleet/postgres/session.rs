//! What this daemon has in PostgreSQL: a connection, which is opened again after each failure, and the
//! statements that several parts use.

use std::{sync::Arc, time::Duration};

use prost::Message as _;
use tokio::{
    sync::Mutex,
    time::{sleep, timeout},
};
use tokio_postgres::{Row, types::ToSql};
use tokio_util::sync::CancellationToken;

use super::{
    connection::{
        CONNECT_TIMEOUT, PostgresConnection, PostgresConnector, PostgresSetupError,
        STATEMENT_TIMEOUT,
    },
    job_row::{JobRow, columns},
    reachability::Reachability,
};
use crate::{
    api::v1::{FleetJobRecord, JobState},
    daemon::{
        config::{fleet::FleetConfig, fleet_postgres::PostgresConfig},
        fleet::{
            backoff::retry,
            identity::FleetIdentity,
            in_flight::InFlightClaims,
            job_log::FleetJobLog,
            transition::{ended, is_claim_of, may_run_again},
            work_source::{JobEnd, SourceUnavailable},
        },
    },
};

/// Part of the lease after which it is renewed.
pub(super) const RENEWAL_FRACTION: u32 = 3;
/// Part of the lease that one attempt to renew it may take, so that several fit into it.
const ATTEMPT_FRACTION: u32 = 6;
/// The same for short leases.
const MIN_RENEWAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which the table is read again without a notification. Firewalls and proxies cut
/// connections that are idle for longer.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(15);
/// Delay before an attempt that has failed is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

const FIND: &str = concat!("SELECT ", columns!(), " FROM jig_jobs WHERE id = $1");
/// `$2` daemon, `$3` attempts, `$4` start, `$5` seconds of the lease.
const RENEW: &str = "
    UPDATE jig_jobs SET lease_until = now() + make_interval(secs => $5)
    WHERE id = $1 AND state = 'claimed' AND claimed_by = $2 AND attempts = $3
        AND claimed_start = $4
    RETURNING cancel_requested";
/// Queues a job again: `$2` daemon, `$3` attempts, `$4` start, `$5` attempts that count, `$6` seconds of the delay.
const REQUEUE: &str = "
    UPDATE jig_jobs SET state = 'queued', approval_id = '', claimed_by = NULL, claimed_start = '',
        lease_until = NULL, claimed_at = NULL,
        workspace = CASE WHEN any_workspace THEN '' ELSE workspace END,
        attempts = $5, not_before = now() + make_interval(secs => $6)
    WHERE id = $1 AND state = 'claimed' AND claimed_by = $2 AND attempts = $3
        AND claimed_start = $4
    RETURNING id";
/// Ends a claim. `$6`: whether only if its lease has ended. `$7`: its start.
const END: &str = "
    UPDATE jig_jobs SET state = 'ended', approval_id = '', lease_until = NULL, ended_at = now(), outcome = $4,
        result = $5
    WHERE id = $1 AND state = 'claimed' AND claimed_by = $2 AND attempts = $3
        AND claimed_start = $7 AND (NOT $6 OR lease_until < now())
    RETURNING id";

/// The part of the fleet that is in PostgreSQL.
#[derive(Debug)]
pub(crate) struct PostgresSession {
    connector: Arc<PostgresConnector>,
    connection: Mutex<Option<Arc<PostgresConnection>>>,
    pub(super) identity: FleetIdentity,
    /// The starts of this daemon whose claims are its own.
    pub(super) known_starts: Vec<String>,
    pub(super) log: Arc<FleetJobLog>,
    /// Time after which a claim that is not renewed belongs to a dead daemon.
    pub(super) lease: Duration,
    pub(super) max_deliver: u32,
    pub(super) result_retention: Duration,
    pub(super) in_flight: Arc<InFlightClaims>,
}

impl PostgresSession {
    /// Does not connect yet. `known_starts` are those whose jobs the database of this daemon has.
    pub(crate) fn new(
        config: &FleetConfig,
        postgres: &PostgresConfig,
        identity: FleetIdentity,
        known_starts: Vec<String>,
        log: Arc<FleetJobLog>,
    ) -> Result<Arc<Self>, PostgresSetupError> {
        let name = format!("jigd {}", identity.daemon_id);
        let reachability = Reachability::new(config.lost_after);
        Ok(Arc::new(Self {
            connector: Arc::new(PostgresConnector::new(postgres, &name, reachability)?),
            connection: Mutex::default(),
            identity,
            known_starts,
            log,
            lease: config.lost_after,
            max_deliver: config.max_deliver,
            result_retention: config.result_retention,
            in_flight: Arc::default(),
        }))
    }

    /// The same with a connection of its own, for the calls of clients. Their statements can wait for
    /// locks of other programs, which must not delay the renewal of claims.
    pub(super) fn with_own_connection(&self) -> Arc<Self> {
        Arc::new(Self {
            connector: Arc::clone(&self.connector),
            connection: Mutex::default(),
            identity: self.identity.clone(),
            known_starts: self.known_starts.clone(),
            log: Arc::clone(&self.log),
            in_flight: Arc::clone(&self.in_flight),
            ..*self
        })
    }

    /// Returns the connection. Connects if there is none.
    pub(super) async fn connection(&self) -> Result<Arc<PostgresConnection>, SourceUnavailable> {
        let connect = async {
            let mut current = self.connection.lock().await;
            if let Some(connection) = &*current
                && !connection.is_closed()
            {
                return Ok(Arc::clone(connection));
            }
            let connection = Arc::new(self.connector.connect().await?);
            *current = Some(Arc::clone(&connection));
            Ok(connection)
        };
        timeout(CONNECT_TIMEOUT, connect).await.map_err(SourceUnavailable::new)?
    }

    /// Executes a statement, and returns its rows.
    pub(super) async fn query(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, SourceUnavailable> {
        self.connection().await?.query(statement, parameters).await
    }

    /// Executes a statement that changes rows, or can, and returns its rows.
    pub(super) async fn change(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, SourceUnavailable> {
        self.connection().await?.change(statement, parameters).await
    }

    pub(super) fn reachability(&self) -> &Reachability {
        &self.connector.reachability
    }

    pub(super) async fn find(&self, id: &str) -> Result<Option<JobRow>, SourceUnavailable> {
        self.query(FIND, &[&id]).await?.first().map(JobRow::read).transpose()
    }

    /// Renews the lease of a claim. Returns whether the job is to be cancelled, or `None` if this daemon
    /// has the claim no more.
    pub(super) async fn renew(
        &self,
        id: &str,
        claim: &FleetJobRecord,
    ) -> Result<Option<bool>, SourceUnavailable> {
        let FleetJobRecord { daemon_id, start_id, attempts, .. } = claim;
        let limit = (self.lease / ATTEMPT_FRACTION).clamp(MIN_RENEWAL_TIMEOUT, STATEMENT_TIMEOUT);
        let (attempts, lease) = (to_integer(*attempts), self.lease.as_secs_f64());
        let parameters: [&(dyn ToSql + Sync); 5] = [&id, daemon_id, &attempts, start_id, &lease];
        let connection = self.connection().await?;
        let renewed = connection.change_within(limit, RENEW, &parameters).await?;
        let is_cancelled = renewed.first().map(|row| row.try_get(0)).transpose();
        is_cancelled.map_err(SourceUnavailable::new)
    }

    /// Keeps the claim of a job of an earlier start, for which its queue may have no place. Returns when
    /// the job is to be cancelled.
    pub(crate) async fn keep_claim(&self, id: &str, claim: &str) {
        loop {
            let delay = match self.renew_earlier(id, claim).await {
                Ok(Some(true)) => return,
                Ok(_) => self.lease / RENEWAL_FRACTION,
                Err(error) => {
                    tracing::warn!(%error, job = id, "cannot keep the claim of a fleet job");
                    RETRY_INTERVAL
                }
            };
            sleep(delay).await;
        }
    }

    async fn renew_earlier(
        &self,
        id: &str,
        claim: &str,
    ) -> Result<Option<bool>, SourceUnavailable> {
        match self.find(id).await? {
            Some(JobRow { record, .. })
                if is_claim_of(&record, &self.identity.daemon_id, claim) =>
            {
                self.renew(id, &record).await
            }
            _ => Ok(None),
        }
    }

    /// Stores the end of a job of an earlier start, if this daemon has its claim still. Returns
    /// whether it has the claim no more.
    pub(crate) async fn settle(
        &self,
        id: &str,
        claim: &str,
        end: &JobEnd,
        stop: &CancellationToken,
    ) -> bool {
        let settled = retry(stop, id, "settle a fleet job", || self.try_settle(id, claim, end));
        settled.await.unwrap_or(false)
    }

    async fn try_settle(
        &self,
        id: &str,
        claim: &str,
        end: &JobEnd,
    ) -> Result<bool, SourceUnavailable> {
        // Otherwise the queue has it, and settles it.
        let Some(_in_flight) = self.in_flight.begin(id) else { return Ok(false) };
        let JobEnd { job, stopped_by_shutdown, .. } = end;
        let is_stopped = job.state() == JobState::Lost || *stopped_by_shutdown;
        loop {
            let Some(JobRow { record, .. }) = self.find(id).await? else { return Ok(true) };
            if !is_claim_of(&record, &self.identity.daemon_id, claim) {
                return Ok(true);
            }
            if is_stopped && may_run_again(&record, self.max_deliver) {
                if self.requeue(id, &record, record.attempts, Duration::ZERO).await? {
                    self.log.report_release(id, &record, &job.job_id);
                    return Ok(true);
                }
            } else {
                let ended = ended(id, &record, job.clone());
                if self.end(id, &record, &ended, false).await? {
                    self.log.report_end(id, &ended, None);
                    return Ok(true);
                }
            }
            // The queue has made it a claim of this start meanwhile, or another daemon has it.
        }
    }

    /// Whether this daemon has a claim still.
    pub(crate) async fn has_claim(&self, id: &str, claim: &str) -> Result<bool, SourceUnavailable> {
        let found = self.find(id).await?;
        Ok(found.is_some_and(|found| is_claim_of(&found.record, &self.identity.daemon_id, claim)))
    }

    /// Puts the job of a claim into the queue again. `counted` are the attempts that count. Returns
    /// false if another daemon has the job, or it has ended.
    pub(super) async fn requeue(
        &self,
        id: &str,
        claim: &FleetJobRecord,
        counted: u32,
        delay: Duration,
    ) -> Result<bool, SourceUnavailable> {
        let FleetJobRecord { daemon_id, start_id, attempts, .. } = claim;
        let (attempts, counted) = (to_integer(*attempts), to_integer(counted));
        let delay = delay.as_secs_f64();
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&id, daemon_id, &attempts, start_id, &counted, &delay];
        Ok(!self.change(REQUEUE, &parameters).await?.is_empty())
    }

    /// Stores the end of a claim, unless it is one no more. `only_if_expired`: unless its lease was
    /// renewed.
    pub(super) async fn end(
        &self,
        id: &str,
        claim: &FleetJobRecord,
        ended: &FleetJobRecord,
        only_if_expired: bool,
    ) -> Result<bool, SourceUnavailable> {
        let job = ended.job.clone().unwrap_or_default();
        let (outcome, result) = (outcome(job.state()), job.encode_to_vec());
        let attempts = to_integer(claim.attempts);
        let rows = self
            .change(
                END,
                &[
                    &id,
                    &claim.daemon_id,
                    &attempts,
                    &outcome,
                    &result,
                    &only_if_expired,
                    &claim.start_id,
                ],
            )
            .await?;
        Ok(!rows.is_empty())
    }
}

/// Name of the state of an ended job, in the column `outcome`.
pub(super) fn outcome(state: JobState) -> String {
    state.as_str_name().trim_start_matches("JOB_STATE_").to_lowercase()
}

/// PostgreSQL has no unsigned numbers.
pub(super) fn to_integer(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_words() {
        assert_eq!(outcome(JobState::Succeeded), "succeeded");
        assert_eq!(outcome(JobState::Lost), "lost");
    }
}
