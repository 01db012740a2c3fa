//! Opens the database: creates a missing one, migrates an older one, and rejects one that is
//! damaged, newer, or not jig's. Never overwrites existing data.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, Error, OpenFlags};

use super::{connection::Database, integrity};

/// `PRAGMA application_id` in the header of the file: `jigd`.
const APPLICATION_ID: i32 = 0x6a69_6764;
/// `PRAGMA auto_vacuum`: free pages can be returned to the disk.
const AUTO_VACUUM_INCREMENTAL: i32 = 2;

/// Each creates a version of the schema from the one before it; the first from nothing.
const MIGRATIONS: [&str; 10] = [
    include_str!("1.sql"),
    include_str!("2.sql"),
    include_str!("3.sql"),
    include_str!("4.sql"),
    include_str!("5.sql"),
    include_str!("6.sql"),
    include_str!("7.sql"),
    include_str!("8.sql"),
    include_str!("9.sql"),
    include_str!("10.sql"),
];

/// Display says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatabaseOpenError {
    #[error(
        "{path} was written by a newer jigd (schema version {found}, this one supports up to {known}): use the newer one, or give this one a state directory of its own (--state-dir)"
    )]
    Newer {
        path: String,
        /// Version of its schema.
        found: usize,
        /// Latest version that this daemon supports.
        known: usize,
    },
    /// It has lost its content.
    #[error(
        "{path} is empty, though the state directory has jobs or sessions: restore it, or move it and the files beside it (-wal, -shm) away to start with an empty one, which loses its jobs, request ids and rules"
    )]
    Emptied { path: String },
    #[error(
        "{path} is not a database of jigd's: move it away, or choose another state directory (--state-dir)"
    )]
    NotOurs { path: String },
    #[error(
        "{path} is damaged ({damage}): restore it, or move it and the files beside it (-wal, -shm) away to start with an empty one, which loses its jobs, request ids and rules"
    )]
    Corrupt { path: String, damage: String },
    #[error("{path} cannot be used: its disk is full: make room there")]
    Full { path: String },
    #[error("{path} cannot be used: another program has locked it: stop that program")]
    Busy { path: String },
    #[error(
        "{path} cannot be used: make sure that this user can read and write it, and that its disk works"
    )]
    Unusable {
        path: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Database {
    /// Opens the database in the file at `path`, creating it if it is missing. With `has_records`,
    /// the state directory has records of earlier daemons, so the file must not be empty. Blocks.
    pub(crate) fn open(path: &Path, has_records: bool) -> Result<Self, DatabaseOpenError> {
        let is_new = match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.is_file() => return Err(not_ours(path)),
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(unusable(path, error)),
        };

        // SQLite gives the files beside it the same mode.
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|source| unusable(path, source))?;

        let opened = open_file(path, has_records && !is_new);
        if is_new && opened.is_err() {
            // The next start would take it for a database that has lost its content.
            let _removed = fs::remove_file(path);
        }
        Self::spawn(opened?).map_err(|source| unusable(path, source))
    }

    /// Opens a database in memory, which is lost with the daemon.
    pub(crate) fn in_memory() -> Result<Self, DatabaseOpenError> {
        let path = PathBuf::from(":memory:");
        let connection = open_empty().map_err(|error| open_error(&path, error))?;
        Self::spawn(connection).map_err(|source| unusable(&path, source))
    }
}

fn open_file(path: &Path, must_have_schema: bool) -> Result<Connection, DatabaseOpenError> {
    let failed = |error| open_error(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    let version = check_file(&connection, path, must_have_schema)?;

    enable_incremental_vacuum(&connection, path).map_err(failed)?;
    configure(&connection).map_err(failed)?;
    migrate(&mut connection).map_err(|error| {
        // The schema is not that of its version. The statement that failed is of no use to the
        // operator.
        if let Error::SqlInputError { msg, .. } = &error {
            let damage = format!("its schema is not that of version {version}: {msg}");
            return corrupt(path, damage);
        }
        open_error(path, error)
    })?;

    let expected = open_empty().and_then(|connection| integrity::schema_parts(&connection));
    let found = integrity::schema_parts(&connection).map_err(failed)?;
    if let Some(missing) = expected.map_err(failed)?.difference(&found).next() {
        return Err(corrupt(path, format!("its {missing} is missing")));
    }

    integrity::check_in_background(&connection, path.to_owned()).map_err(failed)?;
    Ok(connection)
}

/// Opens an empty database with the current schema, in memory.
fn open_empty() -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    configure(&connection)?;
    migrate(&mut connection)?;
    Ok(connection)
}

/// Checks the file before any change to it. Returns the version of its schema.
fn check_file(
    connection: &Connection,
    path: &Path,
    must_have_schema: bool,
) -> Result<usize, DatabaseOpenError> {
    let failed = |error| open_error(path, error);
    let (application, version) = read_header(connection).map_err(failed)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;

    let is_empty = (application, version, tables) == (0, 0, 0);
    if application != APPLICATION_ID && !is_empty {
        return Err(not_ours(path));
    }
    if is_empty && must_have_schema {
        return Err(DatabaseOpenError::Emptied { path: path.display().to_string() });
    }

    let Ok(version) = usize::try_from(version) else {
        return Err(corrupt(path, format!("its schema has the version {version}")));
    };
    if version > MIGRATIONS.len() {
        return Err(DatabaseOpenError::Newer {
            path: path.display().to_string(),
            found: version,
            known: MIGRATIONS.len(),
        });
    }

    match integrity::check_at_startup(connection).map_err(failed)? {
        None => Ok(version),
        Some(damage) => Err(corrupt(path, damage)),
    }
}

/// Makes it possible to shrink the file. Rewrites the file of an earlier version once; if the disk
/// has no space for that, a later start tries again.
fn enable_incremental_vacuum(connection: &Connection, path: &Path) -> rusqlite::Result<()> {
    let mode: i32 = connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
    if mode == AUTO_VACUUM_INCREMENTAL {
        return Ok(());
    }

    connection.pragma_update(None, "auto_vacuum", AUTO_VACUUM_INCREMENTAL)?;
    let (_, version) = read_header(connection)?;
    if version == 0 {
        return Ok(());
    }

    // In the same directory: the daemon may not write elsewhere, and memory may be too small.
    let directory = path.parent().unwrap_or(path).display().to_string();
    connection.pragma_update(None, "temp_store_directory", directory)?;
    if let Err(error) = connection.execute_batch("VACUUM") {
        tracing::warn!(%error, "cannot rewrite the database; its file will not shrink");
    }
    Ok(())
}

/// Sets the options of the connection.
fn configure(connection: &Connection) -> rusqlite::Result<()> {
    // A database in memory returns "memory".
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.execute_batch(
        "PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY;",
    )?;
    connection.query_row("PRAGMA journal_size_limit = 67108864", [], |_| Ok(()))
}

/// Migrates the schema to the latest version.
fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    let (_, version) = read_header(connection)?;
    let applied = usize::try_from(version).unwrap_or(usize::MAX);
    for (index, change) in MIGRATIONS.iter().enumerate().skip(applied) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(change)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        let version = i32::try_from(index + 1).unwrap_or(i32::MAX);
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()?;
    }

    if applied < MIGRATIONS.len() {
        // Writes the schema to the file itself: without its WAL, it would be taken for empty.
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    }
    Ok(())
}

/// Returns the application id and the schema version.
fn read_header(connection: &Connection) -> rusqlite::Result<(i32, i32)> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get(0));
    Ok((pragma("application_id")?, pragma("user_version")?))
}

fn unusable(path: &Path, source: io::Error) -> DatabaseOpenError {
    let path = path.display().to_string();
    match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => DatabaseOpenError::Full { path },
        _ => DatabaseOpenError::Unusable { path, source: source.into() },
    }
}

fn not_ours(path: &Path) -> DatabaseOpenError {
    DatabaseOpenError::NotOurs { path: path.display().to_string() }
}

fn corrupt(path: &Path, damage: String) -> DatabaseOpenError {
    DatabaseOpenError::Corrupt { path: path.display().to_string(), damage }
}

fn open_error(path: &Path, error: Error) -> DatabaseOpenError {
    use rusqlite::ErrorCode::{
        DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, NotADatabase,
    };
    match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => corrupt(path, error.to_string()),
        Some(DiskFull) => DatabaseOpenError::Full { path: path.display().to_string() },
        Some(DatabaseBusy | DatabaseLocked) => {
            DatabaseOpenError::Busy { path: path.display().to_string() }
        }
        _ => DatabaseOpenError::Unusable { path: path.display().to_string(), source: error.into() },
    }
}

#[cfg(test)]
mod tests;
