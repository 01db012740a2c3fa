//! The connection, which one thread owns. The changes that are asked of it at one time are made in one
//! transaction, and answered when that is kept; what only reads shares it with nobody.

use std::{
    io,
    sync::{Arc, OnceLock},
    thread::{self, JoinHandle},
};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use crate::daemon::store::state_files::StateFiles;

/// What may wait for the thread; more wait where they ask.
const MAX_QUEUED_COMMANDS: usize = 1024;
/// Most that is done in one go: the first of it waits for the last.
const MAX_COMMANDS_PER_BATCH: usize = 64;
/// Pages that nothing is kept in and that stay all the same: what comes next would make the file grow again.
const MIN_FREE_PAGES: u32 = 256;
/// Most pages that are given back in one go: others wait meanwhile.
const VACUUM_BATCH_PAGES: u32 = 256;

/// The database of a state directory. It is closed when the last one is dropped, which waits for that.
#[derive(Debug, Clone)]
pub(crate) struct Database(Arc<DatabaseThread>);

#[derive(Debug)]
struct DatabaseThread {
    /// None once it is to end.
    commands: Option<mpsc::Sender<DatabaseCommand>>,
    thread: Option<JoinHandle<()>>,
    files: RequiredFiles,
}

/// Files without which nothing is changed.
type RequiredFiles = Arc<OnceLock<Arc<StateFiles>>>;

/// Something to do with the connection.
struct DatabaseCommand {
    /// Whether it changes nothing: then it needs no room and no turn.
    read_only: bool,
    task: Box<dyn DatabaseTask>,
}

/// What is to be done, as often as it takes: what was done together with something that failed is undone.
trait DatabaseTask: Send {
    /// Does it; answers whether it could be done.
    fn attempt(&mut self, connection: &Connection) -> bool;

    /// Tells whoever asked what came of the last attempt, if that is kept, or else why not.
    fn reply(self: Box<Self>, kept: Result<(), DatabaseError>);
}

/// Work, and who asked for it.
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

    fn reply(self: Box<Self>, kept: Result<(), DatabaseError>) {
        let answer = match self.result {
            // Its own failure says more than that of all.
            Some(Err(error)) => Err(error.into()),
            Some(Ok(value)) => kept.map(|()| value),
            None => Err(kept.err().unwrap_or(DatabaseError::Closed)),
        };
        let _nobody_waits = self.reply.send(answer);
    }
}

/// Why something could not be done. Display says what to do.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum DatabaseError {
    /// There is no room for it.
    #[error("the disk that holds the daemon's state directory is full: make room there")]
    Full,
    /// Another program holds it, or the disk is too slow.
    #[error("the daemon's database is held by another program, or its disk takes too long")]
    Busy,
    /// What the file holds is not what was written.
    #[error(
        "the daemon's database is damaged: stop the daemon and restore jig.db, or move it away to begin with an empty one"
    )]
    Corrupt(#[source] Arc<rusqlite::Error>),
    /// It is not where it was opened: what is written to it is gone with this daemon.
    #[error("the daemon's state directory was removed or replaced")]
    Lost,
    /// Anything else.
    #[error("the daemon's database cannot be used")]
    Failed(#[source] Arc<rusqlite::Error>),
    /// Its thread has ended.
    #[error("the daemon's database is closed")]
    Closed,
}

impl From<rusqlite::Error> for DatabaseError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Corrupt(Arc::new(error))
            }
            _ => Self::Failed(Arc::new(error)),
        }
    }
}

impl Database {
    /// Has a thread of its own do what is asked of `connection`.
    pub(super) fn spawn(connection: Connection) -> io::Result<Self> {
        let (orders, waiting) = mpsc::channel(MAX_QUEUED_COMMANDS);
        let files = RequiredFiles::default();
        let of_thread = Arc::clone(&files);
        let thread = thread::Builder::new()
            .name("jigd-database".to_owned())
            .spawn(move || run(connection, waiting, &of_thread))?;
        Ok(Self(Arc::new(DatabaseThread { commands: Some(orders), thread: Some(thread), files })))
    }

    /// Changes nothing any more from when one of these files is lost.
    pub(crate) fn require_files(&self, files: Arc<StateFiles>) {
        let _again = self.0.files.set(files);
    }

    /// Does `work`: all of it or, if it fails, nothing. It goes on when whoever asked is gone. It may be
    /// done several times, of which the last one counts.
    pub(in crate::daemon::store) async fn apply<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        self.submit(false, work).await
    }

    /// Does `work` that changes nothing: it needs no room, and waits for nobody else who holds the database.
    pub(in crate::daemon::store) async fn read<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        self.submit(true, work).await
    }

    async fn submit<T: Send + 'static>(
        &self,
        only_reads: bool,
        work: impl Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        let (reply, answer) = oneshot::channel();
        let work = Box::new(PendingTask { work, result: None, reply });
        let closed = || DatabaseError::Closed;
        let orders = self.0.commands.as_ref().ok_or_else(closed)?;
        let order = DatabaseCommand { read_only: only_reads, task: work };
        orders.send(order).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Gives back to the disk what nothing is kept in any more, a little at a time.
    pub(in crate::daemon::store) async fn vacuum(&self) -> Result<(), DatabaseError> {
        while self.apply(vacuum_batch).await? {}
        Ok(())
    }
}

/// Answers whether there is more to give back.
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
    // A file of an earlier daemon's may not be able to.
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

/// Does what is asked until nobody can ask any more.
fn run(
    mut connection: Connection,
    mut orders: mpsc::Receiver<DatabaseCommand>,
    files: &RequiredFiles,
) {
    while let Some(first) = orders.blocking_recv() {
        let mut changes: Vec<Box<dyn DatabaseTask>> = Vec::new();
        let mut next = Some(first);
        let mut number = 0;
        while let Some(DatabaseCommand { read_only: only_reads, task: work }) = next {
            match only_reads {
                true => run_read(&connection, work),
                false => changes.push(work),
            }
            number += 1;
            next = match number < MAX_COMMANDS_PER_BATCH {
                true => orders.try_recv().ok(),
                false => None,
            };
        }
        let is_lost = !changes.is_empty() && files.get().is_some_and(|files| files.check_lost());
        if is_lost {
            for work in changes {
                work.reply(Err(DatabaseError::Lost));
            }
        } else {
            run_changes(&mut connection, changes);
        }
    }
}

/// Reads, by itself: neither does what others change fail with it, nor it with that.
fn run_read(connection: &Connection, mut work: Box<dyn DatabaseTask>) {
    // One transaction, as it may look at several things. Nothing of it is written.
    let result = connection.unchecked_transaction().and_then(|transaction| {
        work.attempt(&transaction);
        transaction.finish()
    });
    work.reply(result.map_err(DatabaseError::from));
}

/// Makes changes: together, and one by one where that fails, as it may have failed for one of them.
fn run_changes(connection: &mut Connection, mut changes: Vec<Box<dyn DatabaseTask>>) {
    let begun = run_in_transaction(connection, &mut changes);
    if matches!(begun, Ok(Err(_))) && changes.len() > 1 {
        for work in changes {
            let mut alone = [work];
            let begun = run_in_transaction(connection, &mut alone);
            let [work] = alone;
            work.reply(begun.and_then(|kept| kept));
        }
        return;
    }
    let kept = begun.and_then(|kept| kept);
    for work in changes {
        work.reply(kept.clone());
    }
}

/// Makes changes in one transaction, as far as it could be begun; answers whether they are kept.
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
    for work in changes {
        let savepoint = transaction.savepoint()?;
        let is_done = work.attempt(&savepoint);
        if savepoint.is_autocommit() {
            // Some failures, a full disk for one, undo the whole transaction (lang_transaction.html).
            return Err(DatabaseError::Full);
        }
        match is_done {
            true => savepoint.commit()?,
            false => savepoint.finish()?, // undone
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
    async fn what_fails_is_undone_and_nothing_else() {
        let database = memory();
        let works: Vec<_> = [1, 2, 1, 3]
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
        let mut kept = 0;
        for work in works {
            kept += i64::from(work.await.unwrap());
        }
        assert_eq!(kept, 3);
        assert_eq!(count(&database).await, 6);
    }

    #[tokio::test]
    async fn what_there_is_no_room_for_is_told_and_the_rest_goes_on() {
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
    async fn what_there_is_no_room_for_fails_nothing_that_is_asked_at_the_same_time() {
        let database = memory();
        insert(&database, 0).await.unwrap();
        let limit = |connection: &Connection| {
            let pages: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0))?;
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
        };
        database.apply(limit).await.unwrap();
        // Until the thread is let go, all wait for it.
        let (go, waits) = std::sync::mpsc::channel::<()>();
        let waits = std::sync::Mutex::new(waits);
        let hold = database.read(move |_| {
            let _let_go = waits.lock().unwrap().recv();
            Ok(())
        });
        let large = database.apply(|connection| {
            connection.execute("INSERT INTO t VALUES (2, hex(zeroblob(100000)))", [])
        });
        let read = database.read(|connection| {
            connection.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))
        });
        let let_go = async { drop(go) };
        let (held, before, large, read, after, ()) = tokio::join!(
            biased;
            hold,
            insert(&database, 1),
            large,
            read,
            insert(&database, 3),
            let_go
        );
        held.unwrap();
        assert!(matches!(large, Err(DatabaseError::Full)), "{large:?}");
        before.unwrap();
        after.unwrap();
        assert_eq!(read.unwrap(), 1, "what is not kept yet is not read");
        assert_eq!(count(&database).await, 3);
    }

    #[tokio::test]
    async fn reading_does_not_wait_for_another_program() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
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
