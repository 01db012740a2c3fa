//! Jobs that end while the database cannot be used: nothing is told of them that is not kept.

use std::fs;

use jig::api::v1::{JobState, ListJobsRequest};
use rusqlite::Connection;

use super::{Jobs, callers::WAIT_FOR_GO_FILE, command_job, expect_result};
use crate::support::{Daemon, eventually, promptly};

const STORE_FAILURE_LOG: &str = "cannot store the state of a job yet";

#[tokio::test]
async fn job_end_is_reported_only_once_stored() {
    let mut daemon = Daemon::start().await;
    let other = Connection::open(daemon.state_dir().join("jig.db")).unwrap();
    let mut jobs = Jobs::of(&daemon);
    let id = jobs.submit(command_job(WAIT_FOR_GO_FILE)).await;
    eventually("it runs", async || jobs.get(&id).await.step.is_some()).await;
    let mut waiter = {
        let (mut jobs, id) = (Jobs::of(&daemon), id.clone());
        tokio::spawn(async move { jobs.wait(&id).await })
    };
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    fs::write(daemon.file("go"), "").unwrap();
    eventually("its end cannot be kept", async || daemon.log().contains(STORE_FAILURE_LOG)).await;
    assert_eq!(jobs.get(&id).await.state(), JobState::Running);
    assert!(!waiter.is_finished());
    other.execute_batch("COMMIT").unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    let ended = promptly("it is told", &mut waiter).await.unwrap();
    expect_result(ended.clone(), JobState::Succeeded);
    assert!(promptly("it ends", daemon.wait_for_exit()).await.success());
    let daemon = daemon.restart().await;
    let mut jobs = Jobs::of(&daemon);
    assert_eq!(jobs.get(&id).await, ended);
}

#[tokio::test]
async fn job_end_stored_late_is_consistent_for_readers() {
    let daemon = Daemon::start().await;
    let other = Connection::open(daemon.state_dir().join("jig.db")).unwrap();
    let mut jobs = Jobs::of(&daemon);
    let id = jobs.submit(command_job(WAIT_FOR_GO_FILE)).await;
    eventually("it runs", async || jobs.get(&id).await.step.is_some()).await;
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    fs::write(daemon.file("go"), "").unwrap();
    eventually("its end cannot be kept", async || daemon.log().contains(STORE_FAILURE_LOG)).await;
    other.execute_batch("COMMIT").unwrap();
    let mut seen = Vec::new();
    eventually("it has ended", async || {
        let listed = jobs.list(ListJobsRequest::default()).await[0].state();
        let got = jobs.get(&id).await.state();
        let again = jobs.list(ListJobsRequest::default()).await[0].state();
        // The end may come between two looks, and never goes.
        seen.extend([listed, got, again]);
        again == JobState::Succeeded
    })
    .await;
    assert!(seen.is_sorted_by_key(|state| *state as i32), "{seen:?}");
}
