//! The log of request ids: which work was begun under which, and how it was answered. It makes a
//! repeated call find the first one's answer, also after a restart.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use sha2::{Digest as _, Sha256};
use ulid::Ulid;

use super::{
    database::{Database, DatabaseError},
    milliseconds,
};

/// Most rows that are removed in one go: others wait meanwhile.
const REMOVED_TOGETHER: u32 = 1000;

/// The log.
#[derive(Debug, Clone)]
pub(crate) struct RequestLog {
    database: Database,
    /// Of this life of the daemon: a ULID.
    life: String,
    salt: [u8; 32],
}

/// What a request id belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Who calls.
    pub(crate) principal: String,
    /// Name of the workspace.
    pub(crate) workspace: String,
    /// The id.
    pub(crate) id: String,
}

/// What was asked under it. A repeat asks the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The method or tool.
    pub(crate) method: String,
    /// The session.
    pub(crate) session: String,
    /// Of the request message: [`RequestLog::fingerprint`].
    pub(crate) fingerprint: [u8; 32],
}

/// What the log knows of a request id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing: it is claimed now.
    New,
    /// The call was answered.
    Answered {
        /// What it asked.
        asked: Asked,
        /// The answer, as it was given to [`RequestLog::answer`].
        answer: Bytes,
        /// Whether this life of the daemon gave it.
        is_recent: bool,
    },
    /// It was claimed and not answered: the daemon died while the call went on, or could not keep its
    /// answer. Or it goes on, which whoever claimed it knows.
    Unanswered {
        /// What it asked.
        asked: Asked,
        /// Its step of the session, where it had got so far.
        step: Option<u64>,
    },
}

/// How much is kept of calls that were answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    /// How long.
    pub(crate) age: Duration,
    /// How many.
    pub(crate) number: u32,
    /// Bytes of all answers.
    pub(crate) bytes: u64,
}

impl RequestLog {
    /// The log in `database`.
    pub(crate) async fn open(database: Database) -> Result<Self, DatabaseError> {
        let salt = |connection: &Connection| {
            connection.query_row("SELECT value FROM fact WHERE name = 'salt'", [], |row| {
                row.get(0)
            })
        };
        Ok(Self {
            salt: database.apply(salt).await?,
            life: Ulid::generate().to_string(),
            database,
        })
    }

    /// What tells a request message from another, and nothing else about it.
    pub(crate) fn fingerprint(&self, message: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new_with_prefix(self.salt);
        hash.update(message);
        hash.finalize().into()
    }

    /// Claims a request id, unless it was claimed before.
    pub(crate) async fn claim(&self, key: Key, asked: Asked) -> Result<Found, DatabaseError> {
        let life = self.life.clone();
        self.database
            .apply(move |connection| match find(connection, &key, &life)? {
                Some(found) => Ok(found),
                None => {
                    let mut insert = connection.prepare_cached(
                        "INSERT INTO request (principal, workspace, id, method, session, fingerprint, life, begun_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    )?;
                    insert.execute(params![
                        key.principal, key.workspace, key.id, asked.method, asked.session, asked.fingerprint, life, milliseconds::now()
                    ])?;
                    Ok(Found::New)
                }
            })
            .await
    }

    /// Says which step of its session the work of a claim is.
    pub(crate) async fn begin(&self, key: Key, step: u64) -> Result<(), DatabaseError> {
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        self.change(key, move |connection, key| {
            connection
                .prepare_cached(
                    "UPDATE request SET step = ?4 WHERE principal = ?1 AND workspace = ?2 AND id = ?3",
                )?
                .execute(params![key.principal, key.workspace, key.id, step])
        })
        .await
    }

    /// Keeps the answer of a claimed call.
    pub(crate) async fn answer(&self, key: Key, answer: Bytes) -> Result<(), DatabaseError> {
        self.change(key, move |connection, key| {
            connection
                .prepare_cached(
                    "UPDATE request SET answer = ?4, answer_bytes = ?5 WHERE principal = ?1 AND workspace = ?2 AND id = ?3",
                )?
                .execute(params![key.principal, key.workspace, key.id, &*answer, i64::try_from(answer.len()).unwrap_or(i64::MAX)])
        })
        .await
    }

    /// Gives a claim back: nothing was done.
    pub(crate) async fn release(&self, key: Key) -> Result<(), DatabaseError> {
        self.change(key, |connection, key| {
            connection
                .prepare_cached(
                    "DELETE FROM request WHERE principal = ?1 AND workspace = ?2 AND id = ?3",
                )?
                .execute(params![key.principal, key.workspace, key.id])
        })
        .await
    }

    /// Removes what is not to be kept any more, oldest first; never what still goes on.
    pub(crate) async fn retain(&self, retention: Retention) -> Result<(), DatabaseError> {
        loop {
            let life = self.life.clone();
            let removed = self
                .database
                .apply(move |connection| remove(connection, &life, retention))
                .await?;
            if removed < REMOVED_TOGETHER as usize {
                return Ok(());
            }
        }
    }

    async fn change(
        &self,
        key: Key,
        change: impl FnOnce(&Connection, &Key) -> rusqlite::Result<usize> + Send + 'static,
    ) -> Result<(), DatabaseError> {
        self.database
            .apply(move |connection| change(connection, &key).map(drop))
            .await
    }
}

fn find(connection: &Connection, key: &Key, life: &str) -> rusqlite::Result<Option<Found>> {
    let mut select = connection.prepare_cached(
        "SELECT method, session, fingerprint, life, step, answer FROM request WHERE principal = ?1 AND workspace = ?2 AND id = ?3",
    )?;
    let found = |row: &Row<'_>| {
        let asked = Asked {
            method: row.get(0)?,
            session: row.get(1)?,
            fingerprint: row.get(2)?,
        };
        let is_recent = row.get_ref(3)?.as_str()? == life;
        let step: Option<i64> = row.get(4)?;
        let answer: Option<Vec<u8>> = row.get(5)?;
        Ok(match answer {
            Some(answer) => Found::Answered {
                asked,
                answer: answer.into(),
                is_recent,
            },
            None => Found::Unanswered {
                asked,
                step: step.and_then(|step| u64::try_from(step).ok()),
            },
        })
    };
    select
        .query_row(params![key.principal, key.workspace, key.id], found)
        .optional()
}

/// Removes some of what is not to be kept any more; answers how many.
fn remove(connection: &Connection, life: &str, retention: Retention) -> rusqlite::Result<usize> {
    let age = i64::try_from(retention.age.as_millis()).unwrap_or(i64::MAX);
    let (number, bytes): (i64, i64) = connection.query_row(
        "SELECT count(*), coalesce(sum(answer_bytes), 0) FROM request",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let surplus = number - i64::from(retention.number);
    let surplus_bytes = bytes.saturating_sub_unsigned(retention.bytes);
    connection.execute(
        "DELETE FROM request WHERE rowid IN (
             SELECT rowid FROM (
                 SELECT rowid, begun_ms,
                     row_number() OVER by_age AS place,
                     sum(answer_bytes) OVER by_age - answer_bytes AS bytes_before
                 FROM (
                     SELECT rowid, begun_ms, answer_bytes FROM request
                     WHERE answer IS NOT NULL OR life <> ?1 ORDER BY begun_ms LIMIT ?5
                 )
                 WINDOW by_age AS (ORDER BY begun_ms, rowid ROWS UNBOUNDED PRECEDING)
             )
             WHERE begun_ms < ?2 OR place <= ?3 OR bytes_before < ?4
         )",
        params![
            life,
            milliseconds::now().saturating_sub(age),
            surplus,
            surplus_bytes,
            REMOVED_TOGETHER
        ],
    )
}
