//! What the log of request ids keeps, and for how long.

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

fn asked() -> RequestIdentity {
    RequestIdentity {
        method: "run".to_owned(),
        session: "default".to_owned(),
        fingerprint: [7; 32],
    }
}

async fn open(bounds: RetentionLimits) -> RequestTable {
    let database = Database::in_memory().unwrap();
    RequestTable::open(database, bounds).await.unwrap()
}

async fn claim(log: &RequestTable, principal: &str, id: &str) -> RecordState {
    log.claim(key(principal, id), asked()).await.unwrap()
}

/// Claims an id, and keeps an answer of so many bytes.
async fn answer(log: &RequestTable, principal: &str, id: &str, bytes: usize) {
    assert_eq!(claim(log, principal, id).await, RecordState::Claimed);
    let answer = Bytes::from(vec![1; bytes]);
    log.complete(key(principal, id), answer).await.unwrap();
}

/// Lets time pass: everything is so much older then.
async fn age(log: &RequestTable, by: Duration) {
    let by = i64::try_from(by.as_millis()).unwrap();
    let age = move |connection: &Connection| {
        connection
            .execute("UPDATE request SET begun_ms = begun_ms - ?1, ended_ms = ended_ms - ?1", [by])
    };
    log.database.apply(age).await.unwrap();
}

/// What is known of an id.
#[derive(Debug, PartialEq, Eq)]
enum KnownRecord {
    /// An answer of so many bytes.
    Answered(usize),
    Unanswered,
    Forgotten,
}

use KnownRecord::{Answered, Forgotten, Unanswered};

/// What is known of an id without claiming it.
async fn known(log: &RequestTable, principal: &str, id: &str) -> Option<KnownRecord> {
    let (key, life) = (key(principal, id), log.generation.clone());
    let find = move |connection: &Connection| find_record(connection, &key, &life);
    let found = log.database.apply(find).await.unwrap()?;
    Some(match found {
        RecordState::Completed { response: answer, .. } => Answered(answer.len()),
        RecordState::Incomplete { .. } | RecordState::Claimed => Unanswered,
        RecordState::Evicted { .. } => Forgotten,
    })
}

#[tokio::test]
async fn a_call_is_kept_from_its_end_on() {
    let log = open(ALL).await;
    for id in ["going", "late"] {
        assert_eq!(claim(&log, "a", id).await, RecordState::Claimed);
    }
    let goes_on = |key: &RequestKey| key.id != "lost";
    age(&log, ALL.max_age * 2).await;
    log.apply_retention(goes_on).await.unwrap();
    let late = Bytes::from_static(b"late");
    log.complete(key("a", "late"), late).await.unwrap();
    log.apply_retention(goes_on).await.unwrap();
    assert_eq!(known(&log, "a", "going").await, Some(Unanswered));
    assert_eq!(known(&log, "a", "late").await, Some(Answered(4)));
    age(&log, ALL.max_age * 2).await;
    log.apply_retention(goes_on).await.unwrap();
    assert_eq!(known(&log, "a", "going").await, Some(Unanswered));
    assert_eq!(known(&log, "a", "late").await, None);
}

#[tokio::test]
async fn what_was_never_answered_is_kept_as_long_and_not_for_ever() {
    let log = open(ALL).await;
    assert_eq!(claim(&log, "a", "lost").await, RecordState::Claimed);
    age(&log, ALL.max_age * 2).await;
    log.apply_retention(|_| false).await.unwrap();
    assert_eq!(known(&log, "a", "lost").await, Some(Unanswered));
    age(&log, ALL.max_age * 2).await;
    // Gone on with by the next daemon.
    log.reclaim(key("a", "lost")).await.unwrap();
    log.apply_retention(|_| true).await.unwrap();
    assert_eq!(known(&log, "a", "lost").await, Some(Unanswered));
    log.apply_retention(|_| false).await.unwrap();
    age(&log, ALL.max_age * 2).await;
    log.apply_retention(|_| false).await.unwrap();
    assert_eq!(known(&log, "a", "lost").await, None);
}

#[tokio::test]
async fn who_calls_much_takes_nothing_from_others() {
    let bytes = u64::MAX;
    let bounds = RetentionLimits { max_rows: 5, max_bytes: bytes, ..ALL };
    let log = open(bounds).await;
    for number in 0..2 {
        answer(&log, "few", &number.to_string(), 1).await;
    }
    for number in 0..2500 {
        answer(&log, "many", &number.to_string(), 1).await;
    }
    log.apply_retention(|_| false).await.unwrap();
    for number in 0..2 {
        let kept = known(&log, "few", &number.to_string()).await;
        assert_eq!(kept, Some(Answered(1)));
    }
    assert_eq!(known(&log, "many", "2496").await, None);
    for number in 2497..2500 {
        let kept = known(&log, "many", &number.to_string()).await;
        assert_eq!(kept, Some(Answered(1)));
    }
}

#[tokio::test]
async fn who_has_large_answers_loses_his_own_and_is_told_so() {
    let log = open(ALL).await;
    answer(&log, "few", "0", 100).await;
    for number in 0..20 {
        answer(&log, "much", &number.to_string(), 200).await;
    }
    log.apply_retention(|_| false).await.unwrap();
    assert_eq!(known(&log, "few", "0").await, Some(Answered(100)));
    for number in 0..20 {
        // It stays known that it was done: it is not done again.
        let kept = match number {
            0..16 => Forgotten,
            _ => Answered(200),
        };
        let found = known(&log, "much", &number.to_string()).await;
        assert_eq!(found, Some(kept), "{number}");
    }
}

#[tokio::test]
async fn what_is_too_large_by_itself_stays_while_it_is_the_newest_and_takes_nothing_along() {
    let log = open(ALL).await;
    answer(&log, "a", "small", 100).await;
    answer(&log, "a", "large", 5000).await;
    log.apply_retention(|_| false).await.unwrap();
    assert_eq!(known(&log, "a", "small").await, Some(Answered(100)));
    assert_eq!(known(&log, "a", "large").await, Some(Answered(5000)));
    answer(&log, "a", "later", 100).await;
    log.apply_retention(|_| false).await.unwrap();
    assert_eq!(known(&log, "a", "small").await, Some(Answered(100)));
    assert_eq!(known(&log, "a", "large").await, Some(Forgotten));
    assert_eq!(known(&log, "a", "later").await, Some(Answered(100)));
}

#[tokio::test]
async fn it_is_told_when_much_has_come() {
    let log = open(ALL).await;
    let growth = log.retention_trigger();
    answer(&log, "a", "large", 100).await;
    let told = tokio::time::timeout(Duration::from_secs(20), growth.wait_until_due());
    told.await.expect("at a tenth of the bytes");
    for number in 0..10 {
        answer(&log, "a", &number.to_string(), 1).await;
    }
    let told = tokio::time::timeout(Duration::from_secs(20), growth.wait_until_due());
    told.await.expect("at a tenth of the number");
}

/// A job that was submitted with this request id, and has ended.
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
async fn a_submission_is_done_also_where_its_job_is_not_kept_any_more_and_it_was_never_answered() {
    let database = Database::in_memory().unwrap();
    let log = RequestTable::open(database.clone(), ALL).await.unwrap();
    let few = RetentionLimits { max_rows: 2, ..ALL };
    let (jobs, _) = JobTable::open(database, few).await.unwrap();
    for id in ["1", "2", "3", "4"] {
        assert_eq!(claim(&log, "a", id).await, RecordState::Claimed);
        end_job(&jobs, id, id).await;
    }
    let answer = Bytes::from_static(b"answer");
    log.complete(key("a", "2"), answer).await.unwrap();
    jobs.apply_retention().await.unwrap();
    for (id, expected) in
        [("1", Forgotten), ("2", Answered(6)), ("3", Unanswered), ("4", Unanswered)]
    {
        assert_eq!(known(&log, "a", id).await, Some(expected), "{id}");
    }
}
