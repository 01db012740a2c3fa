//! The table of workspaces that were created while the daemon runs.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row, params};

use super::database::{Database, DatabaseError};

#[derive(Debug, Clone)]
pub(crate) struct CreatedWorkspaceTable(Database);

/// A workspace as it is stored. Times are milliseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredWorkspace {
    pub(crate) name: String,
    /// Name of its directory, which is never used again.
    pub(crate) directory: String,
    /// Name of the principal that created it.
    pub(crate) owner: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Whether its files are complete, and it is not being deleted.
    pub(crate) is_ready: bool,
    pub(crate) created_ms: i64,
    pub(crate) last_used_ms: i64,
    /// `None` if it has no end.
    pub(crate) expires_ms: Option<i64>,
    /// `None` if it may be idle.
    pub(crate) idle_timeout_ms: Option<i64>,
    /// Bounds of its files. `None`: no bound.
    pub(crate) max_bytes: Option<i64>,
    pub(crate) max_files: Option<i64>,
    /// Id of its project quota. `None` without one.
    pub(crate) project_id: Option<u32>,
}

impl CreatedWorkspaceTable {
    /// Creates the table's interface; the schema has the table.
    pub(crate) fn new(database: Database) -> Self {
        Self(database)
    }

    pub(crate) async fn load_all(&self) -> Result<Vec<StoredWorkspace>, DatabaseError> {
        self.0
            .read(|connection| {
                let mut select = connection.prepare(
                    "SELECT name, directory, owner, labels, ready, created_ms, last_used_ms, expires_ms, idle_timeout_ms, max_bytes, max_files, project_id FROM workspace",
                )?;
                select.query_map([], workspace_from_row)?.collect()
            })
            .await
    }

    /// Stores a workspace, in place of an earlier state of it.
    pub(crate) async fn put(&self, workspace: StoredWorkspace) -> Result<(), DatabaseError> {
        self.0.apply_briefly(move |connection| put(connection, &workspace)).await
    }

    /// Stores the times and labels of a workspace, unless it is being deleted.
    pub(crate) async fn update(&self, workspace: StoredWorkspace) -> Result<(), DatabaseError> {
        self.0
            .apply_briefly(move |connection| {
                connection
                    .prepare_cached(
                        "UPDATE workspace SET labels = ?3, last_used_ms = ?4, expires_ms = ?5, idle_timeout_ms = ?6 WHERE name = ?1 AND directory = ?2 AND ready",
                    )?
                    .execute(params![
                        workspace.name,
                        workspace.directory,
                        labels_text(&workspace),
                        workspace.last_used_ms,
                        workspace.expires_ms,
                        workspace.idle_timeout_ms
                    ])
                    .map(drop)
            })
            .await
    }

    /// Removes a workspace, with all rows of its calls, jobs, approvals and rules.
    pub(crate) async fn remove(&self, name: String) -> Result<(), DatabaseError> {
        self.0
            .apply(move |connection| {
                for table in ["request", "job", "approval", "rule"] {
                    connection
                        .execute(&format!("DELETE FROM {table} WHERE workspace = ?1"), [&name])?;
                }
                connection.execute("DELETE FROM workspace WHERE name = ?1", [&name]).map(drop)
            })
            .await
    }
}

fn put(connection: &Connection, workspace: &StoredWorkspace) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(
        "INSERT OR REPLACE INTO workspace (name, directory, owner, labels, ready, created_ms, last_used_ms, expires_ms, idle_timeout_ms, max_bytes, max_files, project_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?;
    insert
        .execute(params![
            workspace.name,
            workspace.directory,
            workspace.owner,
            labels_text(workspace),
            workspace.is_ready,
            workspace.created_ms,
            workspace.last_used_ms,
            workspace.expires_ms,
            workspace.idle_timeout_ms,
            workspace.max_bytes,
            workspace.max_files,
            workspace.project_id
        ])
        .map(drop)
}

fn labels_text(workspace: &StoredWorkspace) -> String {
    serde_json::to_string(&workspace.labels).unwrap_or_default()
}

fn workspace_from_row(row: &Row<'_>) -> rusqlite::Result<StoredWorkspace> {
    let labels: String = row.get(3)?;
    Ok(StoredWorkspace {
        name: row.get(0)?,
        directory: row.get(1)?,
        owner: row.get(2)?,
        labels: serde_json::from_str(&labels).unwrap_or_default(),
        is_ready: row.get(4)?,
        created_ms: row.get(5)?,
        last_used_ms: row.get(6)?,
        expires_ms: row.get(7)?,
        idle_timeout_ms: row.get(8)?,
        max_bytes: row.get(9)?,
        max_files: row.get(10)?,
        project_id: row.get(11)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(name: &str) -> StoredWorkspace {
        StoredWorkspace {
            name: name.to_owned(),
            directory: format!("d-{name}"),
            owner: "key:a".to_owned(),
            labels: [("k".to_owned(), "v".to_owned())].into(),
            is_ready: false,
            created_ms: 1,
            last_used_ms: 2,
            expires_ms: None,
            idle_timeout_ms: Some(3),
            max_bytes: Some(1 << 40),
            max_files: None,
            project_id: Some(7),
        }
    }

    #[tokio::test]
    async fn workspaces_are_stored_replaced_and_removed() {
        let database = Database::in_memory().unwrap();
        let table = CreatedWorkspaceTable::new(database.clone());
        table.put(workspace("a")).await.unwrap();
        table.put(workspace("b")).await.unwrap();
        let ready = StoredWorkspace { is_ready: true, expires_ms: Some(9), ..workspace("a") };
        table.put(ready.clone()).await.unwrap();
        let claim = |connection: &Connection| {
            connection.execute(
                "INSERT INTO request (principal, workspace, id, holder, method, session, fingerprint, life, begun_ms) VALUES ('p', 'b', 'i', x'', 'm', 's', x'', 'l', 1)",
                [],
            )
        };
        database.apply(claim).await.unwrap();
        // Too late: it is being deleted.
        table
            .update(StoredWorkspace { created_ms: 1, last_used_ms: 99, ..workspace("b") })
            .await
            .unwrap();
        let used = StoredWorkspace { last_used_ms: 5, ..ready };
        table.update(used.clone()).await.unwrap();
        let stored = table.load_all().await.unwrap();
        assert!(stored.contains(&used) && stored.contains(&workspace("b")), "{stored:?}");

        table.remove("b".to_owned()).await.unwrap();
        assert_eq!(table.load_all().await.unwrap(), [used]);
        let count = |connection: &Connection| {
            connection.query_row("SELECT count(*) FROM request", [], |row| row.get::<_, i64>(0))
        };
        assert_eq!(database.read(count).await.unwrap(), 0);
    }
}
