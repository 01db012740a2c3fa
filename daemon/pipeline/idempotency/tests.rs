//! Request ids while the database cannot be used.

use rusqlite::Connection;
use tempfile::TempDir;
use tokio::time::timeout;

use super::{finish::MAX_UNSTORED_REPLY_BYTES, *};
use crate::daemon::{
    error::Reason,
    store::{database::Database, requests::KeyFingerprint, retention::rows::RetentionLimits},
};

/// Longer than another program may lock the database.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

struct IdempotencyFixture {
    idempotency: Arc<Idempotency>,
    table: RequestTable,
    shutdown: Shutdown,
    /// Another program that uses the same database.
    other_program: Connection,
    _dir: TempDir,
}

async fn fixture() -> IdempotencyFixture {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jig.db");
    let limits =
        RetentionLimits { max_age: Duration::from_secs(3600), max_rows: 100, max_bytes: 1 << 20 };
    let database = Database::open(&path, false).unwrap();
    let table = RequestTable::open(database, limits).await.unwrap();
    let shutdown = Shutdown::default();

    IdempotencyFixture {
        idempotency: Idempotency::new(table.clone(), Duration::from_secs(1), &shutdown),
        table,
        shutdown,
        other_program: Connection::open(path).unwrap(),
        _dir: dir,
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

async fn claim(idempotency: &Arc<Idempotency>) -> Result<ClaimOutcome, Error> {
    let claimed =
        timeout(TEST_TIMEOUT, idempotency.claim(key("id"), request(), OnCrash::Report)).await;
    claimed.expect("claiming does not hang")
}

async fn acquire(idempotency: &Arc<Idempotency>) -> Claim {
    match claim(idempotency).await {
        Ok(ClaimOutcome::Acquired(claim)) => claim,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn nothing_is_stored_before_the_checkpoint() {
    let IdempotencyFixture { idempotency, table, .. } = &fixture().await;
    let acquire = async |id| match idempotency
        .claim(key(id), request(), OnCrash::ReportAfterCheckpoint)
        .await
    {
        Ok(ClaimOutcome::Acquired(claim)) => claim,
        other => panic!("{other:?}"),
    };
    let is_completed = |state: &Option<RecordState>| matches!(state, Some(RecordState::Completed { reply, .. }) if reply == "reply");

    let claim = acquire("ran").await;
    assert_eq!(table.find(key("ran")).await.unwrap(), None);
    claim.checkpoint().record_step(7).await.unwrap();
    let begun = RecordState::Incomplete { request: request(), step: Some(7) };
    assert_eq!(table.find(key("ran")).await.unwrap(), Some(begun));
    claim.complete(Bytes::from_static(b"reply"), true).await;
    let state = table.find(key("ran")).await.unwrap();
    assert!(is_completed(&state), "{state:?}");

    // Denied by an approver, or rejected.
    acquire("denied").await.complete(Bytes::from_static(b"reply"), true).await;
    let state = table.find(key("denied")).await.unwrap();
    assert!(is_completed(&state), "{state:?}");
    acquire("rejected").await.complete(Bytes::from_static(b"reply"), false).await;
    assert_eq!(table.find(key("rejected")).await.unwrap(), None);
}

#[tokio::test]
async fn rejected_request_id_is_freed_when_the_database_is_usable_again() {
    let fixture = fixture().await;
    let first = acquire(&fixture.idempotency).await;
    let waiter = first.waiter();
    fixture.other_program.execute_batch("BEGIN IMMEDIATE").unwrap();
    first.complete(Bytes::from_static(b"rejected"), false).await;
    assert_eq!(waiter.wait().await.as_deref(), Some(&b"rejected"[..]));
    for _ in 0..3 {
        let error = claim(&fixture.idempotency).await.unwrap_err();
        assert_eq!(error.reason, Reason::ResourceExhausted);
        assert!(error.retry_after.is_some());
    }

    fixture.other_program.execute_batch("COMMIT").unwrap();
    let freed = async {
        while claim(&fixture.idempotency).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };

    timeout(TEST_TIMEOUT, freed).await.expect("the id is free again");
}

#[tokio::test]
async fn reply_beyond_the_memory_limit_is_lost() {
    let fixture = fixture().await;
    let first = acquire(&fixture.idempotency).await;
    fixture.other_program.execute_batch("BEGIN IMMEDIATE").unwrap();
    let reply = Bytes::from(vec![0; MAX_UNSTORED_REPLY_BYTES]);
    fixture.idempotency.unstored_bytes.fetch_add(1, Ordering::Relaxed);
    first.complete(reply, true).await;
    assert_eq!(fixture.idempotency.unstored_bytes.load(Ordering::Relaxed), 1);
    assert!(fixture.idempotency.in_flight.lock().is_empty());
}

#[tokio::test]
async fn draining_daemon_keeps_retrying_to_store_a_reply() {
    let fixture = fixture().await;
    let first = acquire(&fixture.idempotency).await;
    let rename = |from: &str, to: &str| {
        let sql = format!("ALTER TABLE {from} RENAME TO {to}");
        fixture.other_program.execute_batch(&sql).unwrap();
    };

    rename("request", "elsewhere");
    first.complete(Bytes::from_static(b"reply"), true).await;
    fixture.shutdown.drain();

    // The database works in order: each claim runs after the attempts to store before it, including
    // the one at the start of draining.
    for _ in 0..10 {
        let rejected = fixture.table.claim(key("another"), request()).await;
        assert!(rejected.is_err(), "{rejected:?}");
    }

    rename("elsewhere", "request");
    let stored = async {
        while !matches!(
            fixture.table.claim(key("id"), request()).await,
            Ok(Some(RecordState::Completed { .. }))
        ) {
            sleep(Duration::from_millis(10)).await;
        }
    };

    timeout(TEST_TIMEOUT, stored).await.expect("the reply is stored");
}
