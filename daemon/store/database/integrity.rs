//! Integrity checks of the database file: before it is used, and in the background for a large one.
//!
//! In between, SQLite itself rejects each page that it reads and finds damaged.

use std::{collections::BTreeSet, path::PathBuf, thread};

use rusqlite::{Connection, OpenFlags};

/// Largest file that is checked completely before it is used, which takes about 10 ms.
const MAX_STARTUP_CHECK_BYTES: i64 = 4 << 20;
/// Tables that are always checked before: small ones that the daemon reads at startup. Calls that
/// read the others find their damage.
const STARTUP_CHECK_TABLES: &str = "'sqlite_schema', 'fact', 'approval', 'rule'";

/// Checks the file before it is used. Returns a description of the damage, if any.
pub(super) fn check_at_startup(connection: &Connection) -> rusqlite::Result<Option<String>> {
    if !is_large(connection)? {
        return quick_check(connection, "1");
    }

    let sql = format!(
        "SELECT name FROM (SELECT name FROM sqlite_schema UNION ALL SELECT 'sqlite_schema') WHERE name IN ({STARTUP_CHECK_TABLES})"
    );
    let mut select = connection.prepare(&sql)?;
    let names = select.query_map([], |row| row.get::<_, String>(0))?;

    for name in names.collect::<rusqlite::Result<Vec<_>>>()? {
        if let Some(damage) = quick_check(connection, &name)? {
            return Ok(Some(damage));
        }
    }
    Ok(None)
}

/// Returns the names of the columns, the indexes and the rows of `fact` in a database.
pub(super) fn schema_parts(connection: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    let mut select = connection.prepare(
        "SELECT 'column ' || part.name || '.' || columns.name FROM sqlite_schema part JOIN pragma_table_info(part.name) columns WHERE part.type = 'table'
         UNION ALL SELECT 'index ' || name FROM sqlite_schema WHERE type = 'index' AND name NOT LIKE 'sqlite_%'",
    )?;
    let parts = select.query_map([], |row| row.get(0))?;
    let mut parts: BTreeSet<String> = parts.collect::<rusqlite::Result<_>>()?;

    if parts.contains("column fact.name") {
        let mut select = connection.prepare("SELECT 'fact ' || name FROM fact")?;
        let facts = select.query_map([], |row| row.get(0))?;
        parts.extend(facts.collect::<rusqlite::Result<Vec<String>>>()?);
    }
    Ok(parts)
}

/// Checks all of a large file on a thread of its own. Logs any damage.
pub(super) fn check_in_background(connection: &Connection, path: PathBuf) -> rusqlite::Result<()> {
    if !is_large(connection)? {
        return Ok(());
    }
    let check = move || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let result = Connection::open_with_flags(path, flags)
            .and_then(|connection| quick_check(&connection, "1"));
        match result {
            Ok(None) => tracing::debug!("the database passed the integrity check"),
            Ok(Some(damage)) => tracing::error!(
                damage,
                "the daemon's database is damaged: stop the daemon and restore jig.db, or move it and the files beside it (-wal, -shm) away to start with an empty one"
            ),
            Err(error) => tracing::error!(%error, "cannot check the integrity of the database"),
        }
    };

    let thread = thread::Builder::new().name("jigd-check".to_owned());
    if let Err(error) = thread.spawn(check) {
        tracing::warn!(%error, "cannot start the integrity check of the database");
    }
    Ok(())
}

/// Runs `PRAGMA quick_check`. `argument` is the name of a table, or the maximum number of errors
/// when checking all tables. Returns a description of the damage, if any.
fn quick_check(connection: &Connection, argument: &str) -> rusqlite::Result<Option<String>> {
    let sql = format!("PRAGMA quick_check({argument})");
    let report: String = connection.query_row(&sql, [], |row| row.get(0))?;
    Ok((report != "ok").then_some(report))
}

fn is_large(connection: &Connection) -> rusqlite::Result<bool> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    Ok(number("page_count")? * number("page_size")? > MAX_STARTUP_CHECK_BYTES)
}
