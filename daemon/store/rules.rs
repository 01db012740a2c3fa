//! The table of policy rules that were created at runtime.

use rusqlite::{Connection, Row, params};

use super::database::{Database, DatabaseError};

#[derive(Debug, Clone)]
pub(crate) struct RuleTable(Database);

/// A rule as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredRule {
    /// A ULID.
    pub(crate) id: String,
    pub(crate) workspace: String,
    /// A display name.
    pub(crate) name: String,
    /// The tool that the rule applies to.
    pub(crate) tool: String,
    /// A regular expression on the parameters. Without one, the rule matches any.
    pub(crate) pattern: Option<String>,
    /// `ALLOW`, `ASK` or `DENY`.
    pub(crate) action: String,
    /// Milliseconds since the Unix epoch.
    pub(crate) expires_ms: Option<i64>,
    pub(crate) enabled: bool,
    pub(crate) created_by: String,
    /// Milliseconds since the Unix epoch.
    pub(crate) created_ms: i64,
    /// The approval that the rule was created with.
    pub(crate) approval_id: Option<String>,
}

impl RuleTable {
    /// Creates the table's interface; the schema has the table.
    pub(crate) fn new(database: Database) -> Self {
        Self(database)
    }

    pub(crate) async fn load_all(&self) -> Result<Vec<StoredRule>, DatabaseError> {
        self.0
            .read(|connection| {
                let mut select = connection.prepare(
                    "SELECT id, workspace, name, tool, pattern, action, expires_ms, enabled, created_by, created_ms, approval_id FROM rule",
                )?;
                select.query_map([], rule_from_row)?.collect()
            })
            .await
    }

    pub(crate) async fn add(&self, rule: StoredRule) -> Result<(), DatabaseError> {
        self.0.apply(move |connection| insert(connection, &rule)).await
    }

    /// Sets whether a rule is enabled, and when it expires.
    pub(crate) async fn update(
        &self,
        id: String,
        enabled: bool,
        expires_ms: Option<i64>,
    ) -> Result<(), DatabaseError> {
        self.0
            .apply(move |connection| {
                connection
                    .prepare_cached("UPDATE rule SET enabled = ?2, expires_ms = ?3 WHERE id = ?1")?
                    .execute(params![id, enabled, expires_ms])
                    .map(drop)
            })
            .await
    }

    pub(crate) async fn remove(&self, ids: Vec<String>) -> Result<(), DatabaseError> {
        self.0
            .apply(move |connection| {
                let mut delete = connection.prepare_cached("DELETE FROM rule WHERE id = ?1")?;
                for id in &ids {
                    delete.execute([id])?;
                }
                Ok(())
            })
            .await
    }
}

pub(super) fn insert(connection: &Connection, rule: &StoredRule) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO rule (id, workspace, name, tool, pattern, action, expires_ms, enabled, created_by, created_ms, approval_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?;
    insert
        .execute(params![
            rule.id,
            rule.workspace,
            rule.name,
            rule.tool,
            rule.pattern,
            rule.action,
            rule.expires_ms,
            rule.enabled,
            rule.created_by,
            rule.created_ms,
            rule.approval_id
        ])
        .map(drop)
}

fn rule_from_row(row: &Row<'_>) -> rusqlite::Result<StoredRule> {
    Ok(StoredRule {
        id: row.get(0)?,
        workspace: row.get(1)?,
        name: row.get(2)?,
        tool: row.get(3)?,
        pattern: row.get(4)?,
        action: row.get(5)?,
        expires_ms: row.get(6)?,
        enabled: row.get(7)?,
        created_by: row.get(8)?,
        created_ms: row.get(9)?,
        approval_id: row.get(10)?,
    })
}
