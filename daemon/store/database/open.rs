//! Opening the database: making it where it is missing, bringing an older one up to date, and refusing
//! what is damaged, newer, or somebody else's. Nothing that was there is ever overwritten.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, Error, OpenFlags};

use super::{connection::Database, integrity};

/// In the header of the file: what it is (`PRAGMA application_id`): `jigd`.
const APPLICATION_ID: i32 = 0x6a69_6764;
/// That pages in which nothing is kept can be given back to the disk (`PRAGMA auto_vacuum`).
const AUTO_VACUUM_INCREMENTAL: i32 = 2;

/// What makes each version of the schema from the one before it; the first, from nothing.
const MIGRATIONS: [&str; 7] = [
    include_str!("1.sql"),
    include_str!("2.sql"),
    include_str!("3.sql"),
    include_str!("4.sql"),
    include_str!("5.sql"),
    include_str!("6.sql"),
    include_str!("7.sql"),
];

/// Why a database cannot be used. Display says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatabaseOpenError {
    /// A later daemon has written it.
    #[error(
        "{path} is of a newer jigd (schema {found}; this one knows {known}): use that one, or a state directory of its own for this one (--state-dir)"
    )]
    Newer {
        /// The file.
        path: String,
        /// Version of its schema.
        found: usize,
        /// Latest version that is known here.
        known: usize,
    },
    /// It has lost what was in it.
    #[error(
        "{path} is empty, though the state directory has jobs or sessions: restore it, or move it and the files beside it (-wal, -shm) away to begin with an empty one; jobs, request ids and rules in it are then forgotten"
    )]
    Emptied {
        /// The file.
        path: String,
    },
    /// It is no database of a daemon's.
    #[error(
        "{path} is not a database of jigd's: move it away, or choose another state directory (--state-dir)"
    )]
    NotOurs {
        /// The file.
        path: String,
    },
    /// What it holds is not what was written.
    #[error(
        "{path} is damaged ({what}): restore it, or move it and the files beside it (-wal, -shm) away to begin with an empty one; jobs, request ids and rules in it are then forgotten"
    )]
    Corrupt {
        /// The file.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// There is no room for it.
    #[error("{path} cannot be used: its disk is full: make room there")]
    Full {
        /// The file.
        path: String,
    },
    /// Somebody else uses it.
    #[error("{path} cannot be used: another program holds it: end that one")]
    Busy {
        /// The file.
        path: String,
    },
    /// It cannot be opened or written to.
    #[error(
        "{path} cannot be used: see to it that this user may read and write it, and that its disk is well"
    )]
    Unusable {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Database {
    /// Opens the database in the file at `path`, making it where it is missing. `has_records`: whether the
    /// daemons that used it have left anything else, so that it cannot be empty. Blocks.
    pub(crate) fn open(path: &Path, has_records: bool) -> Result<Self, DatabaseOpenError> {
        let is_new = match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.is_file() => return Err(not_ours(path)),
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(unusable(path, error)),
        };
        // SQLite gives the files beside it the mode that it has.
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
            // It would be taken for one that has lost what was in it.
            let _left = fs::remove_file(path);
        }
        Self::spawn(opened?).map_err(|source| unusable(path, source))
    }

    /// A database that is gone with the daemon.
    pub(crate) fn in_memory() -> Result<Self, DatabaseOpenError> {
        let path = PathBuf::from(":memory:");
        let connection = open_empty().map_err(|error| open_error(&path, error))?;
        Self::spawn(connection).map_err(|source| unusable(&path, source))
    }
}

fn open_file(path: &Path, must_have_schema: bool) -> Result<Connection, DatabaseOpenError> {
    let refused = |error| open_error(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(path, flags).map_err(refused)?;
    let version = check_file(&connection, path, must_have_schema)?;
    enable_incremental_vacuum(&connection, path).map_err(refused)?;
    configure(&connection).map_err(refused)?;
    migrate(&mut connection).map_err(|error| {
        // What it has is not what one of that version has. Of the statement nobody needs to read.
        if let Error::SqlInputError { msg, .. } = &error {
            let what = format!("its schema is not that of version {version}: {msg}");
            return corrupt(path, what);
        }
        open_error(path, error)
    })?;
    let expected = open_empty().and_then(|connection| integrity::schema_parts(&connection));
    let found = integrity::schema_parts(&connection).map_err(refused)?;
    if let Some(missing) = expected.map_err(refused)?.difference(&found).next() {
        return Err(corrupt(path, format!("its {missing} is missing")));
    }
    integrity::check_in_background(&connection, path.to_owned()).map_err(refused)?;
    Ok(connection)
}

/// One that has nothing but the schema, in memory.
fn open_empty() -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    configure(&connection)?;
    migrate(&mut connection)?;
    Ok(connection)
}

/// Looks whether the file is what it should be, before anything is changed in it. Answers the version of its
/// schema.
fn check_file(
    connection: &Connection,
    path: &Path,
    must_have_schema: bool,
) -> Result<usize, DatabaseOpenError> {
    let refused = |error| open_error(path, error);
    let (application, version) = read_header(connection).map_err(refused)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(refused)?;
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
    match integrity::check_at_startup(connection).map_err(refused)? {
        None => Ok(version),
        Some(what) => Err(corrupt(path, what)),
    }
}

/// Sees to it that the file can be made smaller. One of an earlier daemon's is written anew for that, once;
/// where there is no room for it, it stays as it is until there is.
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
    // Beside it: elsewhere the daemon may not write, and memory is not for as much.
    let folder = path.parent().unwrap_or(path).display().to_string();
    connection.pragma_update(None, "temp_store_directory", folder)?;
    if let Err(error) = connection.execute_batch("VACUUM") {
        tracing::warn!(%error, "the database cannot be written anew, and will not get smaller");
    }
    Ok(())
}

/// Sets what belongs to the connection.
fn configure(connection: &Connection) -> rusqlite::Result<()> {
    // Answers "memory" for a database in memory.
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.execute_batch(
        "PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY;",
    )?;
    connection.query_row("PRAGMA journal_size_limit = 67108864", [], |_| Ok(()))
}

/// Brings the schema up to date.
fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    let (_, version) = read_header(connection)?;
    let done = usize::try_from(version).unwrap_or(usize::MAX);
    for (index, change) in MIGRATIONS.iter().enumerate().skip(done) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(change)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        let version = i32::try_from(index + 1).unwrap_or(i32::MAX);
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()?;
    }
    if done < MIGRATIONS.len() {
        // Into the file itself: without what is beside it, it would be taken for an empty one.
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    }
    Ok(())
}

/// What the header says that the file is, and the version of its schema.
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

fn corrupt(path: &Path, what: String) -> DatabaseOpenError {
    DatabaseOpenError::Corrupt { path: path.display().to_string(), what }
}

fn open_error(path: &Path, error: Error) -> DatabaseOpenError {
    use rusqlite::ErrorCode::{
        DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, NotADatabase,
    };
    let named = path.display().to_string();
    match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => corrupt(path, error.to_string()),
        Some(DiskFull) => DatabaseOpenError::Full { path: named },
        Some(DatabaseBusy | DatabaseLocked) => DatabaseOpenError::Busy { path: named },
        _ => DatabaseOpenError::Unusable { path: named, source: error.into() },
    }
}

#[cfg(test)]
mod tests;
