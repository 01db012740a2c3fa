//! What the table of jobs stores, and for how long.

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

async fn list(table: &JobTable, change: impl FnOnce(&mut JobQuery)) -> Vec<String> {
    let mut query = JobQuery { workspace: "w".to_owned(), limit: 100, ..JobQuery::default() };
    change(&mut query);
    let jobs = table.list(query).await.unwrap();
    jobs.into_iter().map(|job| job.id).collect()
}

#[tokio::test]
async fn jobs_are_stored_and_running_ones_are_lost_with_the_daemon() {
    let database = Database::in_memory().unwrap();
    let (table, queued) = JobTable::open(database.clone(), ALL).await.unwrap();
    assert_eq!(queued, []);
    for (id, queue) in [("1", "a"), ("2", "a"), ("3", "b")] {
        table.insert(job(id, queue)).await.unwrap();
    }
    let start_time = now_to_millis();
    table.record_start("1".to_owned(), start_time).await.unwrap();
    table.record_step("1".to_owned(), 7).await.unwrap();
    table.record_start("2".to_owned(), start_time).await.unwrap();
    let result = Some(Bytes::from_static(b"result"));
    let end = table.record_end("2".to_owned(), JobState::Failed, start_time, result.clone());
    end.await.unwrap();
    let (table, queued) = JobTable::open(database, ALL).await.unwrap();
    assert_eq!(
        queued,
        [job("3", "b")].map(|mut job| {
            job.submitted = queued.first().unwrap().submitted;
            job
        })
    );
    let found = |id: &str| table.find("w".to_owned(), id.to_owned());
    let (lost, none) = found("1").await.unwrap().unwrap();
    assert_eq!((lost.state, lost.step, none), (JobState::Lost, Some(7), None));
    assert!(lost.ended.is_some());
    let (failed, stored) = found("2").await.unwrap().unwrap();
    assert_eq!(
        (failed.state, failed.started, stored),
        (JobState::Failed, Some(start_time), result)
    );
    assert_eq!(table.find("v".to_owned(), "1".to_owned()).await.unwrap(), None);
    let submitted = async |principal: &str, request: &str| {
        let [principal, request] = [principal, request].map(str::to_owned);
        let found = table.find_by_request_id(principal, "w".to_owned(), request).await;
        found.unwrap().map(|job| job.id)
    };
    assert_eq!(submitted("uid:0", "r2").await.as_deref(), Some("2"));
    assert_eq!(submitted("uid:0", "2").await, None);
    assert_eq!(submitted("uid:1", "r2").await, None);
    assert_eq!(list(&table, |_| {}).await, ["3", "2", "1"]);
    assert_eq!(list(&table, |s| s.queue = Some("a".to_owned())).await, ["2", "1"]);
    assert_eq!(list(&table, |s| s.before = Some("3".to_owned())).await, ["2", "1"]);
    assert_eq!(list(&table, |s| s.limit = 1).await, ["3"]);
    assert_eq!(
        list(&table, |s| s.states = vec![JobState::Lost, JobState::Queued]).await,
        ["3", "1"]
    );
    assert_eq!(list(&table, |s| s.workspace = "v".to_owned()).await, [""; 0]);
}

#[tokio::test]
async fn running_jobs_are_lost_even_if_the_disk_is_full() {
    let database = Database::in_memory().unwrap();
    let (table, _) = JobTable::open(database.clone(), ALL).await.unwrap();
    for id in ["1", "2"] {
        table.insert(job(id, "a")).await.unwrap();
    }
    table.record_start("1".to_owned(), now_to_millis()).await.unwrap();
    let set_writable = async |writable: bool| {
        let sql = format!("PRAGMA query_only = {}", i32::from(!writable));
        let set = move |connection: &Connection| connection.execute_batch(&sql);
        database.read(set).await.unwrap();
    };
    let (table, _) = JobTable::open(database.clone(), ALL).await.unwrap();
    // Like a full disk.
    set_writable(false).await;
    assert!(table.apply_retention().await.is_err());
    let lost = || list(&table, |s| s.states = vec![JobState::Lost]);
    let check = async || {
        assert_eq!(lost().await, ["1"]);
        let running = list(&table, |s| s.states = vec![JobState::Running]).await;
        assert_eq!(running, [""; 0]);
        let found = table.find("w".to_owned(), "1".to_owned()).await;
        let (found, _) = found.unwrap().unwrap();
        assert_eq!(found.state, JobState::Lost);
        found.ended.unwrap()
    };
    let ended = check().await;
    set_writable(true).await;
    table.apply_retention().await.unwrap();
    assert_eq!(check().await, ended);
    let state = |connection: &Connection| {
        connection.query_row("SELECT state FROM job WHERE id = '1'", [], |row| row.get(0))
    };
    let state: String = database.read(state).await.unwrap();
    assert_eq!(state, "lost");
}

#[tokio::test]
async fn expired_and_excess_jobs_are_removed_oldest_first() {
    let hour_ago = SystemTime::now() - Duration::from_secs(3601);
    for (retention, remaining) in [
        (ALL, &["6", "5", "4", "3", "2"][..]),
        (RetentionLimits { max_rows: 2, ..ALL }, &["6", "5", "4"]),
        (RetentionLimits { max_bytes: 25, ..ALL }, &["6", "5", "4"]),
        (RetentionLimits { max_bytes: 0, ..ALL }, &["6", "5"]),
    ] {
        let (table, _) = JobTable::open(Database::in_memory().unwrap(), retention).await.unwrap();
        for number in 1..=6 {
            let id = number.to_string();
            table.insert(job(&id, "a")).await.unwrap();
            let time = if number == 1 {
                hour_ago
            } else {
                SystemTime::now() + Duration::from_millis(number)
            };
            if number < 6 {
                let result = Some(Bytes::from_static(&[0; 10]));
                table.record_end(id, JobState::Succeeded, time, result).await.unwrap();
            }
        }
        table.apply_retention().await.unwrap();
        assert_eq!(list(&table, |_| {}).await, remaining, "{retention:?}");
    }
}

#[tokio::test]
async fn list_scans_a_long_table_in_batches() {
    let database = Database::in_memory().unwrap();
    let (table, _) = JobTable::open(database.clone(), ALL).await.unwrap();
    let last = 2 * SCAN_BATCH_ROWS + 50;
    for number in 1..=last {
        let queue = if number % 100 == 1 { "rare" } else { "a" };
        table.insert(job(&format!("{number:04}"), queue)).await.unwrap();
    }
    let rare = list(&table, |s| s.queue = Some("rare".to_owned())).await;
    assert_eq!(rare, ["0501", "0401", "0301", "0201", "0101", "0001"]);
    let some = list(&table, |s| {
        s.queue = Some("rare".to_owned());
        s.limit = 4;
        s.before = Some("0500".to_owned());
    });
    assert_eq!(some.await, ["0401", "0301", "0201", "0101"]);
    assert_eq!(list(&table, |s| s.limit = 300).await.len(), 300);
    let nowhere = JobQuery {
        workspace: "w".to_owned(),
        queue: Some("nowhere".to_owned()),
        limit: 100,
        ..JobQuery::default()
    };
    let scanned = database.apply(move |connection| scan_batch(connection, &nowhere));
    let scanned = scanned.await.unwrap();
    assert!(scanned.jobs.is_empty());
    assert_eq!(scanned.resume_before, Some(format!("{:04}", last - SCAN_BATCH_ROWS + 1)));
}

#[cfg(feature = "fleet")]
#[tokio::test]
async fn removal_of_an_unsettled_fleet_job_is_noted() {
    let limits = RetentionLimits { max_age: Duration::ZERO, ..ALL };
    let (table, _) = JobTable::open(Database::in_memory().unwrap(), limits).await.unwrap();
    let starts = async || table.list_fleet_starts("1".to_owned()).await.unwrap();
    table.record_fleet_start("here".to_owned(), "1".to_owned()).await.unwrap();
    let end = async |id: &str, request_id: &str| {
        let job = Job { request_id: Some(request_id.to_owned()), ..job(id, "q") };
        table.insert(job).await.unwrap();
        let ended = SystemTime::now() - Duration::from_secs(60);
        table.record_end(id.to_owned(), JobState::Succeeded, ended, None).await.unwrap();
    };

    end("a", "plain").await;
    end("b", "fleet\u{1f}fleet-1\u{1f}1").await;
    table
        .change_request_id("fleet\u{1f}fleet-1\u{1f}1".to_owned(), "settled".to_owned())
        .await
        .unwrap();
    let found = table.find_by_request_id("uid:0".to_owned(), "w".to_owned(), "settled".to_owned());
    assert_eq!(found.await.unwrap().unwrap().id, "b");
    table.apply_retention().await.unwrap();
    assert_eq!(list(&table, |_| {}).await, [""; 0]);
    assert_eq!(starts().await, ["1"]);

    end("c", "fleet\u{1f}fleet-2\u{1f}1").await;
    table.apply_retention().await.unwrap();
    assert_eq!(starts().await, [""; 0]);
}

#[cfg(feature = "fleet")]
#[tokio::test]
async fn queued_fleet_jobs_are_lost_if_the_database_may_lack_their_begin() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.db");
    let database = Database::open(&path, false).unwrap();
    let (table, _) = JobTable::open(database.clone(), ALL).await.unwrap();
    for (id, request) in [("1", "fleet\u{1f}fleet-1\u{1f}1"), ("2", "fleet-2"), ("3", "plain")] {
        table.insert(Job { request_id: Some(request.to_owned()), ..job(id, "q") }).await.unwrap();
    }
    let queued = async || {
        let (_, queued) = JobTable::open(database.clone(), ALL).await.unwrap();
        queued.into_iter().map(|job| job.id).collect::<Vec<_>>()
    };
    let place = fleet_starts::read_place(&path).unwrap();
    table.record_fleet_start(place, "1".to_owned()).await.unwrap();
    assert_eq!(queued().await, ["1", "2", "3"]);

    table.record_fleet_start("elsewhere".to_owned(), "2".to_owned()).await.unwrap();
    assert_eq!(queued().await, ["2", "3"]);
    assert_eq!(list(&table, |s| s.states = vec![JobState::Lost]).await, ["1"]);
}
