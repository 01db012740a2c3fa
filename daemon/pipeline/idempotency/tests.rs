//! Request ids while the database cannot be used.

use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::daemon::{
    error::Reason,
    store::{database::Database, requests::KeyFingerprint, row_retention::RetentionLimits},
};

/// Longer than another program may hold the database at all.
const PATIENCE: Duration = Duration::from_secs(20);

struct IdempotencyFixture {
    ids: Arc<Idempotency>,
    log: RequestTable,
    drain: Shutdown,
    /// Another program with the same database.
    other: Connection,
    _folder: TempDir,
}

async fn fixture() -> IdempotencyFixture {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jig.db");
    let bounds =
        RetentionLimits { max_age: Duration::from_secs(3600), max_rows: 100, max_bytes: 1 << 20 };
    let database = Database::open(&path, false).unwrap();
    let log = RequestTable::open(database, bounds).await.unwrap();
    let drain = Shutdown::default();
    IdempotencyFixture {
        ids: Idempotency::new(log.clone(), Duration::from_secs(1), &drain),
        log,
        drain,
        other: Connection::open(path).unwrap(),
        _folder: folder,
    }
}

fn key(id: &str) -> RequestKey {
    RequestKey {
        principal: "p".to_owned(),
        workspace: "w".to_owned(),
        id: id.to_owned(),
        key_fingerprint: KeyFingerprint::default(),
    }
}

fn request() -> RequestIdentity {
    RequestIdentity { method: "m".to_owned(), session: "s".to_owned(), fingerprint: [1; 32] }
}

async fn claim(ids: &Arc<Idempotency>) -> Result<ClaimOutcome, Error> {
    let claimed = timeout(PATIENCE, ids.claim(key("id"), request(), OnCrash::Report)).await;
    claimed.expect("it does not hang")
}

async fn ours(ids: &Arc<Idempotency>) -> Claim {
    match claim(ids).await {
        Ok(ClaimOutcome::Acquired(ticket)) => ticket,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_was_refused_is_free_again_once_the_database_can_be_used() {
    let place = fixture().await;
    let ticket = ours(&place.ids).await;
    let caller = ticket.waiter();
    place.other.execute_batch("BEGIN IMMEDIATE").unwrap();
    ticket.complete(Bytes::from_static(b"refused"), false).await;
    assert_eq!(caller.wait().await.as_deref(), Some(&b"refused"[..]));
    for _ in 0..3 {
        let error = claim(&place.ids).await.unwrap_err();
        assert_eq!(error.reason, Reason::ResourceExhausted);
        assert!(error.retry_after.is_some());
    }
    place.other.execute_batch("COMMIT").unwrap();
    let freed = async {
        while claim(&place.ids).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, freed).await.expect("it is free again");
}

#[tokio::test]
async fn what_is_more_than_is_kept_in_memory_is_lost() {
    let place = fixture().await;
    let ticket = ours(&place.ids).await;
    place.other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let answer = Bytes::from(vec![0; MAX_UNSTORED_REPLY_BYTES]);
    place.ids.unstored_bytes.fetch_add(1, Ordering::Relaxed);
    ticket.complete(answer, true).await;
    assert_eq!(place.ids.unstored_bytes.load(Ordering::Relaxed), 1);
    assert!(place.ids.in_flight.lock().is_empty());
}

#[tokio::test]
async fn a_daemon_that_drains_goes_on_trying_to_keep_what_it_has_answered() {
    let place = fixture().await;
    let ticket = ours(&place.ids).await;
    let rename = |from: &str, to: &str| {
        let sql = format!("ALTER TABLE {from} RENAME TO {to}");
        place.other.execute_batch(&sql).unwrap();
    };
    rename("request", "elsewhere");
    ticket.complete(Bytes::from_static(b"answer"), true).await;
    place.drain.drain();
    // Each comes after what was asked of the log before it, the attempt at the beginning of the drain too.
    for _ in 0..10 {
        let refused = place.log.claim(key("another"), request()).await;
        assert!(refused.is_err(), "{refused:?}");
    }
    rename("elsewhere", "request");
    let kept = async {
        while !matches!(
            place.log.claim(key("id"), request()).await,
            Ok(RecordState::Completed { .. })
        ) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, kept).await.expect("it is kept");
}
