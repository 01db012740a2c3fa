//! The log of calls that waited to be approved: what was asked, and how it ended.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{
    database::{Database, DatabaseError},
    rules::{StoredRule, insert as insert_rule},
};

/// Most approvals that are kept: each takes up to some 20 KiB.
const MOST_KEPT: u32 = 100_000;
/// Most that are removed in one go: others wait meanwhile.
const REMOVED_TOGETHER: u32 = 1000;

/// The log.
#[derive(Debug, Clone)]
pub(crate) struct ApprovalLog(Database);

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Names and values of its parameters for people, without what may be secret.
    pub(crate) parameters: Vec<(String, String)>,
    /// Files that it is about.
    pub(crate) files: Vec<String>,
    /// What has it asked.
    pub(crate) asked_by: String,
    /// When, in milliseconds since 1970.
    pub(crate) asked_ms: i64,
    /// When it stops waiting, likewise.
    pub(crate) expires_ms: i64,
    /// How it ended; none while it waits.
    pub(crate) end: Option<ApprovalEnd>,
}

/// How an approval ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApprovalEnd {
    /// In which way.
    pub(crate) state: EndState,
    /// When, in milliseconds since 1970.
    pub(crate) at_ms: i64,
    /// Who ended it.
    pub(crate) by: String,
    /// Why, in that one's words.
    pub(crate) comment: String,
    /// The rule that was made with it; empty without.
    pub(crate) rule_id: String,
}

/// In which way an approval ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndState {
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

impl EndState {
    /// All of them.
    const ALL: [Self; 5] = [
        Self::Allowed,
        Self::Denied,
        Self::Expired,
        Self::Withdrawn,
        Self::Lost,
    ];

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

impl ApprovalLog {
    /// The log in `database`.
    pub(crate) fn new(database: Database) -> Self {
        Self(database)
    }

    /// Notes that a call waits.
    pub(crate) async fn ask(&self, record: ApprovalRecord) -> Result<(), DatabaseError> {
        let json = |value: serde_json::Result<String>| value.unwrap_or_else(|_| "[]".to_owned());
        let parameters = json(serde_json::to_string(&record.parameters));
        let files = json(serde_json::to_string(&record.files));
        self.0
            .apply(move |connection| {
                connection
                    .prepare_cached(
                        "INSERT INTO approval (id, workspace, session, principal, call_id, tool, parameters, files, asked_by, asked_ms, expires_ms, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 'PENDING')",
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
                        record.asked_ms,
                        record.expires_ms
                    ])
                    .map(drop)
            })
            .await
    }

    /// Notes how one ended, and the rule that was made with it: both, or neither.
    pub(crate) async fn end(
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
                    .execute(params![id, end.state.name(), end.at_ms, end.by, end.comment, end.rule_id])?;
                match &rule {
                    Some(rule) => insert_rule(connection, rule),
                    None => Ok(()),
                }
            })
            .await
    }

    /// Those that waited when the daemon died: to be called before any waits.
    pub(crate) async fn left_behind(&self) -> Result<Vec<ApprovalRecord>, DatabaseError> {
        self.0
            .apply(|connection| {
                let sql = format!("{SELECT} WHERE state = 'PENDING' ORDER BY id");
                connection.prepare(&sql)?.query_map([], read)?.collect()
            })
            .await
    }

    /// One of them.
    pub(crate) async fn find(&self, id: String) -> Result<Option<ApprovalRecord>, DatabaseError> {
        self.0
            .apply(move |connection| {
                let sql = format!("{SELECT} WHERE id = ?1");
                let mut select = connection.prepare_cached(&sql)?;
                select.query_row([id], read).optional()
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
            .apply(move |connection| {
                let sql = format!(
                    "{SELECT} WHERE workspace IN (SELECT value FROM json_each(?1)) AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3"
                );
                let mut select = connection.prepare_cached(&sql)?;
                select.query_map(params![workspaces, before, most], read)?.collect()
            })
            .await
    }

    /// Removes what ended before that time, and what is too much, oldest first; never what waits.
    pub(crate) async fn retain(&self, since_ms: i64) -> Result<(), DatabaseError> {
        loop {
            let removed = self
                .0
                .apply(move |connection| remove(connection, since_ms))
                .await?;
            if removed < REMOVED_TOGETHER as usize {
                return Ok(());
            }
        }
    }
}

const SELECT: &str = "SELECT id, workspace, session, principal, call_id, tool, parameters, files, asked_by, asked_ms, expires_ms, state, decided_ms, decided_by, comment, rule_id FROM approval";

fn read(row: &Row<'_>) -> rusqlite::Result<ApprovalRecord> {
    let json = |column: usize| row.get_ref(column)?.as_str().map_err(rusqlite::Error::from);
    let state = row.get_ref(11)?.as_str()?;
    let state = EndState::ALL.into_iter().find(|end| end.name() == state);
    let end = match state {
        None => None,
        Some(state) => Some(ApprovalEnd {
            state,
            at_ms: row.get::<_, Option<i64>>(12)?.unwrap_or_default(),
            by: row.get(13)?,
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
        parameters: serde_json::from_str(json(6)?).unwrap_or_default(),
        files: serde_json::from_str(json(7)?).unwrap_or_default(),
        asked_by: row.get(8)?,
        asked_ms: row.get(9)?,
        expires_ms: row.get(10)?,
        end,
    })
}

/// Removes some of what is not to be kept any more; answers how many.
fn remove(connection: &Connection, since_ms: i64) -> rusqlite::Result<usize> {
    connection.execute(
        "DELETE FROM approval WHERE id IN (
             SELECT id FROM approval WHERE decided_ms < ?1
             UNION
             SELECT id FROM (SELECT id FROM approval WHERE decided_ms IS NOT NULL ORDER BY decided_ms
                 LIMIT max(0, (SELECT count(*) FROM approval) - ?2))
             LIMIT ?3
         )",
        params![since_ms, MOST_KEPT, REMOVED_TOGETHER],
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
            parameters: vec![("command".to_owned(), "a\n\"b\"".to_owned())],
            files: vec!["f".to_owned()],
            asked_by: "risk dangerous".to_owned(),
            asked_ms: 1,
            expires_ms: 2,
            end: None,
        }
    }

    fn end(state: EndState, at_ms: i64) -> ApprovalEnd {
        ApprovalEnd {
            state,
            at_ms,
            by: "key:b".to_owned(),
            comment: "no".to_owned(),
            rule_id: String::new(),
        }
    }

    #[tokio::test]
    async fn what_was_asked_and_how_it_ended_is_kept_for_a_while() {
        let log = ApprovalLog::new(Database::in_memory().unwrap());
        for (id, workspace) in [("1", "a"), ("2", "b"), ("3", "a"), ("4", "a")] {
            log.ask(record(id, workspace)).await.unwrap();
        }
        let ended = end(EndState::Denied, 10);
        log.end("1".into(), ended.clone(), None).await.unwrap();
        let again = end(EndState::Allowed, 11);
        log.end("1".into(), again, None).await.unwrap();
        let found = log.find("1".into()).await.unwrap().unwrap();
        assert_eq!(found.end, Some(ended), "the first end is the one");
        assert_eq!(found.parameters, record("1", "a").parameters);
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
        assert_eq!(log.left_behind().await.unwrap().len(), 3);
        log.retain(10).await.unwrap();
        assert_eq!(ids(&["a", "b"], None, 9).await.len(), 4);
        log.retain(11).await.unwrap();
        assert_eq!(ids(&["a", "b"], None, 9).await, ["4", "3", "2"]);
    }
}
