//! The table of approvals: calls that waited for one, and how each ended.

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde::{Deserialize, Serialize};

use super::{
    database::{Database, DatabaseError},
    rules::{StoredRule, insert as insert_rule},
};

/// Each row takes up to about 40 KiB.
const MAX_APPROVALS: u32 = 100_000;
/// Rows that one transaction deletes at limit. Other users of the database wait for it.
const MAX_DELETE_BATCH_ROWS: u32 = 1000;

#[derive(Debug, Clone)]
pub(crate) struct ApprovalTable(Database);

/// A call that needs approval.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ApprovalRecord {
    /// A ULID.
    pub(crate) id: String,
    pub(crate) workspace: String,
    pub(crate) session: String,
    pub(crate) principal: String,
    pub(crate) call_id: String,
    pub(crate) tool: String,
    /// Name of the tool in the caller's dialect, as in `cli_agent/create_file`. Empty if the call
    /// used the tool's own name.
    pub(crate) called_name: String,
    pub(crate) parameters: Vec<ApprovalParameter>,
    /// The first files that the call is about.
    pub(crate) files: Vec<String>,
    /// Number of files beyond `files`.
    pub(crate) more_files: u32,
    /// The rule or risk level that requires the approval.
    pub(crate) required_by: String,
    /// Milliseconds since the Unix epoch.
    pub(crate) requested_ms: i64,
    /// Milliseconds since the Unix epoch.
    pub(crate) expires_ms: i64,
    /// `None` while it is pending.
    pub(crate) end: Option<ApprovalEnd>,
}

/// A parameter to show to people, without values that may be secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ApprovalParameter {
    pub(crate) name: String,
    /// The value, or its beginning.
    pub(crate) value: String,
    /// Bytes omitted between `value` and `ending`.
    #[serde(default)]
    pub(crate) omitted_bytes: u32,
    /// The end of the value, after the omitted bytes.
    #[serde(default)]
    pub(crate) ending: String,
}

/// How an approval ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApprovalEnd {
    pub(crate) state: ApprovalEndState,
    /// Milliseconds since the Unix epoch.
    pub(crate) ended_ms: i64,
    /// The principal that decided.
    pub(crate) ended_by: String,
    /// The reason, as given by `ended_by`.
    pub(crate) comment: String,
    /// The rule that was created with the decision; may be empty.
    pub(crate) rule_id: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApprovalEndState {
    Allowed,
    Denied,
    /// The time limit passed without a decision.
    Expired,
    /// All clients that waited for it have disconnected.
    Withdrawn,
    /// The daemon died while it was pending.
    Lost,
}

impl ApprovalEndState {
    const ALL: [Self; 5] =
        [Self::Allowed, Self::Denied, Self::Expired, Self::Withdrawn, Self::Lost];

    /// Returns the name of the state in the database and in the contract.
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
    /// Creates the table's interface; the schema has the table.
    pub(crate) fn new(database: Database) -> Self {
        Self(database)
    }

    /// Inserts a pending approval.
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
                        record.required_by,
                        record.requested_ms,
                        record.expires_ms,
                        record.called_name
                    ])
                    .map(drop)
            })
            .await
    }

    /// Records the end of a pending approval, and inserts `rule` in the same transaction.
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

    /// Returns the approvals that were pending when the previous daemon died. Call it at startup,
    /// before any is inserted.
    pub(crate) async fn find_orphaned(&self) -> Result<Vec<ApprovalRecord>, DatabaseError> {
        self.0
            .read(|connection| {
                let sql = format!("{SELECT_APPROVAL} WHERE state = 'PENDING' ORDER BY id");
                connection.prepare(&sql)?.query_map([], approval_from_row)?.collect()
            })
            .await
    }

    pub(crate) async fn find(&self, id: String) -> Result<Option<ApprovalRecord>, DatabaseError> {
        self.0
            .read(move |connection| {
                let sql = format!("{SELECT_APPROVAL} WHERE id = ?1");
                let mut select = connection.prepare_cached(&sql)?;
                select.query_row([&id], approval_from_row).optional()
            })
            .await
    }

    /// Lists at limit `limit` approvals of the workspaces, newest first, older than the id `before`.
    pub(crate) async fn list(
        &self,
        workspaces: Vec<String>,
        before: Option<String>,
        limit: u32,
    ) -> Result<Vec<ApprovalRecord>, DatabaseError> {
        let workspaces = serde_json::to_string(&workspaces).unwrap_or_else(|_| "[]".to_owned());
        self.0
            .read(move |connection| {
                let sql = format!(
                    "{SELECT_APPROVAL} WHERE workspace IN (SELECT value FROM json_each(?1)) AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3"
                );
                let mut select = connection.prepare_cached(&sql)?;
                select.query_map(params![workspaces, before, limit], approval_from_row)?.collect()
            })
            .await
    }

    /// Removes approvals that ended before `since_ms`, and the excess over [`MAX_APPROVALS`].
    ///
    /// The excess is removed in this order: those without a decision first, then those of the
    /// principal with the limit, then the oldest. Pending approvals are never removed.
    pub(crate) async fn apply_retention(&self, since_ms: i64) -> Result<(), DatabaseError> {
        self.retain_at_most(since_ms, MAX_APPROVALS).await
    }

    async fn retain_at_most(&self, since_ms: i64, max_rows: u32) -> Result<(), DatabaseError> {
        loop {
            let removed = self
                .0
                .apply(move |connection| delete_batch(connection, since_ms, max_rows))
                .await?;
            if removed < MAX_DELETE_BATCH_ROWS as usize {
                return Ok(());
            }
        }
    }
}

/// Some columns have other names than the fields: see [`super::database`].
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
            ended_by: label_from_row(row.get(13)?),
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
        called_name: row.get(16)?,
        parameters: serde_json::from_str(json(6)?).unwrap_or_default(),
        files,
        more_files,
        required_by: label_from_row(row.get(8)?),
        requested_ms: row.get(9)?,
        expires_ms: row.get(10)?,
        end,
    })
}

/// Converts a label of an earlier daemon, `rule ID` or `risk LEVEL`, to `rule:ID` or `risk:LEVEL`.
fn label_from_row(label: String) -> String {
    match label.split_once(' ') {
        Some((kind @ ("rule" | "risk"), name)) => format!("{kind}:{name}"),
        _ => label,
    }
}

/// Removes one batch of expired or excess rows and returns their number.
fn delete_batch(connection: &Connection, since_ms: i64, max_rows: u32) -> rusqlite::Result<usize> {
    let expired = connection.execute(
        "DELETE FROM approval WHERE id IN (SELECT id FROM approval WHERE decided_ms < ?1 LIMIT ?2)",
        params![since_ms, MAX_DELETE_BATCH_ROWS],
    )?;

    let count: u32 = connection.query_row("SELECT count(*) FROM approval", [], |row| row.get(0))?;
    let excess = count.saturating_sub(max_rows).min(MAX_DELETE_BATCH_ROWS);
    if expired > 0 || excess == 0 {
        return Ok(expired);
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
            called_name: String::new(),
            parameters: vec![ApprovalParameter {
                name: "command".to_owned(),
                value: "a\n\"b\"".to_owned(),
                omitted_bytes: 7,
                ending: "c".to_owned(),
            }],
            files: vec!["f".to_owned()],
            more_files: 3,
            required_by: "risk:dangerous".to_owned(),
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

    #[test]
    fn labels_of_earlier_daemons_are_converted() {
        for (stored, expected) in [
            ("rule file:one", "rule:file:one"),
            ("risk dangerous", "risk:dangerous"),
            ("rule:01R", "rule:01R"),
            ("key:a", "key:a"),
            ("daemon", "daemon"),
            ("", ""),
        ] {
            assert_eq!(label_from_row(stored.to_owned()), expected);
        }
    }

    #[tokio::test]
    async fn approvals_are_stored_listed_and_removed_after_their_end() {
        let table = ApprovalTable::new(Database::in_memory().unwrap());
        for (id, workspace) in [("1", "a"), ("2", "b"), ("3", "a"), ("4", "a")] {
            table.insert_pending(record(id, workspace)).await.unwrap();
        }
        let ended = end(ApprovalEndState::Denied, 10);
        table.record_end("1".into(), ended.clone(), None).await.unwrap();
        let again = end(ApprovalEndState::Allowed, 11);
        table.record_end("1".into(), again, None).await.unwrap();
        let found = table.find("1".into()).await.unwrap().unwrap();
        assert_eq!(found.end, Some(ended), "the first end is final");
        let requested = record("1", "a");
        assert_eq!(
            (found.parameters, found.files, found.more_files),
            (requested.parameters, requested.files, requested.more_files)
        );
        let ids = async |workspaces: &[&str], before: Option<&str>, limit| {
            let names = workspaces.iter().map(|name| (*name).to_owned()).collect();
            let listed = table.list(names, before.map(str::to_owned), limit).await;
            let listed = listed.unwrap().into_iter().map(|record| record.id);
            listed.collect::<Vec<_>>()
        };
        assert_eq!(ids(&["a"], None, 2).await, ["4", "3"]);
        assert_eq!(ids(&["a"], Some("3"), 2).await, ["1"]);
        assert_eq!(ids(&["a", "b"], None, 9).await, ["4", "3", "2", "1"]);
        assert_eq!(ids(&[], None, 9).await, [""; 0]);
        assert_eq!(table.find_orphaned().await.unwrap().len(), 3);
        table.apply_retention(10).await.unwrap();
        assert_eq!(ids(&["a", "b"], None, 9).await.len(), 4);
        table.apply_retention(11).await.unwrap();
        assert_eq!(ids(&["a", "b"], None, 9).await, ["4", "3", "2"]);
    }

    #[tokio::test]
    async fn flood_of_approvals_does_not_evict_decided_ones() {
        let table = ApprovalTable::new(Database::in_memory().unwrap());
        let insert = async |id: &str, principal: &str, state: Option<ApprovalEndState>| {
            let record = ApprovalRecord { principal: principal.to_owned(), ..record(id, "a") };
            table.insert_pending(record).await.unwrap();
            if let Some(state) = state {
                table.record_end(id.into(), end(state, 10), None).await.unwrap();
            }
        };
        insert("1", "key:a", Some(ApprovalEndState::Allowed)).await;
        insert("2", "key:a", Some(ApprovalEndState::Expired)).await;
        insert("3", "key:flood", None).await;
        for id in ["4", "5", "6", "7"] {
            insert(id, "key:flood", Some(ApprovalEndState::Withdrawn)).await;
        }
        for (limit, remaining) in
            [(5, &["1", "2", "3", "6", "7"][..]), (4, &["1", "2", "3", "7"]), (1, &["3"])]
        {
            table.retain_at_most(0, limit).await.unwrap();
            let listed = table.list(vec!["a".to_owned()], None, 9).await.unwrap();
            let mut ids: Vec<_> = listed.into_iter().map(|record| record.id).collect();
            ids.sort();
            assert_eq!(ids, remaining);
        }
    }
}
