//! What the table of request ids stores, and for how long.

use std::time::Duration;

use super::*;
use crate::daemon::store::jobs::{self, Job, JobState, JobTable};

const ALL: RetentionLimits =
    RetentionLimits { max_age: Duration::from_secs(3600), max_rows: 100, max_bytes: 1000 };

fn key(principal: &str, id: &str) -> RequestKey {
    RequestKey {
        principal: principal.to_owned(),
        workspace: "w".to_owned(),
        id: id.to_owned(),
        key_fingerprint: KeyFingerprint::default(),
    }
}

fn request() -> RequestIdentity {
    RequestIdentity {
        method: "run".to_owned(),
        session: "default".to_owned(),
        fingerprint: [7; 32],
    }
}

async fn open(limits: RetentionLimits) -> RequestTable {
    let database = Database::in_memory().unwrap();
    RequestTable::open(database, limits).await.unwrap()
}

async fn claim(table: &RequestTable, principal: &str, id: &str) -> Option<RecordState> {
    table.claim(key(principal, id), request()).await.unwrap()
}

/// Claims an id and completes it with a reply of `bytes`.
async fn complete(table: &RequestTable, principal: &str, id: &str, bytes: usize) {
    assert_eq!(claim(table, principal, id).await, None);
    let reply = Bytes::from(vec![1; bytes]);
    table.complete(key(principal, id), reply).await.unwrap();
}

/// Makes all rows older by `by`.
async fn age(table: &RequestTable, by: Duration) {
    let by = i64::try_from(by.as_millis()).unwrap();
    let age = move |connection: &Connection| {
        connection
            .execute("UPDATE request SET begun_ms = begun_ms - ?1, ended_ms = ended_ms - ?1", [by])
    };
    table.database.apply(age).await.unwrap();
}

/// The state of a request id, for comparison.
#[derive(Debug, PartialEq, Eq)]
enum KnownRecord {
    /// With the bytes of the reply.
    Completed(usize),
    Incomplete,
    Evicted,
}

use KnownRecord::{Completed, Evicted, Incomplete};

/// Returns the state of an id without claiming it.
async fn known(table: &RequestTable, principal: &str, id: &str) -> Option<KnownRecord> {
    let (key, generation) = (key(principal, id), table.generation.clone());
    let find = move |connection: &Connection| find_record(connection, &key, &generation);
    let found = table.database.apply(find).await.unwrap()?;
    Some(match found {
        RecordState::Completed { reply, .. } => Completed(reply.len()),
        RecordState::Incomplete { .. } => Incomplete,
        RecordState::Evicted { .. } => Evicted,
    })
}

#[tokio::test]
async fn retention_time_starts_at_the_end_of_a_call() {
    let table = open(ALL).await;
    for id in ["running", "late"] {
        assert_eq!(claim(&table, "a", id).await, None);
    }
    let is_running = |key: &RequestKey| key.id != "lost";
    age(&table, ALL.max_age * 2).await;
    table.apply_retention(is_running).await.unwrap();
    let late = Bytes::from_static(b"late");
    table.complete(key("a", "late"), late).await.unwrap();
    table.apply_retention(is_running).await.unwrap();
    assert_eq!(known(&table, "a", "running").await, Some(Incomplete));
    assert_eq!(known(&table, "a", "late").await, Some(Completed(4)));
    age(&table, ALL.max_age * 2).await;
    table.apply_retention(is_running).await.unwrap();
    assert_eq!(known(&table, "a", "running").await, Some(Incomplete));
    assert_eq!(known(&table, "a", "late").await, None);
}

#[tokio::test]
async fn calls_without_a_reply_expire_too() {
    let table = open(ALL).await;
    assert_eq!(claim(&table, "a", "lost").await, None);
    age(&table, ALL.max_age * 2).await;
    table.apply_retention(|_| false).await.unwrap();
    assert_eq!(known(&table, "a", "lost").await, Some(Incomplete));
    age(&table, ALL.max_age * 2).await;
    // Resumed by the next daemon.
    table.reclaim(key("a", "lost")).await.unwrap();
    table.apply_retention(|_| true).await.unwrap();
    assert_eq!(known(&table, "a", "lost").await, Some(Incomplete));
    table.apply_retention(|_| false).await.unwrap();
    age(&table, ALL.max_age * 2).await;
    table.apply_retention(|_| false).await.unwrap();
    assert_eq!(known(&table, "a", "lost").await, None);
}

#[tokio::test]
async fn busy_caller_does_not_evict_results_of_others() {
    let bytes = u64::MAX;
    let limits = RetentionLimits { max_rows: 5, max_bytes: bytes, ..ALL };
    let table = open(limits).await;
    for number in 0..2 {
        complete(&table, "few", &number.to_string(), 1).await;
    }
    for number in 0..2500 {
        complete(&table, "many", &number.to_string(), 1).await;
    }
    table.apply_retention(|_| false).await.unwrap();
    for number in 0..2 {
        let found = known(&table, "few", &number.to_string()).await;
        assert_eq!(found, Some(Completed(1)));
    }
    assert_eq!(known(&table, "many", "2496").await, None);
    for number in 2497..2500 {
        let found = known(&table, "many", &number.to_string()).await;
        assert_eq!(found, Some(Completed(1)));
    }
}

#[tokio::test]
async fn large_replies_evict_only_those_of_their_caller_and_stay_known() {
    let table = open(ALL).await;
    complete(&table, "few", "0", 100).await;
    for number in 0..20 {
        complete(&table, "much", &number.to_string(), 200).await;
    }
    table.apply_retention(|_| false).await.unwrap();
    assert_eq!(known(&table, "few", "0").await, Some(Completed(100)));
    for number in 0..20 {
        // The call stays known, so that it is not made again.
        let expected = match number {
            0..16 => Evicted,
            _ => Completed(200),
        };
        let found = known(&table, "much", &number.to_string()).await;
        assert_eq!(found, Some(expected), "{number}");
    }
}

#[tokio::test]
async fn oversized_reply_stays_while_newest_and_evicts_no_other() {
    let table = open(ALL).await;
    complete(&table, "a", "small", 100).await;
    complete(&table, "a", "large", 5000).await;
    table.apply_retention(|_| false).await.unwrap();
    assert_eq!(known(&table, "a", "small").await, Some(Completed(100)));
    assert_eq!(known(&table, "a", "large").await, Some(Completed(5000)));
    complete(&table, "a", "later", 100).await;
    table.apply_retention(|_| false).await.unwrap();
    assert_eq!(known(&table, "a", "small").await, Some(Completed(100)));
    assert_eq!(known(&table, "a", "large").await, Some(Evicted));
    assert_eq!(known(&table, "a", "later").await, Some(Completed(100)));
}

#[tokio::test]
async fn retention_is_due_after_a_tenth_of_a_limit() {
    let table = open(ALL).await;
    let trigger = table.retention_trigger();
    complete(&table, "a", "large", 100).await;
    let due = tokio::time::timeout(Duration::from_secs(20), trigger.wait_until_due());
    due.await.expect("due after a tenth of the bytes");
    for number in 0..10 {
        complete(&table, "a", &number.to_string(), 1).await;
    }
    let due = tokio::time::timeout(Duration::from_secs(20), trigger.wait_until_due());
    due.await.expect("due after a tenth of the rows");
}

/// Inserts a job that was submitted with this request id, and ends it.
async fn end_job(jobs: &JobTable, id: &str, request: &str) {
    let job = Job {
        id: id.to_owned(),
        workspace: "w".to_owned(),
        session: "default".to_owned(),
        principal: "a".to_owned(),
        request_id: Some(request.to_owned()),
        dialect: String::new(),
        model_call_id: String::new(),
        tool: "run".to_owned(),
        queue: "q".to_owned(),
        priority: 0,
        state: JobState::Queued,
        trace: String::new(),
        submitted: jobs::now_to_millis(),
        started: None,
        ended: None,
        step: None,
    };
    jobs.insert(job).await.unwrap();
    let ended = jobs.record_end(id.to_owned(), JobState::Succeeded, jobs::now_to_millis(), None);
    ended.await.unwrap();
}

#[tokio::test]
async fn submission_without_a_reply_is_evicted_with_its_job() {
    let database = Database::in_memory().unwrap();
    let table = RequestTable::open(database.clone(), ALL).await.unwrap();
    let few = RetentionLimits { max_rows: 2, ..ALL };
    let (jobs, _) = JobTable::open(database, few).await.unwrap();
    for id in ["1", "2", "3", "4"] {
        assert_eq!(claim(&table, "a", id).await, None);
        end_job(&jobs, id, id).await;
    }
    let reply = Bytes::from_static(b"answer");
    table.complete(key("a", "2"), reply).await.unwrap();
    jobs.apply_retention().await.unwrap();
    for (id, expected) in
        [("1", Evicted), ("2", Completed(6)), ("3", Incomplete), ("4", Incomplete)]
    {
        assert_eq!(known(&table, "a", id).await, Some(expected), "{id}");
    }
}
