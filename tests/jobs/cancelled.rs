//! Jobs that somebody ends.

use std::fs;

use jig::api::v1::{CancelJobRequest, JobState, WaitJobRequest};
use serde_json::json;

use super::{Jobs, command, data, job, result};
use crate::support::{Daemon, Mark, Refusal, Setup, eventually, promptly, shell, with};

#[tokio::test]
async fn nothing_is_left_of_a_command_that_was_cancelled() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);
    let mark = Mark::new();
    // Children that ignore what they can, and one that has a session of its own.
    let line = "trap '' TERM; for i in 1 2 3; do (trap '' TERM; sleep 1000) & done; setsid sleep 1000 & sleep 1000";
    let marked = mark.on(shell(line));
    let params = json!({ "command": marked.command, "env": marked.env });
    let id = jobs.submit(job("run", params)).await;
    mark.appears(5).await;
    let cancelled = promptly("cancelling", jobs.cancel(&id)).await;
    mark.assert_gone();
    let response = result(cancelled.clone(), JobState::Cancelled);
    assert_eq!(data(&response)["outcome"], "OUTCOME_CANCELLED");
    assert_eq!(jobs.get(&id).await, cancelled);
    assert_eq!(jobs.cancel(&id).await, cancelled);
}

#[tokio::test]
async fn one_that_waits_is_not_done() {
    let setup = Setup::new().workspace_table("[jobs]\nqueue_concurrency = 1\n");
    let daemon = setup.start().await;
    let mut jobs = Jobs::of(&daemon);
    let first = jobs.submit(command("sleep 1000")).await;
    eventually("it runs", async || jobs.get(&first).await.state() == JobState::Running).await;
    let second = jobs.submit(command("touch done")).await;
    let mut other = Jobs::of(&daemon);
    let waiter = {
        let second = second.clone();
        tokio::spawn(async move { other.wait(&second).await })
    };
    let cancelled = jobs.cancel(&second).await;
    assert_eq!(cancelled.state(), JobState::Cancelled);
    assert_eq!((cancelled.start_time, cancelled.result.clone()), (None, None));
    assert_eq!(waiter.await.unwrap(), cancelled);
    jobs.cancel(&first).await;
    let third = jobs.submit(command("true")).await;
    result(jobs.wait(&third).await, JobState::Succeeded);
    assert!(!daemon.file("done").exists());
    assert_eq!(fs::read_dir(daemon.state().join("jobs")).unwrap().count(), 0);
}

#[tokio::test]
async fn one_that_has_ended_is_answered_as_it_is() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);
    let id = jobs.submit(command("exit 1")).await;
    let ended = jobs.wait(&id).await;
    assert_eq!(jobs.cancel(&id).await, ended);
    let request = CancelJobRequest { job_id: id };
    let repeated = with("jig-request-id", "c", request);
    let again = jobs.0.cancel_job(repeated).await.unwrap();
    assert_eq!(again.into_inner().job, Some(ended));
}

#[tokio::test]
async fn shutting_down_ends_those_that_run_and_leaves_those_that_wait() {
    let setup = Setup::new().workspace_table("[jobs]\nqueue_concurrency = 1\n");
    let mut daemon = setup.start().await;
    let mut jobs = Jobs::of(&daemon);
    let mark = Mark::new();
    let marked = mark.on(shell("sleep 1000"));
    let params = json!({ "command": marked.command, "env": marked.env });
    let first = jobs.submit(job("run", params)).await;
    mark.appears(1).await;
    let second = jobs.submit(command("echo done >> runs")).await;
    daemon.signal(rustix::process::Signal::TERM);
    daemon.exit().await;
    mark.assert_gone();
    assert!(!daemon.file("runs").exists());
    let daemon = daemon.restart().await;
    let mut jobs = Jobs::of(&daemon);
    result(jobs.get(&first).await, JobState::Cancelled);
    result(jobs.wait(&second).await, JobState::Succeeded);
    assert_eq!(fs::read_to_string(daemon.file("runs")).unwrap(), "done\n");
}

#[tokio::test]
async fn who_waits_for_a_job_when_the_daemon_shuts_down_is_told_so() {
    let setup = Setup::new().workspace_table("[jobs]\nqueue_concurrency = 1\n");
    let mut daemon = setup.start().await;
    let mut jobs = Jobs::of(&daemon);
    let first = jobs.submit(command("sleep 1000")).await;
    eventually("it runs", async || jobs.get(&first).await.step.is_some()).await;
    let second = jobs.submit(command("true")).await;
    let mut other = Jobs::of(&daemon);
    let request = WaitJobRequest { job_id: second, wait_ms: None };
    let waiter = tokio::spawn(async move { other.0.wait_job(request).await });
    // Answered behind what the waiter has asked.
    jobs.get(&first).await;
    daemon.signal(rustix::process::Signal::TERM);
    let refused = promptly("it is told", waiter).await.unwrap();
    assert_eq!(Refusal::of(&refused.unwrap_err()).reason, "DRAINING");
    daemon.exit().await;
}
