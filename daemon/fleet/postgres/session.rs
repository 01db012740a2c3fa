//! What this daemon has in PostgreSQL: a connection, which is opened again after each failure, and the
//! statements that several parts use.

use std::{sync::Arc, time::Duration};

use prost::Message as _;
use tokio::{sync::Mutex, time::timeout};
use tokio_postgres::{Row, types::ToSql};

use super::{
    connection::{CONNECT_TIMEOUT, PostgresConnection, PostgresConnector, PostgresSetupError},
    job_row::JobRow,
    reachability::Reachability,
};
use crate::{
    api::v1::{FleetJobRecord, JobState},
    daemon::{
        config::{fleet::FleetConfig, fleet_postgres::PostgresConfig},
        fleet::{
            identity::FleetIdentity, in_flight::InFlightClaims, job_log::FleetJobLog,
            transition::is_claim_of, work_source::SourceUnavailable,
        },
    },
};

const FIND: &str = "SELECT * FROM jig_jobs WHERE id = $1";
/// Ends a claim. `$6`: whether only if its lease has ended.
const END: &str = "
    UPDATE jig_jobs SET state = 'ended', approval_id = '', lease_until = NULL, ended_at = now(), outcome = $4,
        result = $5
    WHERE id = $1 AND state = 'claimed' AND claimed_by = $2 AND attempts = $3
        AND (NOT $6 OR lease_until < now())
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

    /// Whether this daemon has a claim still.
    pub(crate) async fn has_claim(&self, id: &str, claim: &str) -> Result<bool, SourceUnavailable> {
        let found = self.find(id).await?;
        Ok(found.is_some_and(|found| is_claim_of(&found.record, &self.identity.daemon_id, claim)))
    }

    /// Whether a claim is one of this daemon, by a start whose jobs its database has. Otherwise it may
    /// be that of another daemon with the same name.
    pub(super) fn is_own_claim(&self, claim: &FleetJobRecord) -> bool {
        *claim.daemon_id == *self.identity.daemon_id && self.known_starts.contains(&claim.start_id)
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
            .change(END, &[&id, &claim.daemon_id, &attempts, &outcome, &result, &only_if_expired])
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
