//! What the log of jobs keeps, and for how long.

use std::time::Duration;

use super::*;

const ALL: RetentionLimits =
    RetentionLimits { max_age: Duration::from_secs(3600), max_rows: 100, max_bytes: 1000 };

fn job(id: &str, queue: &str) -> Job {
    Job {
        id: id.to_owned(),
        workspace: "w".to_owned(),
        session: "default".to_owned(),
        principal: "uid:0".to_owned(),
        request_id: Some(format!("r{id}")),
        dialect: String::new(),
        model_call_id: "call_1".to_owned(),
        tool: "run".to_owned(),
        queue: queue.to_owned(),
        priority: -3,
        state: JobState::Queued,
        trace: String::new(),
        submitted: now_to_millis(),
        started: None,
        ended: None,
        step: None,
    }
}

async fn list(log: &JobTable, change: impl FnOnce(&mut JobQuery)) -> Vec<String> {
    let mut selection = JobQuery { workspace: "w".to_owned(), limit: 100, ..JobQuery::default() };
    change(&mut selection);
    let jobs = log.list(selection).await.unwrap();
    jobs.into_iter().map(|job| job.id).collect()
}

#[tokio::test]
async fn jobs_are_kept_and_what_ran_is_lost_with_its_daemon() {
    let database = Database::in_memory().unwrap();
    let (log, queued) = JobTable::open(database.clone(), ALL).await.unwrap();
    assert_eq!(queued, []);
    for (id, queue) in [("1", "a"), ("2", "a"), ("3", "b")] {
        log.insert(job(id, queue)).await.unwrap();
    }
    let begun = now_to_millis();
    log.record_start("1".to_owned(), begun).await.unwrap();
    log.record_step("1".to_owned(), 7).await.unwrap();
    log.record_start("2".to_owned(), begun).await.unwrap();
    let result = Some(Bytes::from_static(b"result"));
    let end = log.record_end("2".to_owned(), JobState::Failed, begun, result.clone());
    end.await.unwrap();
    let (log, queued) = JobTable::open(database, ALL).await.unwrap();
    assert_eq!(
        queued,
        [job("3", "b")].map(|mut job| {
            job.submitted = queued.first().unwrap().submitted;
            job
        })
    );
    let found = |id: &str| log.find("w".to_owned(), id.to_owned());
    let (lost, none) = found("1").await.unwrap().unwrap();
    assert_eq!((lost.state, lost.step, none), (JobState::Lost, Some(7), None));
    assert!(lost.ended.is_some());
    let (failed, kept) = found("2").await.unwrap().unwrap();
    assert_eq!((failed.state, failed.started, kept), (JobState::Failed, Some(begun), result));
    assert_eq!(log.find("v".to_owned(), "1".to_owned()).await.unwrap(), None);
    let submitted = async |principal: &str, request: &str| {
        let [principal, request] = [principal, request].map(str::to_owned);
        let found = log.find_by_request_id(principal, "w".to_owned(), request).await;
        found.unwrap().map(|job| job.id)
    };
    assert_eq!(submitted("uid:0", "r2").await.as_deref(), Some("2"));
    assert_eq!(submitted("uid:0", "2").await, None);
    assert_eq!(submitted("uid:1", "r2").await, None);
    assert_eq!(list(&log, |_| {}).await, ["3", "2", "1"]);
    assert_eq!(list(&log, |s| s.queue = Some("a".to_owned())).await, ["2", "1"]);
    assert_eq!(list(&log, |s| s.before = Some("3".to_owned())).await, ["2", "1"]);
    assert_eq!(list(&log, |s| s.limit = 1).await, ["3"]);
    assert_eq!(list(&log, |s| s.states = vec![JobState::Lost, JobState::Queued]).await, ["3", "1"]);
    assert_eq!(list(&log, |s| s.workspace = "v".to_owned()).await, [""; 0]);
}

#[tokio::test]
async fn what_ran_is_lost_also_where_there_is_no_room_to_write_that_down() {
    let database = Database::in_memory().unwrap();
    let (log, _) = JobTable::open(database.clone(), ALL).await.unwrap();
    for id in ["1", "2"] {
        log.insert(job(id, "a")).await.unwrap();
    }
    log.record_start("1".to_owned(), now_to_millis()).await.unwrap();
    let may_write = async |may: bool| {
        let sql = format!("PRAGMA query_only = {}", i32::from(!may));
        let set = move |connection: &Connection| connection.execute_batch(&sql);
        database.read(set).await.unwrap();
    };
    let (log, _) = JobTable::open(database.clone(), ALL).await.unwrap();
    // As a full disk does.
    may_write(false).await;
    assert!(log.apply_retention().await.is_err());
    let lost = || list(&log, |s| s.states = vec![JobState::Lost]);
    let seen = async || {
        assert_eq!(lost().await, ["1"]);
        let running = list(&log, |s| s.states = vec![JobState::Running]).await;
        assert_eq!(running, [""; 0]);
        let found = log.find("w".to_owned(), "1".to_owned()).await;
        let (found, _) = found.unwrap().unwrap();
        assert_eq!(found.state, JobState::Lost);
        found.ended.unwrap()
    };
    let ended = seen().await;
    may_write(true).await;
    log.apply_retention().await.unwrap();
    assert_eq!(seen().await, ended);
    let state = |connection: &Connection| {
        connection.query_row("SELECT state FROM job WHERE id = '1'", [], |row| row.get(0))
    };
    let state: String = database.read(state).await.unwrap();
    assert_eq!(state, "lost");
}

#[tokio::test]
async fn what_is_old_or_too_much_goes_oldest_first() {
    let hour_ago = SystemTime::now() - Duration::from_secs(3601);
    for (retention, left) in [
        (ALL, &["6", "5", "4", "3", "2"][..]),
        (RetentionLimits { max_rows: 2, ..ALL }, &["6", "5", "4"]),
        (RetentionLimits { max_bytes: 25, ..ALL }, &["6", "5", "4"]),
        (RetentionLimits { max_bytes: 0, ..ALL }, &["6", "5"]),
    ] {
        let (log, _) = JobTable::open(Database::in_memory().unwrap(), retention).await.unwrap();
        for number in 1..=6 {
            let id = number.to_string();
            log.insert(job(&id, "a")).await.unwrap();
            let time = if number == 1 {
                hour_ago
            } else {
                SystemTime::now() + Duration::from_millis(number)
            };
            if number < 6 {
                let result = Some(Bytes::from_static(&[0; 10]));
                log.record_end(id, JobState::Succeeded, time, result).await.unwrap();
            }
        }
        log.apply_retention().await.unwrap();
        assert_eq!(list(&log, |_| {}).await, left, "{retention:?}");
    }
}

#[tokio::test]
async fn a_long_log_is_looked_through_a_few_jobs_at_a_time() {
    let database = Database::in_memory().unwrap();
    let (log, _) = JobTable::open(database.clone(), ALL).await.unwrap();
    let last = 2 * SCAN_BATCH_ROWS + 50;
    for number in 1..=last {
        let queue = if number % 100 == 1 { "rare" } else { "a" };
        log.insert(job(&format!("{number:04}"), queue)).await.unwrap();
    }
    let rare = list(&log, |s| s.queue = Some("rare".to_owned())).await;
    assert_eq!(rare, ["0501", "0401", "0301", "0201", "0101", "0001"]);
    let some = list(&log, |s| {
        s.queue = Some("rare".to_owned());
        s.limit = 4;
        s.before = Some("0500".to_owned());
    });
    assert_eq!(some.await, ["0401", "0301", "0201", "0101"]);
    assert_eq!(list(&log, |s| s.limit = 300).await.len(), 300);
    let nowhere = JobQuery {
        workspace: "w".to_owned(),
        queue: Some("nowhere".to_owned()),
        limit: 100,
        ..JobQuery::default()
    };
    let looked = database.apply(move |connection| scan_batch(connection, &nowhere));
    let looked = looked.await.unwrap();
    assert!(looked.jobs.is_empty());
    assert_eq!(looked.resume_before, Some(format!("{:04}", last - SCAN_BATCH_ROWS + 1)));
}
