//! The connection to the database, for its thread and for callers with brief changes.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use rusqlite::{Connection, TransactionBehavior, hooks::Wal};

use super::error::DatabaseError;
use crate::daemon::store::state_files::StateFiles;

/// Pages of the write-ahead log from which on the thread transfers it to the database, as SQLite does
/// by default. It waits for the disk then, so no caller does it.
const CHECKPOINT_PAGES: i32 = 1000;

#[derive(Debug)]
pub(super) struct SharedConnection {
    connection: Mutex<Connection>,
    /// Pages in the write-ahead log.
    wal_pages: Arc<AtomicI32>,
    /// How long the thread waits while another program has locked the database.
    busy_timeout: Duration,
    /// Changes are rejected if one of these files is lost.
    files: OnceLock<Arc<StateFiles>>,
}

impl SharedConnection {
    pub(super) fn new(mut connection: Connection) -> rusqlite::Result<Self> {
        let busy_timeout: u32 =
            connection.pragma_query_value(None, "busy_timeout", |row| row.get(0))?;
        let wal_pages = Arc::new(AtomicI32::new(0));
        let noted_pages = Arc::clone(&wal_pages);
        connection.wal_hook(Some(move |_: &mut Wal, pages| {
            noted_pages.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self {
            connection: Mutex::new(connection),
            wal_pages,
            busy_timeout: Duration::from_millis(busy_timeout.into()),
            files: OnceLock::new(),
        })
    }

    /// The connection, after a wait if it is in use.
    pub(super) fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rejects changes once one of these files is lost.
    pub(super) fn require_files(&self, files: Arc<StateFiles>) {
        let _already_set = self.files.set(files);
    }

    /// Whether a required file is lost: changes are rejected then.
    pub(super) fn is_lost(&self) -> bool {
        self.files.get().is_some_and(|files| files.check_lost())
    }

    fn needs_checkpoint(&self) -> bool {
        self.wal_pages.load(Ordering::Relaxed) >= CHECKPOINT_PAGES
    }

    /// Runs a change on this thread. Returns `None`, and has changed nothing, if it would have to
    /// wait.
    pub(super) fn try_apply<T>(
        &self,
        work: &impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Option<Result<T, DatabaseError>> {
        if self.needs_checkpoint() {
            return None;
        }
        let mut connection = self.connection.try_lock().ok()?;
        if self.is_lost() {
            return Some(Err(DatabaseError::Lost));
        }

        connection.busy_timeout(Duration::ZERO).ok()?;
        let result = apply_one(&mut connection, work);
        let _same_connection = connection.busy_timeout(self.busy_timeout);
        match result {
            Err(DatabaseError::Busy) => None,
            result => Some(result),
        }
    }

    /// Runs one query on this thread. Returns `None` if the connection is in use.
    pub(super) fn try_query<T>(
        &self,
        query: &impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Option<Result<T, DatabaseError>> {
        let connection = self.connection.try_lock().ok()?;
        Some(query(&connection).map_err(DatabaseError::from))
    }

    /// Transfers the write-ahead log to the database if it is long.
    pub(super) fn checkpoint_if_needed(&self, connection: &Connection) {
        if !self.needs_checkpoint() {
            return;
        }
        match connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            Ok(()) => self.wal_pages.store(0, Ordering::Relaxed),
            Err(error) => tracing::debug!(%error, "cannot transfer the write-ahead log yet"),
        }
    }
}

/// Runs one change in a transaction.
fn apply_one<T>(
    connection: &mut Connection,
    work: &impl Fn(&Connection) -> rusqlite::Result<T>,
) -> Result<T, DatabaseError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let value = work(&transaction)?;
    transaction.commit()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn connection(directory: &Path) -> Connection {
        let connection = Connection::open(directory.join("db")).unwrap();
        connection
            .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS t (text TEXT)")
            .unwrap();
        connection
    }

    fn insert(connection: &Connection) -> rusqlite::Result<usize> {
        connection.execute("INSERT INTO t VALUES (hex(zeroblob(2000)))", [])
    }

    fn row_count(shared: &SharedConnection) -> i32 {
        shared.lock().query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn change_that_would_wait_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let shared = SharedConnection::new(connection(directory.path())).unwrap();
        assert_eq!(shared.try_apply(&insert).unwrap().unwrap(), 1);

        let guard = shared.lock();
        assert!(shared.try_apply(&insert).is_none(), "the connection is in use");
        drop(guard);

        let other = connection(directory.path());
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert!(shared.try_apply(&insert).is_none(), "another program has locked the database");
        other.execute_batch("COMMIT").unwrap();
        assert_eq!(shared.try_apply(&insert).unwrap().unwrap(), 1);
        assert_eq!(row_count(&shared), 2);
    }

    #[test]
    fn failed_change_is_rolled_back() {
        let directory = tempfile::tempdir().unwrap();
        let shared = SharedConnection::new(connection(directory.path())).unwrap();
        let fail = |connection: &Connection| {
            insert(connection)?;
            connection.execute("INSERT INTO missing VALUES (1)", [])
        };
        shared.try_apply(&fail).unwrap().unwrap_err();
        assert_eq!(row_count(&shared), 0);
    }

    #[test]
    fn log_is_transferred_by_the_thread_only() {
        let directory = tempfile::tempdir().unwrap();
        let shared = SharedConnection::new(connection(directory.path())).unwrap();
        let count = (0..10_000).take_while(|_| shared.try_apply(&insert).is_some()).count();
        assert!((100..10_000).contains(&count), "{count}");
        assert!(shared.try_apply(&insert).is_none());

        shared.checkpoint_if_needed(&shared.lock());
        assert_eq!(shared.try_apply(&insert).unwrap().unwrap(), 1);
        assert!(shared.wal_pages.load(Ordering::Relaxed) < 10, "the log begins anew");
    }
}
