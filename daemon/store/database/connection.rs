//! The connection, which one thread owns. What is asked of it at one time is done in one transaction, and
//! answered when that is kept.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
};

use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

/// What may wait for the thread; more wait where they ask.
const WAITING: usize = 1024;
/// Most that is done in one transaction: the first of it waits for the last.
const TOGETHER: usize = 64;
/// Pages that nothing is kept in and that stay all the same: what comes next would make the file grow again.
const SPARE_PAGES: u32 = 256;
/// Most pages that are given back in one go: others wait meanwhile.
const GIVEN_BACK_TOGETHER: u32 = 256;

/// The database of a state directory. It is closed when the last one is dropped, which waits for that.
#[derive(Debug, Clone)]
pub(crate) struct Database(Arc<Thread>);

#[derive(Debug)]
struct Thread {
    /// None once it is to end.
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// Something to do with the connection, or else the reason why it cannot be done.
type Order = Box<dyn FnOnce(Result<&Connection, DatabaseError>) -> Done + Send>;

/// Something that was done, and whether it failed.
struct Done {
    failed: bool,
    answer: Answer,
}

/// Tells whoever asked, once it is known whether what was done is kept.
type Answer = Box<dyn FnOnce(Result<(), DatabaseError>) + Send>;

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
    Damaged(#[source] Arc<rusqlite::Error>),
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
                Self::Damaged(Arc::new(error))
            }
            _ => Self::Failed(Arc::new(error)),
        }
    }
}

impl Database {
    /// Has a thread of its own do what is asked of `connection`.
    pub(super) fn serve(connection: Connection) -> io::Result<Self> {
        let (orders, waiting) = mpsc::channel(WAITING);
        let thread = thread::Builder::new()
            .name("jigd-database".to_owned())
            .spawn(move || serve(connection, waiting))?;
        Ok(Self(Arc::new(Thread {
            orders: Some(orders),
            thread: Some(thread),
        })))
    }

    /// Does `work`: all of it or, if it fails, nothing. It goes on when whoever asked is gone.
    pub(in crate::daemon::store) async fn apply<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        let (reply, answer) = oneshot::channel();
        let order: Order = Box::new(move |connection: Result<&Connection, _>| {
            let result = connection.and_then(|connection| Ok(work(connection)?));
            Done {
                failed: result.is_err(),
                answer: Box::new(move |kept| {
                    let _nobody_waits = reply.send(result.and_then(|value| kept.map(|()| value)));
                }),
            }
        });
        let closed = || DatabaseError::Closed;
        let orders = self.0.orders.as_ref().ok_or_else(closed)?;
        orders.send(order).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Gives back to the disk what nothing is kept in any more, a little at a time.
    pub(in crate::daemon::store) async fn shrink(&self) -> Result<(), DatabaseError> {
        while self.apply(give_back).await? {}
        Ok(())
    }
}

/// Answers whether there is more to give back.
fn give_back(connection: &Connection) -> rusqlite::Result<bool> {
    let free = || connection.pragma_query_value(None, "freelist_count", |row| row.get::<_, u32>(0));
    let before = free()?;
    let pages = before.saturating_sub(SPARE_PAGES).min(GIVEN_BACK_TOGETHER);
    if pages == 0 {
        return Ok(false);
    }
    let mut vacuum = connection.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
    let mut steps = vacuum.query([])?;
    while steps.next()?.is_some() {}
    let after = free()?;
    // A file of an earlier daemon's may not be able to.
    Ok(after < before && after > SPARE_PAGES)
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Does what is asked until nobody can ask any more.
fn serve(mut connection: Connection, mut orders: mpsc::Receiver<Order>) {
    while let Some(first) = orders.blocking_recv() {
        let mut done = Vec::new();
        let mut next = Some(first);
        let kept = together(&mut connection, &mut orders, &mut next, &mut done);
        if let (Some(not_begun), Err(error)) = (next, &kept) {
            done.push(not_begun(Err(error.clone())));
        }
        for Done { answer, .. } in done {
            answer(kept.clone());
        }
    }
}

/// Does what waits, in one transaction.
fn together(
    connection: &mut Connection,
    orders: &mut mpsc::Receiver<Order>,
    next: &mut Option<Order>,
    done: &mut Vec<Done>,
) -> Result<(), DatabaseError> {
    let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    while let Some(work) = next.take() {
        let savepoint = transaction.savepoint()?;
        let result = work(Ok(&savepoint));
        let failed = result.failed;
        done.push(result);
        if savepoint.is_autocommit() {
            // Some failures, a full disk for one, undo the whole transaction (lang_transaction.html).
            return Err(DatabaseError::Full);
        }
        if failed {
            savepoint.finish()?; // undone
        } else {
            savepoint.commit()?;
        }
        if done.len() < TOGETHER {
            *next = orders.try_recv().ok();
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
        Database::serve(connection).unwrap()
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
}
