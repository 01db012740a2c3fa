//! What this daemon has in PostgreSQL: a connection, which is opened again after each failure, and the
//! statements about one job.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use prost::Message as _;
use tokio::{sync::Mutex, time::timeout};
use tokio_postgres::{Row, types::ToSql};

use super::{
    connection::{
        CONNECT_TIMEOUT, PostgresConnection, PostgresConnector, PostgresSetupError,
        STATEMENT_TIMEOUT, broken,
    },
    job_row::{JobRow, columns},
};
use crate::{
    api::v1::{FleetJobRecord, FleetJobState, JobState},
    daemon::{
        config::{
            fleet::{FleetConfig, FleetQueueConfig},
            fleet_postgres::PostgresConfig,
        },
        fleet::{
            identity::FleetIdentity, in_flight::InFlightClaims, job_log::FleetJobLog,
            transition::is_claim_of, work_source::SourceUnavailable,
        },
        pipeline::access::principal::key_principal_name,
    },
};

/// Part of the lease that one attempt to renew it may take, so that several fit into it.
const ATTEMPT_FRACTION: u32 = 6;
/// The same for short leases.
const MIN_RENEWAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which the table is read again without a notification. Firewalls and proxies cut
/// connections that are idle for longer.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(15);

/// A claim of a job, `$1` and `$2` the time of the claim. While another session has it locked, the
/// statement fails at once: those that follow on the connection are about other claims.
macro_rules! is_claim {
    () => {
        is_claim!("FOR NO KEY UPDATE NOWAIT")
    };
    ($lock:literal) => {
        concat!(
            "id = (SELECT id FROM jig_jobs WHERE id = $1 AND state = 'claimed' AND claimed_at = $2 ",
            $lock,
            ")"
        )
    };
}
pub(super) use is_claim;

const FIND: &str = concat!("SELECT ", columns!(), " FROM jig_jobs WHERE id = $1");
/// `$3` seconds of the lease.
const RENEW: &str = concat!(
    "UPDATE jig_jobs SET lease_until = now() + make_interval(secs => $3) WHERE ",
    is_claim!(),
    " RETURNING cancel_requested"
);
/// The claim of a dead daemon, `$5` the end of its lease. It is not dead if the lease was renewed, and
/// may not be if the claim is locked.
macro_rules! is_expired_claim {
    () => {
        is_claim!("AND lease_until = $5 FOR NO KEY UPDATE SKIP LOCKED")
    };
}
/// Queues a job again: `$3` attempts that count, `$4` seconds of the delay, or NULL if the job keeps
/// its place in the queue.
macro_rules! requeue {
    ($is_claim:ident) => {
        concat!(
            "
    UPDATE jig_jobs SET state = 'queued', approval_id = '', claimed_by = NULL, claimed_start = '',
        lease_until = NULL, claimed_at = NULL,
        workspace = CASE WHEN any_workspace THEN '' ELSE workspace END, attempts = $3,
        not_before = coalesce(now() + make_interval(secs => $4), not_before)
    WHERE ",
            $is_claim!(),
            " RETURNING id"
        )
    };
}
/// Stores the end of a job: `$3` its outcome, `$4` its result.
macro_rules! end {
    ($is_claim:ident) => {
        concat!(
            "
    UPDATE jig_jobs SET state = 'ended', approval_id = '', lease_until = NULL, ended_at = now(),
        outcome = $3, result = $4
    WHERE ",
            $is_claim!(),
            " RETURNING id"
        )
    };
}

/// The part of the fleet that is in PostgreSQL.
#[derive(Debug)]
pub(crate) struct PostgresSession {
    connector: Arc<PostgresConnector>,
    connection: Mutex<Option<Arc<PostgresConnection>>>,
    pub(super) identity: FleetIdentity,
    /// The starts of this daemon whose claims are its own.
    pub(super) known_starts: Vec<String>,
    /// The queues of this daemon.
    pub(super) queues: Arc<[FleetQueueConfig]>,
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
        Ok(Arc::new(Self {
            connector: Arc::new(PostgresConnector::new(postgres, &name)?),
            connection: Mutex::default(),
            identity,
            known_starts,
            queues: config.queues.clone().into(),
            log,
            lease: config.lost_after,
            max_deliver: config.max_deliver,
            result_retention: config.result_retention,
            in_flight: Arc::default(),
        }))
    }

    /// The same with a connection of its own, for the calls of clients, or for the judgement. Their
    /// statements can wait for locks of other programs, which must delay only the same kind.
    pub(crate) fn with_own_connection(&self) -> Arc<Self> {
        Arc::new(Self {
            connector: Arc::clone(&self.connector),
            connection: Mutex::default(),
            identity: self.identity.clone(),
            known_starts: self.known_starts.clone(),
            queues: Arc::clone(&self.queues),
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

    /// Executes a statement, and returns its rows. It may be executed twice: only the statement shows
    /// that an idle connection was cut.
    pub(super) async fn query(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, SourceUnavailable> {
        self.query_within(STATEMENT_TIMEOUT, statement, parameters).await
    }

    async fn query_within(
        &self,
        limit: Duration,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, SourceUnavailable> {
        for _ in 0..2 {
            let rows = self.connection().await?.query(limit, statement, parameters).await?;
            if let Some(rows) = rows {
                return Ok(rows);
            }
        }
        Err(broken())
    }

    /// Finds the row of a job. One that has not ended gets the principal of its queue.
    pub(super) async fn find(&self, id: &str) -> Result<Option<JobRow>, SourceUnavailable> {
        self.query(FIND, &[&id]).await?.first().map(|row| self.read(row)).transpose()
    }

    pub(super) fn read(&self, row: &Row) -> Result<JobRow, SourceUnavailable> {
        let mut row = JobRow::read(row)?;
        if row.record.principal.is_empty() {
            let queue = self.queues.iter().find(|queue| queue.name == row.record.queue);
            let key = queue.and_then(|queue| queue.key.as_deref());
            row.record.principal = key.map(key_principal_name).unwrap_or_default();
        }
        Ok(row)
    }

    /// Whether a row is a claim of this daemon that its queue takes up, from any start.
    pub(super) fn is_resumed_here(&self, record: &FleetJobRecord) -> bool {
        record.state() == FleetJobState::Claimed
            && *record.daemon_id == *self.identity.daemon_id
            && self.known_starts.contains(&record.start_id)
            && self.is_served(&record.queue)
    }

    fn is_served(&self, queue: &str) -> bool {
        self.queues.iter().any(|served| served.name == queue)
    }

    /// Whether this daemon still has a claim of an earlier start, and its queue. Renews the lease.
    pub(crate) async fn has_claim(&self, id: &str, claim: &str) -> Result<bool, SourceUnavailable> {
        match self.find(id).await? {
            Some(row)
                if is_claim_of(&row.record, &self.identity.daemon_id, claim)
                    && self.is_served(&row.record.queue) =>
            {
                Ok(self.renew(&row).await?.is_some())
            }
            _ => Ok(false),
        }
    }

    /// Renews the lease of a claim. Returns whether the job is to be cancelled, or `None` if this daemon
    /// no longer has the claim.
    pub(super) async fn renew(&self, claim: &JobRow) -> Result<Option<bool>, SourceUnavailable> {
        let limit = (self.lease / ATTEMPT_FRACTION).clamp(MIN_RENEWAL_TIMEOUT, STATEMENT_TIMEOUT);
        let lease = self.lease.as_secs_f64();
        let parameters: [&(dyn ToSql + Sync); 3] = [&claim.id, &claim.claimed_at, &lease];
        let renewed = self.query_within(limit, RENEW, &parameters).await?;
        let is_cancelled = renewed.first().map(|row| row.try_get(0)).transpose();
        is_cancelled.map_err(SourceUnavailable::new)
    }

    /// Puts the job of a claim into the queue again. `counted` are the attempts that count. Returns
    /// false if the claim has ended.
    pub(super) async fn requeue(
        &self,
        claim: &JobRow,
        counted: u32,
        delay: Duration,
    ) -> Result<bool, SourceUnavailable> {
        let (counted, delay) = (to_integer(counted), delay.as_secs_f64());
        self.change_claim(requeue!(is_claim), claim, &[&counted, &delay]).await
    }

    /// The same for the claim of a dead daemon, whose lease ended at `lease_until`. Returns false if it
    /// may not be dead.
    pub(super) async fn requeue_expired(
        &self,
        claim: &JobRow,
        lease_until: SystemTime,
    ) -> Result<bool, SourceUnavailable> {
        let (attempts, delay) = (to_integer(claim.record.attempts), None::<f64>);
        let parameters: [&(dyn ToSql + Sync); 3] = [&attempts, &delay, &lease_until];
        self.change_claim(requeue!(is_expired_claim), claim, &parameters).await
    }

    /// Stores the end of a claim. Returns false if it has ended.
    pub(super) async fn end(
        &self,
        claim: &JobRow,
        ended: &FleetJobRecord,
    ) -> Result<bool, SourceUnavailable> {
        let (outcome, result) = encode_end(ended);
        self.change_claim(end!(is_claim), claim, &[&outcome, &result]).await
    }

    /// The same for the claim of a dead daemon, as above.
    pub(super) async fn end_expired(
        &self,
        claim: &JobRow,
        ended: &FleetJobRecord,
        lease_until: SystemTime,
    ) -> Result<bool, SourceUnavailable> {
        let (outcome, result) = encode_end(ended);
        let parameters: [&(dyn ToSql + Sync); 3] = [&outcome, &result, &lease_until];
        self.change_claim(end!(is_expired_claim), claim, &parameters).await
    }

    /// Executes a statement about a claim, `others` the parameters from `$3` on. Returns whether this
    /// daemon has it.
    async fn change_claim(
        &self,
        statement: &str,
        claim: &JobRow,
        others: &[&(dyn ToSql + Sync)],
    ) -> Result<bool, SourceUnavailable> {
        let claim: [&(dyn ToSql + Sync); 2] = [&claim.id, &claim.claimed_at];
        let parameters = [&claim, others].concat();
        Ok(!self.query(statement, &parameters).await?.is_empty())
    }
}

/// Returns the columns of an end: outcome and result.
fn encode_end(ended: &FleetJobRecord) -> (String, Vec<u8>) {
    let job = ended.job.clone().unwrap_or_default();
    (outcome(job.state()), job.encode_to_vec())
}

/// Name of the state of an ended job, in the column `outcome`.
fn outcome(state: JobState) -> String {
    state.as_str_name().trim_start_matches("JOB_STATE_").to_lowercase()
}

/// PostgreSQL has no unsigned numbers.
fn to_integer(count: u32) -> i32 {
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
