//! The log of calls that waited to be approved: what was asked, and how it ended.

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde::{Deserialize, Serialize};

use super::{
    database::{Database, DatabaseError},
    rules::{StoredRule, insert as insert_rule},
};

/// Most approvals that are kept: each takes up to some 40 KiB.
const MAX_APPROVALS: u32 = 100_000;
/// Most that are removed in one go: others wait meanwhile.
const DELETE_BATCH_ROWS: u32 = 1000;

/// The log.
#[derive(Debug, Clone)]
pub(crate) struct ApprovalTable(Database);

/// What was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ApprovalRecord {
    /// A ULID.
    pub(crate) id: String,
    /// Workspace of the call.
    pub(crate) workspace: String,
    /// Its session.
    pub(crate) session: String,
    /// Who calls.
    pub(crate) principal: String,
    /// Id of the call.
    pub(crate) call_id: String,
    /// The tool.
    pub(crate) tool: String,
    /// What it was called as in a dialect: `cli_agent/create_file`; empty, where that was by its name.
    pub(crate) said_as: String,
    /// Its parameters.
    pub(crate) parameters: Vec<ApprovalParameter>,
    /// Files that it is about, the first of them.
    pub(crate) files: Vec<String>,
    /// How many more there are.
    pub(crate) more_files: u32,
    /// What has it asked.
    pub(crate) asked_by: String,
    /// When, in milliseconds since 1970.
    pub(crate) requested_ms: i64,
    /// When it stops waiting, likewise.
    pub(crate) expires_ms: i64,
    /// How it ended; none while it waits.
    pub(crate) end: Option<ApprovalEnd>,
}

/// A parameter for people, without what may be secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ApprovalParameter {
    /// Its name.
    pub(crate) name: String,
    /// Its value, or the beginning of it.
    pub(crate) value: String,
    /// Bytes that are left out behind the beginning.
    #[serde(default)]
    pub(crate) omitted_bytes: u32,
    /// What stands behind these.
    #[serde(default)]
    pub(crate) ending: String,
}

/// How an approval ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApprovalEnd {
    /// In which way.
    pub(crate) state: ApprovalEndState,
    /// When, in milliseconds since 1970.
    pub(crate) ended_ms: i64,
    /// Who ended it.
    pub(crate) ended_by: String,
    /// Why, in that one's words.
    pub(crate) comment: String,
    /// The rule that was made with it; empty without.
    pub(crate) rule_id: String,
}

/// In which way an approval ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApprovalEndState {
    /// Somebody has allowed it.
    Allowed,
    /// Somebody has denied it.
    Denied,
    /// Nobody has decided in time.
    Expired,
    /// Nobody waits for it any more.
    Withdrawn,
    /// The daemon died while it waited.
    Lost,
}

impl ApprovalEndState {
    /// All of them.
    const ALL: [Self; 5] =
        [Self::Allowed, Self::Denied, Self::Expired, Self::Withdrawn, Self::Lost];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Allowed => "ALLOWED",
            Self::Denied => "DENIED",
            Self::Expired => "EXPIRED",
            Self::Withdrawn => "WITHDRAWN",
            Self::Lost => "LOST",
        }
    }
}

impl ApprovalTable {
    /// The log in `database`.
    pub(crate) fn new(database: Database) -> Self {
        Self(database)
    }

    /// Notes that a call waits.
    pub(crate) async fn insert_pending(&self, record: ApprovalRecord) -> Result<(), DatabaseError> {
        let json = |value: serde_json::Result<String>| value.unwrap_or_else(|_| "[]".to_owned());
        let parameters = json(serde_json::to_string(&record.parameters));
        let files = json(serde_json::to_string(&(&record.files, record.more_files)));
        self.0
            .apply(move |connection| {
                connection
                    .prepare_cached(
                        "INSERT INTO approval (id, workspace, session, principal, call_id, tool, parameters, files, asked_by, asked_ms, expires_ms, said_as, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, 'PENDING')",
                    )?
                    .execute(params![
                        record.id,
                        record.workspace,
                        record.session,
                        record.principal,
                        record.call_id,
                        record.tool,
                        parameters,
                        files,
                        record.asked_by,
                        record.requested_ms,
                        record.expires_ms,
                        record.said_as
                    ])
                    .map(drop)
            })
            .await
    }

    /// Notes how one ended, and the rule that was made with it: both, or neither.
    pub(crate) async fn record_end(
        &self,
        id: String,
        end: ApprovalEnd,
        rule: Option<StoredRule>,
    ) -> Result<(), DatabaseError> {
        self.0
            .apply(move |connection| {
                connection
                    .prepare_cached(
                        "UPDATE approval SET state = ?2, decided_ms = ?3, decided_by = ?4, comment = ?5, rule_id = ?6 WHERE id = ?1 AND state = 'PENDING'",
                    )?
                    .execute(params![id, end.state.name(), end.ended_ms, end.ended_by, end.comment, end.rule_id])?;
                match &rule {
                    Some(rule) => insert_rule(connection, rule),
                    None => Ok(()),
                }
            })
            .await
    }

    /// Those that waited when the daemon died: to be called before any waits.
    pub(crate) async fn find_orphaned(&self) -> Result<Vec<ApprovalRecord>, DatabaseError> {
        self.0
            .read(|connection| {
                let sql = format!("{SELECT_APPROVAL} WHERE state = 'PENDING' ORDER BY id");
                connection.prepare(&sql)?.query_map([], approval_from_row)?.collect()
            })
            .await
    }

    /// One of them.
    pub(crate) async fn find(&self, id: String) -> Result<Option<ApprovalRecord>, DatabaseError> {
        self.0
            .read(move |connection| {
                let sql = format!("{SELECT_APPROVAL} WHERE id = ?1");
                let mut select = connection.prepare_cached(&sql)?;
                select.query_row([&id], approval_from_row).optional()
            })
            .await
    }

    /// Those of some workspaces, newest first, older than the one of the id `before`.
    pub(crate) async fn list(
        &self,
        workspaces: Vec<String>,
        before: Option<String>,
        most: u32,
    ) -> Result<Vec<ApprovalRecord>, DatabaseError> {
        let workspaces = serde_json::to_string(&workspaces).unwrap_or_else(|_| "[]".to_owned());
        self.0
            .read(move |connection| {
                let sql = format!(
                    "{SELECT_APPROVAL} WHERE workspace IN (SELECT value FROM json_each(?1)) AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3"
                );
                let mut select = connection.prepare_cached(&sql)?;
                select.query_map(params![workspaces, before, most], approval_from_row)?.collect()
            })
            .await
    }

    /// Removes what ended before that time, and what is too much: what nobody has decided before what
    /// somebody has, of who has most, and oldest first; never what waits.
    pub(crate) async fn apply_retention(&self, since_ms: i64) -> Result<(), DatabaseError> {
        self.retain_at_most(since_ms, MAX_APPROVALS).await
    }

    async fn retain_at_most(&self, since_ms: i64, most: u32) -> Result<(), DatabaseError> {
        loop {
            let removed =
                self.0.apply(move |connection| delete_batch(connection, since_ms, most)).await?;
            if removed < DELETE_BATCH_ROWS as usize {
                return Ok(());
            }
        }
    }
}

const SELECT_APPROVAL: &str = "SELECT id, workspace, session, principal, call_id, tool, parameters, files, asked_by, asked_ms, expires_ms, state, decided_ms, decided_by, comment, rule_id, said_as FROM approval";

fn approval_from_row(row: &Row<'_>) -> rusqlite::Result<ApprovalRecord> {
    let json = |column: usize| row.get_ref(column)?.as_str().map_err(rusqlite::Error::from);
    let state = row.get_ref(11)?.as_str()?;
    let state = ApprovalEndState::ALL.into_iter().find(|end| end.name() == state);
    let (files, more_files) = serde_json::from_str(json(7)?).unwrap_or_default();
    let end = match state {
        None => None,
        Some(state) => Some(ApprovalEnd {
            state,
            ended_ms: row.get::<_, Option<i64>>(12)?.unwrap_or_default(),
            ended_by: row.get(13)?,
            comment: row.get(14)?,
            rule_id: row.get(15)?,
        }),
    };
    Ok(ApprovalRecord {
        id: row.get(0)?,
        workspace: row.get(1)?,
        session: row.get(2)?,
        principal: row.get(3)?,
        call_id: row.get(4)?,
        tool: row.get(5)?,
        said_as: row.get(16)?,
        parameters: serde_json::from_str(json(6)?).unwrap_or_default(),
        files,
        more_files,
        asked_by: row.get(8)?,
        requested_ms: row.get(9)?,
        expires_ms: row.get(10)?,
        end,
    })
}

/// Removes some of what is not to be kept any more; answers how many.
fn delete_batch(connection: &Connection, since_ms: i64, most: u32) -> rusqlite::Result<usize> {
    let old = connection.execute(
        "DELETE FROM approval WHERE id IN (SELECT id FROM approval WHERE decided_ms < ?1 LIMIT ?2)",
        params![since_ms, DELETE_BATCH_ROWS],
    )?;
    let count: u32 = connection.query_row("SELECT count(*) FROM approval", [], |row| row.get(0))?;
    let excess = count.saturating_sub(most).min(DELETE_BATCH_ROWS);
    if old > 0 || excess == 0 {
        return Ok(old);
    }
    connection.execute(
        "DELETE FROM approval WHERE id IN (
             SELECT id FROM approval
             JOIN (SELECT principal, count(*) AS many FROM approval GROUP BY principal) USING (principal)
             WHERE decided_ms IS NOT NULL
             ORDER BY state IN ('ALLOWED', 'DENIED'), many DESC, decided_ms
             LIMIT ?1
         )",
        params![excess],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str, workspace: &str) -> ApprovalRecord {
        ApprovalRecord {
            id: id.to_owned(),
            workspace: workspace.to_owned(),
            session: "s".to_owned(),
            principal: "key:a".to_owned(),
            call_id: "c".to_owned(),
            tool: "run".to_owned(),
            said_as: String::new(),
            parameters: vec![ApprovalParameter {
                name: "command".to_owned(),
                value: "a\n\"b\"".to_owned(),
                omitted_bytes: 7,
                ending: "c".to_owned(),
            }],
            files: vec!["f".to_owned()],
            more_files: 3,
            asked_by: "risk dangerous".to_owned(),
            requested_ms: 1,
            expires_ms: 2,
            end: None,
        }
    }

    fn end(state: ApprovalEndState, at_ms: i64) -> ApprovalEnd {
        ApprovalEnd {
            state,
            ended_ms: at_ms,
            ended_by: "key:b".to_owned(),
            comment: "no".to_owned(),
            rule_id: String::new(),
        }
    }

    #[tokio::test]
    async fn what_was_asked_and_how_it_ended_is_kept_for_a_while() {
        let log = ApprovalTable::new(Database::in_memory().unwrap());
        for (id, workspace) in [("1", "a"), ("2", "b"), ("3", "a"), ("4", "a")] {
            log.insert_pending(record(id, workspace)).await.unwrap();
        }
        let ended = end(ApprovalEndState::Denied, 10);
        log.record_end("1".into(), ended.clone(), None).await.unwrap();
        let again = end(ApprovalEndState::Allowed, 11);
        log.record_end("1".into(), again, None).await.unwrap();
        let found = log.find("1".into()).await.unwrap().unwrap();
        assert_eq!(found.end, Some(ended), "the first end is the one");
        let asked = record("1", "a");
        assert_eq!(
            (found.parameters, found.files, found.more_files),
            (asked.parameters, asked.files, asked.more_files)
        );
        let ids = async |workspaces: &[&str], before: Option<&str>, most| {
            let names = workspaces.iter().map(|name| (*name).to_owned()).collect();
            let listed = log.list(names, before.map(str::to_owned), most).await;
            let listed = listed.unwrap().into_iter().map(|record| record.id);
            listed.collect::<Vec<_>>()
        };
        assert_eq!(ids(&["a"], None, 2).await, ["4", "3"]);
        assert_eq!(ids(&["a"], Some("3"), 2).await, ["1"]);
        assert_eq!(ids(&["a", "b"], None, 9).await, ["4", "3", "2", "1"]);
        assert_eq!(ids(&[], None, 9).await, [""; 0]);
        assert_eq!(log.find_orphaned().await.unwrap().len(), 3);
        log.apply_retention(10).await.unwrap();
        assert_eq!(ids(&["a", "b"], None, 9).await.len(), 4);
        log.apply_retention(11).await.unwrap();
        assert_eq!(ids(&["a", "b"], None, 9).await, ["4", "3", "2"]);
    }

    #[tokio::test]
    async fn who_floods_does_not_push_out_what_was_decided() {
        let log = ApprovalTable::new(Database::in_memory().unwrap());
        let ask = async |id: &str, principal: &str, state: Option<ApprovalEndState>| {
            let record = ApprovalRecord { principal: principal.to_owned(), ..record(id, "a") };
            log.insert_pending(record).await.unwrap();
            if let Some(state) = state {
                log.record_end(id.into(), end(state, 10), None).await.unwrap();
            }
        };
        ask("1", "key:a", Some(ApprovalEndState::Allowed)).await;
        ask("2", "key:a", Some(ApprovalEndState::Expired)).await;
        ask("3", "key:flood", None).await;
        for id in ["4", "5", "6", "7"] {
            ask(id, "key:flood", Some(ApprovalEndState::Withdrawn)).await;
        }
        for (most, left) in
            [(5, &["1", "2", "3", "6", "7"][..]), (4, &["1", "2", "3", "7"]), (1, &["3"])]
        {
            log.retain_at_most(0, most).await.unwrap();
            let listed = log.list(vec!["a".to_owned()], None, 9).await.unwrap();
            let mut ids: Vec<_> = listed.into_iter().map(|record| record.id).collect();
            ids.sort();
            assert_eq!(ids, left);
        }
    }
}
