//! Jobs that end while the database is locked: their end is reported only once it is stored.

use std::fs;

use jig::api::v1::{JobState, ListJobsRequest};
use rusqlite::Connection;

use super::{Jobs, WAIT_FOR_GO_FILE, command_job, expect_result};
use crate::support::{Daemon, eventually, promptly};

const STORE_FAILURE_LOG: &str = "cannot store the state of a job yet";

#[tokio::test]
async fn job_end_is_reported_only_once_stored() {
    let mut daemon = Daemon::start().await;

    let database = Connection::open(daemon.state_dir().join("jig.db")).unwrap();
    let mut jobs = Jobs::of(&daemon);
    let id = jobs.submit(command_job(WAIT_FOR_GO_FILE)).await;
    eventually("the job runs", async || jobs.get(&id).await.step.is_some()).await;

    let mut waiter = {
        let (mut jobs, id) = (Jobs::of(&daemon), id.clone());
        tokio::spawn(async move { jobs.wait(&id).await })
    };
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    fs::write(daemon.file("go"), "").unwrap();
    eventually("storing the end of the job fails", async || {
        daemon.log().contains(STORE_FAILURE_LOG)
    })
    .await;

    assert_eq!(jobs.get(&id).await.state(), JobState::Running);
    assert!(!waiter.is_finished());

    database.execute_batch("COMMIT").unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    let ended = promptly("the wait for the job ends", &mut waiter).await.unwrap();
    expect_result(ended.clone(), JobState::Succeeded);
    assert!(promptly("the daemon exits", daemon.wait_for_exit()).await.success());

    let daemon = daemon.restart().await;
    let mut jobs = Jobs::of(&daemon);
    assert_eq!(jobs.get(&id).await, ended);
}

#[tokio::test]
async fn job_end_stored_late_is_consistent_for_readers() {
    let daemon = Daemon::start().await;

    let database = Connection::open(daemon.state_dir().join("jig.db")).unwrap();
    let mut jobs = Jobs::of(&daemon);
    let id = jobs.submit(command_job(WAIT_FOR_GO_FILE)).await;
    eventually("the job runs", async || jobs.get(&id).await.step.is_some()).await;

    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    fs::write(daemon.file("go"), "").unwrap();
    eventually("storing the end of the job fails", async || {
        daemon.log().contains(STORE_FAILURE_LOG)
    })
    .await;

    database.execute_batch("COMMIT").unwrap();
    let mut states = Vec::new();
    eventually("the job is reported as succeeded", async || {
        let listed = jobs.list(ListJobsRequest::default()).await[0].state();
        let got = jobs.get(&id).await.state();
        let listed_again = jobs.list(ListJobsRequest::default()).await[0].state();
        // The state may change between two reads, and never changes back.
        states.extend([listed, got, listed_again]);
        listed_again == JobState::Succeeded
    })
    .await;
    assert!(states.is_sorted_by_key(|state| *state as i32), "{states:?}");
}
