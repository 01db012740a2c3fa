//! Looking whether the file holds what was written: before it is used, and of a large one beside its use.
//! SQLite itself refuses what it finds to be wrong with the page that it reads.

use std::{collections::BTreeSet, path::PathBuf, thread};

use rusqlite::{Connection, OpenFlags};

/// Largest file of which all is looked at before it is used: that takes some ten milliseconds.
const MAX_STARTUP_CHECK_BYTES: i64 = 4 << 20;
/// What is always looked at before: what is read when the daemon starts, and is not large. The rest is
/// found by those who ask for it.
const STARTUP_CHECK_TABLES: &str = "'sqlite_schema', 'fact', 'approval', 'rule'";

/// Looks before the file is used. Answers what is wrong with it.
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
        if let Some(wrong) = quick_check(connection, &name)? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

/// What a database of this schema has: its columns, its indexes, and what each must say of itself.
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

/// Looks at all of a large file while it is used, on a thread of its own. What is wrong with it is told in
/// the log.
pub(super) fn check_in_background(connection: &Connection, path: PathBuf) -> rusqlite::Result<()> {
    if !is_large(connection)? {
        return Ok(());
    }
    let look = move || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let found = Connection::open_with_flags(path, flags)
            .and_then(|connection| quick_check(&connection, "1"));
        match found {
            Ok(None) => tracing::debug!("the database was looked through"),
            Ok(Some(what)) => tracing::error!(
                what,
                "the daemon's database is damaged: stop the daemon and restore jig.db, or move it and the files beside it (-wal, -shm) away to begin with an empty one"
            ),
            Err(error) => tracing::error!(%error, "the database could not be looked through"),
        }
    };
    let thread = thread::Builder::new().name("jigd-check".to_owned());
    if let Err(error) = thread.spawn(look) {
        tracing::warn!(%error, "the database is not looked through");
    }
    Ok(())
}

/// What is wrong with a table, or, given a number, with the first of all.
fn quick_check(connection: &Connection, what: &str) -> rusqlite::Result<Option<String>> {
    let sql = format!("PRAGMA quick_check({what})");
    let found: String = connection.query_row(&sql, [], |row| row.get(0))?;
    Ok((found != "ok").then_some(found))
}

fn is_large(connection: &Connection) -> rusqlite::Result<bool> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    Ok(number("page_count")? * number("page_size")? > MAX_STARTUP_CHECK_BYTES)
}
