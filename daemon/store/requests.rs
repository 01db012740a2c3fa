//! The table of idempotency keys (request ids): which calls used them, and their replies.
//!
//! A repeated call finds the first one's reply, even after a restart.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use sha2::{Digest as _, Sha256};
use ulid::Ulid;

use super::{
    database::{Database, DatabaseError},
    retention::rows::{ExcessRows, RetainedTable, RetentionLimits, RetentionTrigger},
    unix_millis,
};

/// A reply of up to this many bytes is stored in less time than a change of threads takes.
const BRIEF_REPLY_BYTES: usize = 64 << 10;

// The columns `answer` and `answer_bytes` hold the reply.
const TABLE: RetainedTable = RetainedTable { name: "request", bytes_column: "answer_bytes" };

#[derive(Debug, Clone)]
pub(crate) struct RequestTable {
    database: Database,
    /// A ULID that identifies this generation: the time from a start of the daemon to its end.
    generation: String,
    salt: [u8; 32],
    limits: RetentionLimits,
    retention_trigger: Arc<RetentionTrigger>,
}

/// The scope of a request id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RequestKey {
    pub(crate) principal: String,
    pub(crate) workspace: String,
    pub(crate) id: String,
    /// Distinguishes the caller from an earlier one of the same principal name.
    pub(crate) key_fingerprint: KeyFingerprint,
}

/// Salted hash of a caller's API key, made by [`RequestTable::key_fingerprint`]. Empty for callers
/// without a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct KeyFingerprint(Vec<u8>);

/// What a request id was used for. A repeated call must have the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestIdentity {
    /// The RPC method or tool.
    pub(crate) method: String,
    pub(crate) session: String,
    /// Of the request message, made by [`RequestTable::fingerprint`].
    pub(crate) fingerprint: [u8; 32],
}

/// The state of a known request id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RecordState {
    /// The call has a reply.
    Completed {
        request: RequestIdentity,
        /// As given to [`RequestTable::complete`].
        reply: Bytes,
        /// Whether it was completed since the daemon started.
        is_current_generation: bool,
    },
    /// It was claimed and has no reply. The daemon died during the call or could not store the
    /// reply. Or the call is still running; only the holder of the claim knows that.
    Incomplete {
        request: RequestIdentity,
        /// The step of the session, if the call got that far.
        step: Option<u64>,
    },
    /// The call was completed, and its reply has been evicted.
    Evicted {
        request: RequestIdentity,
        /// The step of the session, if it is known.
        step: Option<u64>,
    },
}

impl RequestTable {
    /// Creates the table's interface; `limits` apply to completed calls.
    pub(crate) async fn open(
        database: Database,
        limits: RetentionLimits,
    ) -> Result<Self, DatabaseError> {
        let salt = |connection: &Connection| {
            connection.query_row("SELECT value FROM fact WHERE name = 'salt'", [], |row| row.get(0))
        };
        Ok(Self {
            salt: database.read(salt).await?,
            generation: Ulid::generate().to_string(),
            database,
            limits,
            retention_trigger: Arc::new(RetentionTrigger::new(limits)),
        })
    }

    /// Returns a salted hash of a request message.
    pub(crate) fn fingerprint(&self, message: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new_with_prefix(self.salt);
        hash.update(message);
        hash.finalize().into()
    }

    /// Returns a salted hash of an API key's digest.
    pub(crate) fn key_fingerprint(&self, digest: Option<&[u8]>) -> KeyFingerprint {
        KeyFingerprint(digest.map_or_else(Vec::new, |digest| self.fingerprint(digest).to_vec()))
    }

    /// Removes the rows of revoked keys: all that are not in `keys`, a list of principals with
    /// their key fingerprints. Rows of earlier versions have no fingerprint and are assigned to the
    /// principal's present key.
    pub(crate) async fn remove_revoked(
        &self,
        keys: Vec<(String, KeyFingerprint)>,
    ) -> Result<(), DatabaseError> {
        let remove = move |connection: &Connection| {
            let mut assign = connection.prepare_cached(
                "UPDATE request SET holder = ?2 WHERE principal = ?1 AND holder = x''",
            )?;
            for (principal, fingerprint) in &keys {
                assign.execute(params![principal, fingerprint.0])?;
            }

            let mut select = connection.prepare_cached(
                "SELECT DISTINCT principal, holder FROM request WHERE principal LIKE 'key:%'",
            )?;
            let stored: Vec<(String, KeyFingerprint)> = select
                .query_map([], |row| Ok((row.get(0)?, KeyFingerprint(row.get(1)?))))?
                .collect::<rusqlite::Result<_>>()?;

            let mut delete = connection
                .prepare_cached("DELETE FROM request WHERE principal = ?1 AND holder = ?2")?;
            for (principal, fingerprint) in stored.iter().filter(|key| !keys.contains(key)) {
                delete.execute(params![principal, fingerprint.0])?;
            }
            Ok(())
        };
        self.database.apply(remove).await
    }

    /// Returns the state of a request id, or `None` if it is unknown.
    pub(crate) async fn find(&self, key: RequestKey) -> Result<Option<RecordState>, DatabaseError> {
        let generation = self.generation.clone();
        self.database.query(move |connection| find_record(connection, &key, &generation)).await
    }

    /// Claims a request id, unless it is known: then returns its state.
    pub(crate) async fn claim(
        &self,
        key: RequestKey,
        request: RequestIdentity,
    ) -> Result<Option<RecordState>, DatabaseError> {
        let generation = self.generation.clone();
        let change = move |connection: &Connection| {
            let found = find_record(connection, &key, &generation)?;
            if found.is_none() {
                insert_claim(connection, &key, &request, &generation, None)?;
            }
            Ok(found)
        };
        self.database.apply_briefly(change).await
    }

    /// Claims a request id that [`Self::find`] did not find, with the step of its call. From here
    /// on, the call may have had effects.
    pub(crate) async fn claim_at_step(
        &self,
        key: RequestKey,
        request: RequestIdentity,
        step: u64,
    ) -> Result<(), DatabaseError> {
        let generation = self.generation.clone();
        self.execute(key, move |connection, key| {
            insert_claim(connection, key, &request, &generation, Some(step))
        })
        .await
    }

    /// Stores the step of a claimed call. From here on, the call may have had effects.
    pub(crate) async fn record_step(
        &self,
        key: RequestKey,
        step: u64,
    ) -> Result<(), DatabaseError> {
        self.execute(key, move |connection, key| {
            connection
                .prepare_cached(
                    "UPDATE request SET step = ?5 WHERE principal = ?1 AND workspace = ?2 AND id = ?3 AND holder = ?4",
                )?
                .execute(params![key.principal, key.workspace, key.id, key.key_fingerprint.0, saturating_i64(step)])
        })
        .await
    }

    /// Takes over the claim of a call during which the daemon died, to continue it.
    pub(crate) async fn reclaim(&self, key: RequestKey) -> Result<(), DatabaseError> {
        let generation = self.generation.clone();
        self.execute(key, move |connection, key| {
            connection
                .prepare_cached(
                    "UPDATE request SET ended_ms = NULL, life = ?5 WHERE principal = ?1 AND workspace = ?2 AND id = ?3 AND holder = ?4",
                )?
                .execute(params![key.principal, key.workspace, key.id, key.key_fingerprint.0, generation])
        })
        .await
    }

    /// Stores the reply of a claimed call.
    pub(crate) async fn complete(
        &self,
        key: RequestKey,
        reply: Bytes,
    ) -> Result<(), DatabaseError> {
        let bytes = reply.len();
        let change = move |connection: &Connection| {
            connection
                .prepare_cached(
                    "UPDATE request SET answer = ?5, answer_bytes = ?6, ended_ms = ?7 WHERE principal = ?1 AND workspace = ?2 AND id = ?3 AND holder = ?4",
                )?
                .execute(params![
                    key.principal, key.workspace, key.id, key.key_fingerprint.0, &*reply, saturating_i64(bytes as u64), unix_millis::now()
                ])
        };
        match bytes <= BRIEF_REPLY_BYTES {
            true => self.database.apply_briefly(change).await,
            false => self.database.apply(change).await,
        }?;
        self.retention_trigger.add_row(bytes);
        Ok(())
    }

    /// Deletes a claim whose call had no effects.
    pub(crate) async fn release(&self, key: RequestKey) -> Result<(), DatabaseError> {
        self.execute(key, |connection, key| {
            connection
                .prepare_cached(
                    "DELETE FROM request WHERE principal = ?1 AND workspace = ?2 AND id = ?3 AND holder = ?4",
                )?
                .execute(params![key.principal, key.workspace, key.id, key.key_fingerprint.0])
        })
        .await
    }

    /// Returns the trigger for [`Self::apply_retention`].
    pub(crate) fn retention_trigger(&self) -> Arc<RetentionTrigger> {
        Arc::clone(&self.retention_trigger)
    }

    /// Removes expired and excess rows.
    ///
    /// `is_running` returns true for claims whose call is running; these stay. The retention time of
    /// other calls without a reply starts now. A row whose reply exceeds the byte limit stays
    /// without its reply, so that the call is not made again.
    pub(crate) async fn apply_retention(
        &self,
        is_running: impl Fn(&RequestKey) -> bool + Send + 'static,
    ) -> Result<(), DatabaseError> {
        let end = move |connection: &Connection| end_abandoned(connection, &is_running);
        self.database.apply(end).await?;

        let limits = self.limits;
        loop {
            let delete = move |connection: &Connection| delete_batch(connection, limits);
            let is_done = self.database.apply(delete).await?;
            if is_done {
                return self.database.vacuum().await;
            }
        }
    }

    async fn execute(
        &self,
        key: RequestKey,
        change: impl Fn(&Connection, &RequestKey) -> rusqlite::Result<usize> + Send + 'static,
    ) -> Result<(), DatabaseError> {
        self.database.apply_briefly(move |connection| change(connection, &key).map(drop)).await
    }
}

/// Stores a claim. Replaces a row of another key of this principal, which has been revoked.
fn insert_claim(
    connection: &Connection,
    key: &RequestKey,
    request: &RequestIdentity,
    generation: &str,
    step: Option<u64>,
) -> rusqlite::Result<usize> {
    let mut insert = connection.prepare_cached(
        "INSERT OR REPLACE INTO request (principal, workspace, id, holder, method, session, fingerprint, life, begun_ms, step) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?;
    insert.execute(params![
        key.principal,
        key.workspace,
        key.id,
        key.key_fingerprint.0,
        request.method,
        request.session,
        request.fingerprint,
        generation,
        unix_millis::now(),
        step.map(saturating_i64)
    ])
}

fn saturating_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn find_record(
    connection: &Connection,
    key: &RequestKey,
    generation: &str,
) -> rusqlite::Result<Option<RecordState>> {
    let mut select = connection.prepare_cached(
        "SELECT method, session, fingerprint, life, step, answer FROM request WHERE principal = ?1 AND workspace = ?2 AND id = ?3 AND holder = ?4",
    )?;
    let record = |row: &Row<'_>| {
        let request =
            RequestIdentity { method: row.get(0)?, session: row.get(1)?, fingerprint: row.get(2)? };
        let is_current_generation = row.get_ref(3)?.as_str()? == generation;
        let step = row.get::<_, Option<i64>>(4)?.and_then(|step| u64::try_from(step).ok());
        let reply: Option<Vec<u8>> = row.get(5)?;

        Ok(match reply {
            Some(reply) if reply.is_empty() => RecordState::Evicted { request, step },
            Some(reply) => {
                RecordState::Completed { request, reply: reply.into(), is_current_generation }
            }
            None => RecordState::Incomplete { request, step },
        })
    };
    select
        .query_row(params![key.principal, key.workspace, key.id, key.key_fingerprint.0], record)
        .optional()
}

/// Sets the end time of claims without a reply whose call is not running.
fn end_abandoned(
    connection: &Connection,
    is_running: &impl Fn(&RequestKey) -> bool,
) -> rusqlite::Result<()> {
    let mut select = connection.prepare_cached(
        "SELECT rowid, principal, workspace, id, holder FROM request INDEXED BY request_by_holder WHERE ended_ms IS NULL",
    )?;
    let claims = select.query_map([], |row| {
        let key = RequestKey {
            principal: row.get(1)?,
            workspace: row.get(2)?,
            id: row.get(3)?,
            key_fingerprint: KeyFingerprint(row.get(4)?),
        };
        Ok((row.get(0)?, key))
    })?;
    let claims: Vec<(i64, RequestKey)> = claims.collect::<rusqlite::Result<_>>()?;

    let mut update =
        connection.prepare_cached("UPDATE request SET ended_ms = ?2 WHERE rowid = ?1")?;
    for (row, _) in claims.iter().filter(|(_, key)| !is_running(key)) {
        update.execute([*row, unix_millis::now()])?;
    }
    Ok(())
}

/// Removes one batch of expired or excess rows. Returns whether none remain.
fn delete_batch(connection: &Connection, limits: RetentionLimits) -> rusqlite::Result<bool> {
    let excess = ExcessRows::find(connection, TABLE, limits)?;

    let mut delete = connection.prepare_cached("DELETE FROM request WHERE rowid = ?1")?;
    for row in &excess.rows {
        delete.execute([row])?;
    }

    // An empty value marks an evicted reply: no reply is empty.
    let mut evict = connection
        .prepare_cached("UPDATE request SET answer = x'', answer_bytes = 0 WHERE rowid = ?1")?;
    for row in &excess.oversized {
        evict.execute([row])?;
    }
    Ok(!excess.is_full())
}

/// Marks the call that submitted a job as completed, if it has no reply. Called before the job
/// is removed: otherwise a repeated call would not find the job and submit it again.
pub(super) fn mark_job_evicted(connection: &Connection, row: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "UPDATE request SET answer = x'' WHERE answer IS NULL AND (principal, workspace, id) = (SELECT principal, workspace, request FROM job WHERE rowid = ?1)",
        )?
        .execute([row])
        .map(drop)
}

#[cfg(test)]
mod tests;
