//! The log of request ids: which work was begun under which, and how it was answered. It makes a
//! repeated call find the first one's answer, also after a restart.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use sha2::{Digest as _, Sha256};
use ulid::Ulid;

use super::{
    database::{Database, DatabaseError},
    row_retention::{ExcessRows, RetainedTable, RetentionLimits, RetentionTrigger},
    unix_millis,
};

/// Where what is kept is found.
const TABLE: RetainedTable = RetainedTable { name: "request", bytes_column: "answer_bytes" };

/// The log.
#[derive(Debug, Clone)]
pub(crate) struct RequestTable {
    database: Database,
    /// Of this life of the daemon: a ULID.
    generation: String,
    salt: [u8; 32],
    bounds: RetentionLimits,
    retention_trigger: Arc<RetentionTrigger>,
}

/// What a request id belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RequestKey {
    /// Who calls.
    pub(crate) principal: String,
    /// Name of the workspace.
    pub(crate) workspace: String,
    /// The id.
    pub(crate) id: String,
    /// What tells the caller from another that had its name before.
    pub(crate) key_fingerprint: KeyFingerprint,
}

/// The key that a caller has shown, as [`RequestLog::holder`] makes it; empty where it has none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct KeyFingerprint(Vec<u8>);

/// What was asked under it. A repeat asks the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestIdentity {
    /// The method or tool.
    pub(crate) method: String,
    /// The session.
    pub(crate) session: String,
    /// Of the request message: [`RequestLog::fingerprint`].
    pub(crate) fingerprint: [u8; 32],
}

/// What the log knows of a request id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RecordState {
    /// Nothing: it is claimed now.
    Claimed,
    /// The call was answered.
    Completed {
        /// What it asked.
        request: RequestIdentity,
        /// The answer, as it was given to [`RequestLog::answer`].
        response: Bytes,
        /// Whether this life of the daemon gave it.
        is_current_generation: bool,
    },
    /// It was claimed, and there is no answer: the daemon died while the call went on, or had no room for
    /// its answer. Or it goes on, which whoever claimed it knows.
    Incomplete {
        /// What it asked.
        request: RequestIdentity,
        /// Its step of the session, where it had got so far.
        step: Option<u64>,
    },
    /// It was done, and what came of it is not kept any more.
    Evicted {
        /// What it asked.
        request: RequestIdentity,
        /// Its step of the session, where it is known.
        step: Option<u64>,
    },
}

impl RequestTable {
    /// The log in `database`, which keeps so much of calls that have ended.
    pub(crate) async fn open(
        database: Database,
        bounds: RetentionLimits,
    ) -> Result<Self, DatabaseError> {
        let salt = |connection: &Connection| {
            connection.query_row("SELECT value FROM fact WHERE name = 'salt'", [], |row| row.get(0))
        };
        Ok(Self {
            salt: database.read(salt).await?,
            generation: Ulid::generate().to_string(),
            database,
            bounds,
            retention_trigger: Arc::new(RetentionTrigger::new(bounds)),
        })
    }

    /// What tells a request message from another, and nothing else about it.
    pub(crate) fn fingerprint(&self, message: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new_with_prefix(self.salt);
        hash.update(message);
        hash.finalize().into()
    }

    /// What tells the holder of the key with this digest from others.
    pub(crate) fn key_fingerprint(&self, digest: Option<&[u8]>) -> KeyFingerprint {
        KeyFingerprint(digest.map_or_else(Vec::new, |digest| self.fingerprint(digest).to_vec()))
    }

    /// Drops what belongs to a key that is none of `keys`, given as principals and what tells their
    /// holders. What an earlier daemon wrote says no holder: it becomes the present one's.
    pub(crate) async fn remove_revoked(
        &self,
        keys: Vec<(String, KeyFingerprint)>,
    ) -> Result<(), DatabaseError> {
        let drop_others = move |connection: &Connection| {
            let mut adopt = connection.prepare_cached(
                "UPDATE request SET holder = ?2 WHERE principal = ?1 AND holder = x''",
            )?;
            for (principal, holder) in &keys {
                adopt.execute(params![principal, holder.0])?;
            }
            let mut select = connection.prepare_cached(
                "SELECT DISTINCT principal, holder FROM request WHERE principal LIKE 'key:%'",
            )?;
            let found =
                select.query_map([], |row| Ok((row.get(0)?, KeyFingerprint(row.get(1)?))))?;
            let found: Vec<(String, KeyFingerprint)> = found.collect::<rusqlite::Result<_>>()?;
            let mut delete = connection
                .prepare_cached("DELETE FROM request WHERE principal = ?1 AND holder = ?2")?;
            for (principal, holder) in found.iter().filter(|found| !keys.contains(found)) {
                delete.execute(params![principal, holder.0])?;
            }
            Ok(())
        };
        self.database.apply(drop_others).await
    }

    /// Claims a request id, unless it was claimed before. A claim of another holder is dropped: that
    /// one's key is revoked.
    pub(crate) async fn claim(
        &self,
        key: RequestKey,
        asked: RequestIdentity,
    ) -> Result<RecordState, DatabaseError> {
        let life = self.generation.clone();
        self.database
            .apply(move |connection| match find_record(connection, &key, &life)? {
                Some(found) => Ok(found),
                None => {
                    let mut insert = connection.prepare_cached(
                        "INSERT OR REPLACE INTO request (principal, workspace, id, holder, method, session, fingerprint, life, begun_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                    )?;
                    insert.execute(params![
                        key.principal, key.workspace, key.id, key.key_fingerprint.0, asked.method, asked.session, asked.fingerprint, life, unix_millis::now()
                    ])?;
                    Ok(RecordState::Claimed)
                }
            })
            .await
    }

    /// Says which step of its session the work of a claim is: from here on, it may have been done.
    pub(crate) async fn record_step(
        &self,
        key: RequestKey,
        step: u64,
    ) -> Result<(), DatabaseError> {
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        self.execute(key, move |connection, key| {
            connection
                .prepare_cached(
                    "UPDATE request SET step = ?5 WHERE principal = ?1 AND workspace = ?2 AND id = ?3 AND holder = ?4",
                )?
                .execute(params![key.principal, key.workspace, key.id, key.key_fingerprint.0, step])
        })
        .await
    }

    /// Takes over a claim that the daemon died under: its work goes on.
    pub(crate) async fn reclaim(&self, key: RequestKey) -> Result<(), DatabaseError> {
        let life = self.generation.clone();
        self.execute(key, move |connection, key| {
            connection
                .prepare_cached(
                    "UPDATE request SET ended_ms = NULL, life = ?5 WHERE principal = ?1 AND workspace = ?2 AND id = ?3 AND holder = ?4",
                )?
                .execute(params![key.principal, key.workspace, key.id, key.key_fingerprint.0, life])
        })
        .await
    }

    /// Keeps the answer of a claimed call.
    pub(crate) async fn complete(
        &self,
        key: RequestKey,
        answer: Bytes,
    ) -> Result<(), DatabaseError> {
        let bytes = answer.len();
        self.execute(key, move |connection, key| {
            connection
                .prepare_cached(
                    "UPDATE request SET answer = ?5, answer_bytes = ?6, ended_ms = ?7 WHERE principal = ?1 AND workspace = ?2 AND id = ?3 AND holder = ?4",
                )?
                .execute(params![
                    key.principal, key.workspace, key.id, key.key_fingerprint.0, &*answer, i64::try_from(bytes).unwrap_or(i64::MAX), unix_millis::now()
                ])
        })
        .await?;
        self.retention_trigger.add_row(bytes);
        Ok(())
    }

    /// Gives a claim back: nothing was done.
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

    /// What tells when to [`Self::retain`].
    pub(crate) fn retention_trigger(&self) -> Arc<RetentionTrigger> {
        Arc::clone(&self.retention_trigger)
    }

    /// Removes what is not to be kept any more. `goes_on` says whether there is still work under a claim
    /// that has no answer: it stays then, and is kept from now on otherwise. Of a call that has too large
    /// an answer it stays known that it was made.
    pub(crate) async fn apply_retention(
        &self,
        goes_on: impl Fn(&RequestKey) -> bool + Send + 'static,
    ) -> Result<(), DatabaseError> {
        let end = move |connection: &Connection| end_abandoned(connection, &goes_on);
        self.database.apply(end).await?;
        let bounds = self.bounds;
        loop {
            let is_all = self.database.apply(move |connection| delete_batch(connection, bounds));
            if is_all.await? {
                return self.database.vacuum().await;
            }
        }
    }

    async fn execute(
        &self,
        key: RequestKey,
        change: impl Fn(&Connection, &RequestKey) -> rusqlite::Result<usize> + Send + 'static,
    ) -> Result<(), DatabaseError> {
        self.database.apply(move |connection| change(connection, &key).map(drop)).await
    }
}

fn find_record(
    connection: &Connection,
    key: &RequestKey,
    life: &str,
) -> rusqlite::Result<Option<RecordState>> {
    let mut select = connection.prepare_cached(
        "SELECT method, session, fingerprint, life, step, answer FROM request WHERE principal = ?1 AND workspace = ?2 AND id = ?3 AND holder = ?4",
    )?;
    let found = |row: &Row<'_>| {
        let asked =
            RequestIdentity { method: row.get(0)?, session: row.get(1)?, fingerprint: row.get(2)? };
        let is_recent = row.get_ref(3)?.as_str()? == life;
        let step: Option<i64> = row.get(4)?;
        let step = step.and_then(|step| u64::try_from(step).ok());
        let answer: Option<Vec<u8>> = row.get(5)?;
        Ok(match answer {
            Some(answer) if answer.is_empty() => RecordState::Evicted { request: asked, step },
            Some(answer) => RecordState::Completed {
                request: asked,
                response: answer.into(),
                is_current_generation: is_recent,
            },
            None => RecordState::Incomplete { request: asked, step },
        })
    };
    select
        .query_row(params![key.principal, key.workspace, key.id, key.key_fingerprint.0], found)
        .optional()
}

/// Notes of claims whose work has ended without an answer that they have ended.
fn end_abandoned(
    connection: &Connection,
    goes_on: &impl Fn(&RequestKey) -> bool,
) -> rusqlite::Result<()> {
    let mut select = connection.prepare_cached(
        "SELECT rowid, principal, workspace, id, holder FROM request INDEXED BY request_by_holder WHERE ended_ms IS NULL",
    )?;
    let mut update =
        connection.prepare_cached("UPDATE request SET ended_ms = ?2 WHERE rowid = ?1")?;
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
    for (row, _) in claims.iter().filter(|(_, key)| !goes_on(key)) {
        update.execute([*row, unix_millis::now()])?;
    }
    Ok(())
}

/// Removes some of what is not to be kept any more; answers whether that was all.
fn delete_batch(connection: &Connection, bounds: RetentionLimits) -> rusqlite::Result<bool> {
    let surplus = ExcessRows::find(connection, TABLE, bounds)?;
    let mut delete = connection.prepare_cached("DELETE FROM request WHERE rowid = ?1")?;
    for row in &surplus.rows {
        delete.execute([row])?;
    }
    // No answer is empty: this says that there was one.
    let mut strip = connection
        .prepare_cached("UPDATE request SET answer = x'', answer_bytes = 0 WHERE rowid = ?1")?;
    for row in &surplus.oversized {
        strip.execute([row])?;
    }
    Ok(!surplus.is_full())
}

/// Notes, before a job is removed, that the call which submitted it was done, where that has no answer: who
/// repeats it must not submit the job again for not finding it.
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
