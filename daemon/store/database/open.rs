//! Opening the database: making it where it is missing, bringing an older one up to date, and refusing
//! what is damaged, newer, or somebody else's. Nothing that was there is ever overwritten.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, Error, OpenFlags};

use super::{check, connection::Database};

/// In the header of the file: what it is (`PRAGMA application_id`): `jigd`.
const APPLICATION: i32 = 0x6a69_6764;
/// That pages in which nothing is kept can be given back to the disk (`PRAGMA auto_vacuum`).
const INCREMENTAL: i32 = 2;

/// What makes each version of the schema from the one before it; the first, from nothing.
const VERSIONS: [&str; 7] = [
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
pub(crate) enum OpenError {
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
    Damaged {
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
    pub(crate) fn open(path: &Path, has_records: bool) -> Result<Self, OpenError> {
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
        Self::serve(opened?).map_err(|source| unusable(path, source))
    }

    /// A database that is gone with the daemon.
    pub(crate) fn in_memory() -> Result<Self, OpenError> {
        let path = PathBuf::from(":memory:");
        let connection = empty().map_err(|error| refusal(&path, error))?;
        Self::serve(connection).map_err(|source| unusable(&path, source))
    }
}

fn open_file(path: &Path, must_have_schema: bool) -> Result<Connection, OpenError> {
    let refused = |error| refusal(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(path, flags).map_err(refused)?;
    let version = check(&connection, path, must_have_schema)?;
    make_shrinkable(&connection, path).map_err(refused)?;
    configure(&connection).map_err(refused)?;
    upgrade(&mut connection).map_err(|error| {
        // What it has is not what one of that version has. Of the statement nobody needs to read.
        if let Error::SqlInputError { msg, .. } = &error {
            let what = format!("its schema is not that of version {version}: {msg}");
            return damaged(path, what);
        }
        refusal(path, error)
    })?;
    let expected = empty().and_then(|connection| check::parts(&connection));
    let found = check::parts(&connection).map_err(refused)?;
    if let Some(missing) = expected.map_err(refused)?.difference(&found).next() {
        return Err(damaged(path, format!("its {missing} is missing")));
    }
    check::beside(&connection, path.to_owned()).map_err(refused)?;
    Ok(connection)
}

/// One that has nothing but the schema, in memory.
fn empty() -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    configure(&connection)?;
    upgrade(&mut connection)?;
    Ok(connection)
}

/// Looks whether the file is what it should be, before anything is changed in it. Answers the version of its
/// schema.
fn check(connection: &Connection, path: &Path, must_have_schema: bool) -> Result<usize, OpenError> {
    let refused = |error| refusal(path, error);
    let (application, version) = versions(connection).map_err(refused)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(refused)?;
    let is_empty = (application, version, tables) == (0, 0, 0);
    if application != APPLICATION && !is_empty {
        return Err(not_ours(path));
    }
    if is_empty && must_have_schema {
        return Err(OpenError::Emptied { path: path.display().to_string() });
    }
    let Ok(version) = usize::try_from(version) else {
        return Err(damaged(path, format!("its schema has the version {version}")));
    };
    if version > VERSIONS.len() {
        return Err(OpenError::Newer {
            path: path.display().to_string(),
            found: version,
            known: VERSIONS.len(),
        });
    }
    match check::before(connection).map_err(refused)? {
        None => Ok(version),
        Some(what) => Err(damaged(path, what)),
    }
}

/// Sees to it that the file can be made smaller. One of an earlier daemon's is written anew for that, once;
/// where there is no room for it, it stays as it is until there is.
fn make_shrinkable(connection: &Connection, path: &Path) -> rusqlite::Result<()> {
    let mode: i32 = connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
    if mode == INCREMENTAL {
        return Ok(());
    }
    connection.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
    let (_, version) = versions(connection)?;
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
fn upgrade(connection: &mut Connection) -> rusqlite::Result<()> {
    let (_, version) = versions(connection)?;
    let done = usize::try_from(version).unwrap_or(usize::MAX);
    for (index, change) in VERSIONS.iter().enumerate().skip(done) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(change)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        let version = i32::try_from(index + 1).unwrap_or(i32::MAX);
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()?;
    }
    if done < VERSIONS.len() {
        // Into the file itself: without what is beside it, it would be taken for an empty one.
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    }
    Ok(())
}

/// What the header says that the file is, and the version of its schema.
fn versions(connection: &Connection) -> rusqlite::Result<(i32, i32)> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get(0));
    Ok((pragma("application_id")?, pragma("user_version")?))
}

fn unusable(path: &Path, source: io::Error) -> OpenError {
    let path = path.display().to_string();
    match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => OpenError::Full { path },
        _ => OpenError::Unusable { path, source: source.into() },
    }
}

fn not_ours(path: &Path) -> OpenError {
    OpenError::NotOurs { path: path.display().to_string() }
}

fn damaged(path: &Path, what: String) -> OpenError {
    OpenError::Damaged { path: path.display().to_string(), what }
}

fn refusal(path: &Path, error: Error) -> OpenError {
    use rusqlite::ErrorCode::{
        DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, NotADatabase,
    };
    let named = path.display().to_string();
    match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => damaged(path, error.to_string()),
        Some(DiskFull) => OpenError::Full { path: named },
        Some(DatabaseBusy | DatabaseLocked) => OpenError::Busy { path: named },
        _ => OpenError::Unusable { path: named, source: error.into() },
    }
}

#[cfg(test)]
mod tests;
