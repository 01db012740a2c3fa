//! Cancelled jobs.

use std::fs;

use jig::api::v1::{CancelJobRequest, JobState, WaitJobRequest};
use serde_json::json;

use super::{Jobs, command_job, expect_result, result_data, tool_job};
use crate::support::{Daemon, Mark, Refusal, Setup, eventually, promptly, shell, with_metadata};

#[tokio::test]
async fn cancelled_job_leaves_no_processes() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);
    let mark = Mark::new();

    // Children that ignore SIGTERM, and one in a session of its own.
    let line = "trap '' TERM; for i in 1 2 3; do (trap '' TERM; sleep 1000) & done; setsid sleep 1000 & sleep 1000";
    let marked = mark.on(shell(line));
    let params = json!({ "command": marked.command, "env": marked.env });
    let id = jobs.submit(tool_job("run", params)).await;
    mark.wait_for_processes(5).await;

    let cancelled = promptly("the cancellation returns", jobs.cancel(&id)).await;
    mark.assert_gone();

    let response = expect_result(cancelled.clone(), JobState::Cancelled);
    assert_eq!(result_data(&response)["outcome"], "OUTCOME_CANCELLED");
    assert_eq!(jobs.get(&id).await, cancelled);
    assert_eq!(jobs.cancel(&id).await, cancelled);
}

#[tokio::test]
async fn cancelled_queued_job_never_runs() {
    let setup = Setup::new().workspace_table("[jobs]\nqueue_concurrency = 1\n");
    let daemon = setup.start().await;
    let mut jobs = Jobs::of(&daemon);

    let first = jobs.submit(command_job("sleep 1000")).await;
    eventually("the first job runs", async || jobs.get(&first).await.state() == JobState::Running)
        .await;

    let second = jobs.submit(command_job("touch done")).await;
    let mut waiting_client = Jobs::of(&daemon);
    let waiter = {
        let second = second.clone();
        tokio::spawn(async move { waiting_client.wait(&second).await })
    };
    let cancelled = jobs.cancel(&second).await;
    assert_eq!(cancelled.state(), JobState::Cancelled);
    assert_eq!((cancelled.start_time, cancelled.result.clone()), (None, None));
    assert_eq!(waiter.await.unwrap(), cancelled);

    jobs.cancel(&first).await;
    let third = jobs.submit(command_job("true")).await;
    expect_result(jobs.wait(&third).await, JobState::Succeeded);
    assert!(!daemon.file("done").exists());
    assert_eq!(fs::read_dir(daemon.state_dir().join("jobs")).unwrap().count(), 0);
}

#[tokio::test]
async fn cancelling_finished_job_returns_it_unchanged() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);

    let id = jobs.submit(command_job("exit 1")).await;
    let ended = jobs.wait(&id).await;
    assert_eq!(jobs.cancel(&id).await, ended);

    let request = CancelJobRequest { job_id: id };
    let repeated = with_metadata("jig-request-id", "c", request);
    let again = jobs.0.cancel_job(repeated).await.unwrap();
    assert_eq!(again.into_inner().job, Some(ended));
}

#[tokio::test]
async fn shutdown_cancels_running_jobs_and_keeps_queued_ones() {
    let setup = Setup::new().workspace_table("[jobs]\nqueue_concurrency = 1\n");
    let mut daemon = setup.start().await;
    let mut jobs = Jobs::of(&daemon);
    let mark = Mark::new();

    let marked = mark.on(shell("sleep 1000"));
    let params = json!({ "command": marked.command, "env": marked.env });
    let first = jobs.submit(tool_job("run", params)).await;
    mark.wait_for_processes(1).await;

    let second = jobs.submit(command_job("echo done >> runs")).await;
    daemon.signal(rustix::process::Signal::TERM);
    daemon.wait_for_exit().await;
    mark.assert_gone();
    assert!(!daemon.file("runs").exists());

    let daemon = daemon.restart().await;
    let mut jobs = Jobs::of(&daemon);
    expect_result(jobs.get(&first).await, JobState::Cancelled);
    expect_result(jobs.wait(&second).await, JobState::Succeeded);
    assert_eq!(fs::read_to_string(daemon.file("runs")).unwrap(), "done\n");
}

#[tokio::test]
async fn shutdown_ends_job_waits_with_draining() {
    let setup = Setup::new().workspace_table("[jobs]\nqueue_concurrency = 1\n");
    let mut daemon = setup.start().await;
    let mut jobs = Jobs::of(&daemon);

    let first = jobs.submit(command_job("sleep 1000")).await;
    eventually("the first job runs", async || jobs.get(&first).await.step.is_some()).await;

    let second = jobs.submit(command_job("true")).await;
    let mut waiting_client = Jobs::of(&daemon);
    let request = WaitJobRequest { job_id: second, wait_ms: None };
    let waiter = tokio::spawn(async move { waiting_client.0.wait_job(request).await });

    // The daemon answers this after it has received the request of the waiter.
    jobs.get(&first).await;
    daemon.signal(rustix::process::Signal::TERM);
    let result = promptly("the wait ends", waiter).await.unwrap();
    assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "DRAINING");

    daemon.wait_for_exit().await;
}
