//! Jobs that end while the database cannot be used: nothing is told of them that is not kept.

use std::fs;

use jig::api::v1::{JobState, ListJobsRequest};
use rusqlite::Connection;

use super::{Jobs, callers::UNTIL_GO, command, result};
use crate::support::{Daemon, eventually, promptly};

const NOT_YET: &str = "cannot store the state of a job yet";

#[tokio::test]
async fn an_end_is_told_once_it_is_kept_and_kept_before_the_daemon_ends() {
    let mut daemon = Daemon::start().await;
    let other = Connection::open(daemon.state().join("jig.db")).unwrap();
    let mut jobs = Jobs::of(&daemon);
    let id = jobs.submit(command(UNTIL_GO)).await;
    eventually("it runs", async || jobs.get(&id).await.step.is_some()).await;
    let mut waiter = {
        let (mut jobs, id) = (Jobs::of(&daemon), id.clone());
        tokio::spawn(async move { jobs.wait(&id).await })
    };
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    fs::write(daemon.file("go"), "").unwrap();
    eventually("its end cannot be kept", async || daemon.log().contains(NOT_YET)).await;
    assert_eq!(jobs.get(&id).await.state(), JobState::Running);
    assert!(!waiter.is_finished());
    other.execute_batch("COMMIT").unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    let told = promptly("it is told", &mut waiter).await.unwrap();
    result(told.clone(), JobState::Succeeded);
    assert!(promptly("it ends", daemon.exit()).await.success());
    let daemon = daemon.restart().await;
    let mut jobs = Jobs::of(&daemon);
    assert_eq!(jobs.get(&id).await, told);
}

#[tokio::test]
async fn an_end_that_was_kept_later_is_the_same_for_all_who_look() {
    let daemon = Daemon::start().await;
    let other = Connection::open(daemon.state().join("jig.db")).unwrap();
    let mut jobs = Jobs::of(&daemon);
    let id = jobs.submit(command(UNTIL_GO)).await;
    eventually("it runs", async || jobs.get(&id).await.step.is_some()).await;
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    fs::write(daemon.file("go"), "").unwrap();
    eventually("its end cannot be kept", async || daemon.log().contains(NOT_YET)).await;
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
