//! Opening the database: making it where it is missing, bringing an older one up to date, and refusing
//! what is damaged, newer, or somebody else's. Nothing that was there is ever overwritten.

use std::{
    fs::OpenOptions,
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags};

use super::{check, connection::Database};

/// In the header of the file: what it is (`PRAGMA application_id`): `jigd`.
const APPLICATION: i32 = 0x6a69_6764;
/// That pages in which nothing is kept can be given back to the disk (`PRAGMA auto_vacuum`).
const INCREMENTAL: i32 = 2;

/// What makes each version of the schema from the one before it; the first, from nothing.
const VERSIONS: [&str; 4] = [
    include_str!("1.sql"),
    include_str!("2.sql"),
    include_str!("3.sql"),
    include_str!("4.sql"),
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
    /// It cannot be opened or written to.
    #[error("{path} cannot be used")]
    Unusable {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Database {
    /// Opens the database in the file at `path`, making it where it is missing. Blocks.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        // SQLite gives the files beside it the mode that it has.
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|source| unusable(path, source))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let opened = Connection::open_with_flags(path, flags);
        let mut connection = opened.map_err(|error| refusal(path, error))?;
        check(&connection, path)?;
        make_shrinkable(&connection, path).map_err(|error| refusal(path, error))?;
        let refused = |error| refusal(path, error);
        prepare(&mut connection).map_err(refused)?;
        check::beside(&connection, path.to_owned()).map_err(refused)?;
        Self::serve(connection).map_err(|source| unusable(path, source))
    }

    /// A database that is gone with the daemon.
    pub(crate) fn in_memory() -> Result<Self, OpenError> {
        let path = PathBuf::from(":memory:");
        let opened = Connection::open_in_memory().and_then(|mut connection| {
            prepare(&mut connection)?;
            Ok(connection)
        });
        let connection = opened.map_err(|error| refusal(&path, error))?;
        Self::serve(connection).map_err(|source| unusable(&path, source))
    }
}

/// Looks whether the file is what it should be, before anything is changed in it.
fn check(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let refused = |error| refusal(path, error);
    let (application, version) = versions(connection).map_err(refused)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(refused)?;
    if application != APPLICATION && (application, version, tables) != (0, 0, 0) {
        return Err(OpenError::NotOurs {
            path: path.display().to_string(),
        });
    }
    let version = usize::try_from(version).unwrap_or(usize::MAX);
    if version > VERSIONS.len() {
        return Err(OpenError::Newer {
            path: path.display().to_string(),
            found: version,
            known: VERSIONS.len(),
        });
    }
    match check::before(connection).map_err(refused)? {
        None => Ok(()),
        Some(what) => Err(OpenError::Damaged {
            path: path.display().to_string(),
            what,
        }),
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

/// Sets what belongs to the connection, and brings the schema up to date.
fn prepare(connection: &mut Connection) -> rusqlite::Result<()> {
    // Answers "memory" for a database in memory.
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.execute_batch(
        "PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY;",
    )?;
    connection.query_row("PRAGMA journal_size_limit = 67108864", [], |_| Ok(()))?;
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
    Ok(())
}

/// What the header says that the file is, and the version of its schema.
fn versions(connection: &Connection) -> rusqlite::Result<(i32, i32)> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get(0));
    Ok((pragma("application_id")?, pragma("user_version")?))
}

fn unusable(path: &Path, source: io::Error) -> OpenError {
    OpenError::Unusable {
        path: path.display().to_string(),
        source: source.into(),
    }
}

fn refusal(path: &Path, error: rusqlite::Error) -> OpenError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    let path = path.display().to_string();
    match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => OpenError::Damaged {
            path,
            what: error.to_string(),
        },
        _ => OpenError::Unusable {
            path,
            source: error.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let database = Database::open(path).map_err(|error| error.to_string())?;
        let tables = |connection: &Connection| {
            connection.query_row("SELECT count(*) FROM request", [], |row| {
                row.get::<_, i64>(0)
            })
        };
        let found = runtime.block_on(database.apply(tables));
        found.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn it_is_made_and_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jig.db");
        open(&path).unwrap();
        open(&path).unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    /// One that was answered, and one that was not.
    const REQUESTS: &str = "
        INSERT INTO request (principal, workspace, id, method, session, fingerprint, life, begun_ms, answer, answer_bytes)
        VALUES ('p', 'w', 'answered', 'm', 's', x'', 'l', 1, x'00', 1), ('p', 'w', 'lost', 'm', 's', x'', 'l', 1, NULL, 0);";

    #[test]
    fn an_older_one_is_brought_up_to_date() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jig.db");
        let connection = Connection::open(&path).unwrap();
        let older = format!(
            "{} INSERT INTO fact VALUES ('kept', x'01'); {REQUESTS} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 1",
            VERSIONS[0]
        );
        connection.execute_batch(&older).unwrap();
        drop(connection);
        open(&path).unwrap();
        let connection = Connection::open(&path).unwrap();
        assert_eq!(versions(&connection).unwrap(), (APPLICATION, 4));
        let count = |table: &str| -> i64 {
            let sql = format!("SELECT count(*) FROM {table}");
            connection.query_row(&sql, [], |row| row.get(0)).unwrap()
        };
        assert_eq!((count("fact"), count("approval"), count("rule")), (2, 0, 0));
        let ended = "request WHERE ended_ms > (unixepoch() - 3600) * 1000 AND id = 'answered'";
        assert_eq!((count("request"), count(ended)), (2, 1));
        assert_eq!(count("request WHERE ended_ms IS NULL AND id = 'lost'"), 1);
        let mode = connection.pragma_query_value(None, "auto_vacuum", |row| row.get::<_, i32>(0));
        assert_eq!(mode.unwrap(), INCREMENTAL);
    }

    /// A file with request ids that have large answers.
    fn large(path: &Path, number: u32) {
        open(path).unwrap();
        let connection = Connection::open(path).unwrap();
        let sql = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
            INSERT INTO request (principal, workspace, id, method, session, fingerprint, life, begun_ms, ended_ms, answer, answer_bytes)
            SELECT 'p', 'w', i, 'm', 's', x'', 'l', 1, 1, randomblob(100000), 100000 FROM n";
        connection.execute(sql, [number]).unwrap();
    }

    #[test]
    fn what_is_not_kept_any_more_is_given_back_to_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jig.db");
        large(&path, 300);
        let size = || std::fs::metadata(&path).unwrap().len();
        assert!(size() > 30_000_000);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let database = Database::open(&path).unwrap();
        let delete = |connection: &Connection| connection.execute("DELETE FROM request", []);
        runtime.block_on(database.apply(delete)).unwrap();
        runtime.block_on(database.shrink()).unwrap();
        drop(database);
        assert!(size() < 4_000_000, "{}", size());
    }

    #[test]
    fn of_a_large_one_what_is_needed_first_is_looked_at_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jig.db");
        large(&path, 100);
        let intact = std::fs::read(&path).unwrap();
        // The answers: found by whoever asks for them.
        let mut bytes = intact.clone();
        let answers = bytes.len() / 2;
        bytes[answers..].fill(0x5a);
        std::fs::write(&path, &bytes).unwrap();
        open(&path).unwrap();
        // The first tables.
        let mut bytes = intact;
        bytes[8192..32768].fill(0x5a);
        std::fs::write(&path, &bytes).unwrap();
        let error = open(&path).unwrap_err();
        assert!(error.contains("is damaged"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn what_is_not_ours_newer_or_damaged_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jig.db");
        let others = |sql: &str| {
            let _was_there = std::fs::remove_file(&path);
            Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        };
        let refused = |expected: &str| {
            let before = std::fs::read(&path).unwrap();
            let error = open(&path).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), before);
        };
        others("CREATE TABLE request (a)");
        refused("not a database of jigd's");
        others(&format!(
            "PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 99"
        ));
        refused("schema 99; this one knows 4");
        std::fs::write(&path, "no database at all".repeat(1000)).unwrap();
        refused("is damaged");
        std::fs::remove_file(&path).unwrap();
        open(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[5000..].fill(0x5a);
        std::fs::write(&path, &bytes).unwrap();
        refused("is damaged");
    }
}
