//! The connection to the database, and the thread that uses it.
//!
//! Changes requested at the same time share one transaction and are answered when it is committed.
//! A read runs in a transaction of its own.
//!
//! A change of a few rows runs on the thread of its caller while the connection is free: to wake
//! the other thread, and to be woken by it, takes longer.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::{error::DatabaseError, shared_connection::SharedConnection};
use crate::daemon::store::state_files::StateFiles;

/// Commands in the channel to the thread. Further callers wait before sending.
const MAX_QUEUED_COMMANDS: usize = 1024;
/// Commands per transaction. The first of them waits for the last.
const MAX_COMMANDS_PER_BATCH: usize = 64;
/// Free pages that stay in the file: the next rows would make it grow again.
const MIN_FREE_PAGES: u32 = 256;
/// Pages that one command returns to the disk. Other commands wait for it.
const VACUUM_BATCH_PAGES: u32 = 256;

/// A handle to the database of a state directory. Dropping the last one waits until it is closed.
#[derive(Debug, Clone)]
pub(crate) struct Database(Arc<DatabaseThread>);

#[derive(Debug)]
struct DatabaseThread {
    /// `None` once the thread is to end.
    commands: Option<mpsc::Sender<DatabaseCommand>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<SharedConnection>,
}

struct DatabaseCommand {
    /// Whether it changes nothing: it then needs no disk space and no write lock.
    read_only: bool,
    task: Box<dyn DatabaseTask>,
}

/// Work on the connection. It may be attempted several times, because a failure can roll back
/// other tasks of the same transaction.
trait DatabaseTask: Send {
    /// Returns true on success.
    fn attempt(&mut self, connection: &Connection) -> bool;

    /// Sends the result of the last attempt to the caller. `committed` is the result of its
    /// transaction.
    fn reply(self: Box<Self>, committed: Result<(), DatabaseError>);
}

struct PendingTask<W, T> {
    work: W,
    result: Option<rusqlite::Result<T>>,
    reply: oneshot::Sender<Result<T, DatabaseError>>,
}

impl<W, T> DatabaseTask for PendingTask<W, T>
where
    W: Fn(&Connection) -> rusqlite::Result<T> + Send,
    T: Send,
{
    fn attempt(&mut self, connection: &Connection) -> bool {
        self.result.insert((self.work)(connection)).is_ok()
    }

    fn reply(self: Box<Self>, committed: Result<(), DatabaseError>) {
        let result = match self.result {
            // The task's own error is more specific than that of the transaction.
            Some(Err(error)) => Err(error.into()),
            Some(Ok(value)) => committed.map(|()| value),
            None => Err(committed.err().unwrap_or(DatabaseError::Closed)),
        };
        let _caller_has_gone = self.reply.send(result);
    }
}

impl Database {
    /// Spawns the thread that uses `connection`.
    pub(super) fn spawn(connection: Connection) -> io::Result<Self> {
        let (commands, receiver) = mpsc::channel(MAX_QUEUED_COMMANDS);
        let shared = Arc::new(SharedConnection::new(connection).map_err(io::Error::other)?);
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("jigd-database".to_owned())
            .spawn(move || run(&of_thread, receiver))?;
        let thread = DatabaseThread { commands: Some(commands), thread: Some(thread), shared };
        Ok(Self(Arc::new(thread)))
    }

    /// Rejects changes once one of these files is lost.
    pub(crate) fn require_files(&self, files: Arc<StateFiles>) {
        self.0.shared.require_files(files);
    }

    /// Runs `work` in a transaction, which is rolled back if `work` fails. Completes even if the
    /// caller goes away. `work` may run several times; the last result counts.
    pub(in crate::daemon::store) async fn apply<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        self.submit(false, work).await
    }

    /// As [`Self::apply`], for a change of a few rows, which takes less time than a change of
    /// threads.
    pub(in crate::daemon::store) async fn apply_briefly<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        match self.0.shared.try_apply(&work) {
            Some(result) => result,
            None => self.submit(false, work).await,
        }
    }

    /// As [`Self::read`], for one query that takes less time than a change of threads.
    pub(in crate::daemon::store) async fn query<T: Send + 'static>(
        &self,
        query: impl Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        match self.0.shared.try_query(&query) {
            Some(result) => result,
            None => self.submit(true, query).await,
        }
    }

    /// Runs `work`, which must not change anything. Needs no disk space and no write lock.
    pub(in crate::daemon::store) async fn read<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        self.submit(true, work).await
    }

    async fn submit<T: Send + 'static>(
        &self,
        read_only: bool,
        work: impl Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        let (reply, result) = oneshot::channel();
        let task = Box::new(PendingTask { work, result: None, reply });
        let closed = || DatabaseError::Closed;
        let commands = self.0.commands.as_ref().ok_or_else(closed)?;
        commands.send(DatabaseCommand { read_only, task }).await.map_err(|_| closed())?;
        result.await.map_err(|_| closed())?
    }

    /// Returns free pages to the disk, in small steps.
    pub(in crate::daemon::store) async fn vacuum(&self) -> Result<(), DatabaseError> {
        while self.apply(vacuum_batch).await? {}
        Ok(())
    }
}

/// Returns one batch of free pages to the disk. Returns whether there are more.
fn vacuum_batch(connection: &Connection) -> rusqlite::Result<bool> {
    let free = || connection.pragma_query_value(None, "freelist_count", |row| row.get::<_, u32>(0));
    let before = free()?;
    let pages = before.saturating_sub(MIN_FREE_PAGES).min(VACUUM_BATCH_PAGES);
    if pages == 0 {
        return Ok(false);
    }

    let mut vacuum = connection.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
    let mut steps = vacuum.query([])?;
    while steps.next()?.is_some() {}

    let after = free()?;
    // False if this file of an earlier version cannot shrink.
    Ok(after < before && after > MIN_FREE_PAGES)
}

impl Drop for DatabaseThread {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Executes commands until all senders are dropped.
fn run(shared: &SharedConnection, mut commands: mpsc::Receiver<DatabaseCommand>) {
    while let Some(first) = commands.blocking_recv() {
        let mut connection = shared.lock();
        let mut changes: Vec<Box<dyn DatabaseTask>> = Vec::new();
        let mut next = Some(first);
        let mut count = 0;
        while let Some(DatabaseCommand { read_only, task }) = next {
            if read_only {
                run_read(&connection, task);
            } else {
                changes.push(task);
            }
            count += 1;
            next = if count < MAX_COMMANDS_PER_BATCH { commands.try_recv().ok() } else { None };
        }

        if !changes.is_empty() && shared.is_lost() {
            for task in changes {
                task.reply(Err(DatabaseError::Lost));
            }
        } else {
            run_changes(&mut connection, changes);
            shared.checkpoint_if_needed(&connection);
        }
    }
}

/// Runs a read on its own, so that neither it nor a change fails because of the other.
fn run_read(connection: &Connection, mut task: Box<dyn DatabaseTask>) {
    // In one transaction, so that all its queries see the same state.
    let result = connection.unchecked_transaction().and_then(|transaction| {
        task.attempt(&transaction);
        transaction.finish()
    });
    task.reply(result.map_err(DatabaseError::from));
}

/// Runs changes in one transaction. If that fails, runs each in its own, since one of them may be
/// the cause.
fn run_changes(connection: &mut Connection, mut changes: Vec<Box<dyn DatabaseTask>>) {
    let result = run_in_transaction(connection, &mut changes);
    if matches!(result, Ok(Err(_))) && changes.len() > 1 {
        for task in changes {
            let mut single = [task];
            let committed = run_in_transaction(connection, &mut single).flatten();
            let [task] = single;
            task.reply(committed);
        }
        return;
    }

    let committed = result.flatten();
    for task in changes {
        task.reply(committed.clone());
    }
}

/// Runs changes in one transaction. The outer error means that it could not begin, the inner one
/// that it was not committed.
fn run_in_transaction(
    connection: &mut Connection,
    changes: &mut [Box<dyn DatabaseTask>],
) -> Result<Result<(), DatabaseError>, DatabaseError> {
    if changes.is_empty() {
        return Ok(Ok(()));
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    Ok(apply_changes(transaction, changes))
}

fn apply_changes(
    mut transaction: Transaction<'_>,
    changes: &mut [Box<dyn DatabaseTask>],
) -> Result<(), DatabaseError> {
    for task in changes {
        let savepoint = transaction.savepoint()?;
        let is_done = task.attempt(&savepoint);
        if savepoint.is_autocommit() {
            // Some failures, such as a full disk, roll back the whole transaction
            // (lang_transaction.html).
            return Err(DatabaseError::Full);
        }

        if is_done {
            savepoint.commit()?;
        } else {
            savepoint.finish()?; // rolls back
        }
    }
    Ok(transaction.commit()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Database {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("CREATE TABLE t (n INTEGER PRIMARY KEY, text TEXT) STRICT")
            .unwrap();
        Database::spawn(connection).unwrap()
    }

    async fn insert(database: &Database, number: i64) -> Result<usize, DatabaseError> {
        database
            .apply(move |connection| connection.execute("INSERT INTO t VALUES (?1, 'x')", [number]))
            .await
    }

    async fn count(database: &Database) -> i64 {
        let count = |connection: &Connection| {
            connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0))
        };
        database.apply(count).await.unwrap()
    }

    #[tokio::test]
    async fn failed_change_is_rolled_back_alone() {
        let database = memory();
        let tasks: Vec<_> = [1, 2, 1, 3]
            .into_iter()
            .map(|number| {
                let database = database.clone();
                crate::daemon::task::spawn("insert", async move {
                    let twice = database.apply(move |connection| {
                        connection.execute("INSERT INTO t VALUES (?1, 'x')", [number + 100])?;
                        connection.execute("INSERT INTO t VALUES (?1, 'x')", [number])
                    });
                    twice.await.is_ok()
                })
            })
            .collect();
        let mut succeeded = 0;
        for work in tasks {
            succeeded += i64::from(work.await.unwrap());
        }
        assert_eq!(succeeded, 3);
        assert_eq!(count(&database).await, 6);
    }

    #[tokio::test]
    async fn full_disk_is_reported_and_later_changes_succeed() {
        let database = memory();
        insert(&database, 1).await.unwrap();
        let limit = |connection: &Connection| {
            let pages: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0))?;
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
        };
        database.apply(limit).await.unwrap();
        let large = |connection: &Connection| {
            connection.execute("INSERT INTO t VALUES (2, hex(zeroblob(100000)))", [])
        };
        let refused = database.apply(large).await;
        assert!(matches!(refused, Err(DatabaseError::Full)), "{refused:?}");
        insert(&database, 3).await.unwrap();
        assert_eq!(count(&database).await, 2);
    }

    #[tokio::test]
    async fn full_disk_does_not_fail_concurrent_changes() {
        let database = memory();
        insert(&database, 0).await.unwrap();
        let limit = |connection: &Connection| {
            let pages: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0))?;
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
        };
        database.apply(limit).await.unwrap();
        // Blocks the thread until all commands are queued.
        let (release_sender, released) = std::sync::mpsc::channel::<()>();
        let released = std::sync::Mutex::new(released);
        let hold = database.read(move |_| {
            let _released = released.lock().unwrap().recv();
            Ok(())
        });
        let large = database.apply(|connection| {
            connection.execute("INSERT INTO t VALUES (2, hex(zeroblob(100000)))", [])
        });
        let read = database.read(|connection| {
            connection.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))
        });
        let release = async { drop(release_sender) };
        let (hold, before, large, read, after, ()) = tokio::join!(
            biased;
            hold,
            insert(&database, 1),
            large,
            read,
            insert(&database, 3),
            release
        );
        hold.unwrap();
        assert!(matches!(large, Err(DatabaseError::Full)), "{large:?}");
        before.unwrap();
        after.unwrap();
        assert_eq!(read.unwrap(), 1, "uncommitted rows are not read");
        assert_eq!(count(&database).await, 3);
    }

    #[tokio::test]
    async fn read_does_not_wait_for_a_lock_of_another_program() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        let connection = Connection::open(&path).unwrap();
        connection
            .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (n INTEGER PRIMARY KEY)")
            .unwrap();
        connection.busy_timeout(Default::default()).unwrap();
        let database = Database::spawn(connection).unwrap();
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let change = |connection: &Connection| connection.execute("DELETE FROM t", []);
        let changed = database.apply(change).await;
        assert!(matches!(changed, Err(DatabaseError::Busy)), "{changed:?}");
        let read = database
            .read(|connection| {
                connection.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))
            })
            .await;
        assert_eq!(read.unwrap(), 0);
    }
}
