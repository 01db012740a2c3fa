//! The order in which queued jobs start.

use std::{fs, sync::Arc};

use jig::api::v1::{JobState, ListJobsRequest, SubmitJobRequest};
use serde_json::json;

use super::{Jobs, WAIT_FOR_GO_FILE, command_job, expect_result, tool_job};
use crate::support::{Daemon, KeyFile, Setup, eventually, with_key};

async fn start_with_jobs_table(table: &str) -> Daemon {
    Setup::new().workspace_table(&format!("[jobs]\n{table}")).start().await
}

fn command_in_queue(queue: &str, priority: i32, command_line: &str) -> SubmitJobRequest {
    SubmitJobRequest {
        queue: Some(queue.to_owned()),
        priority: Some(priority),
        ..command_job(command_line)
    }
}

async fn count_in_state(jobs: &mut Jobs, state: JobState) -> usize {
    let states = vec![state.into()];
    let request = ListJobsRequest { states, ..ListJobsRequest::default() };
    jobs.list(request).await.len()
}

#[tokio::test]
async fn jobs_of_higher_priority_run_first() {
    let daemon = start_with_jobs_table("queue_concurrency = 1\n").await;
    let mut jobs = Jobs::of(&daemon);

    let first = jobs.submit(command_job(WAIT_FOR_GO_FILE)).await;
    let mut ids = vec![first];
    for (name, priority) in [("c", 0), ("d", -1), ("a", 5), ("b", 5), ("e", -100)] {
        let line = format!("echo {name} >> order");
        ids.push(jobs.submit(command_in_queue("default", priority, &line)).await);
    }
    assert_eq!(count_in_state(&mut jobs, JobState::Queued).await, 5);

    fs::write(daemon.file("go"), "").unwrap();
    for id in &ids {
        expect_result(jobs.wait(id).await, JobState::Succeeded);
    }

    let order = fs::read_to_string(daemon.file("order")).unwrap();
    assert_eq!(order, "a\nb\nc\nd\ne\n");
}

#[tokio::test]
async fn each_queue_runs_up_to_its_concurrency() {
    let daemon =
        start_with_jobs_table("concurrency = 5\nqueue_concurrency = 2\n[jobs.queues]\none = 1\n")
            .await;
    let mut jobs = Jobs::of(&daemon);

    let mut ids = Vec::new();
    for queue in ["one", "one", "a", "a", "a", "b", "b", "b", "c"] {
        ids.push(jobs.submit(command_in_queue(queue, 0, WAIT_FOR_GO_FILE)).await);
    }

    eventually("five jobs run", async || count_in_state(&mut jobs, JobState::Running).await == 5)
        .await;
    let mut running = Vec::new();
    for id in &ids {
        running.push(jobs.get(id).await.state() == JobState::Running);
    }
    assert_eq!(running, [true, false, true, true, false, true, true, false, false]);

    fs::write(daemon.file("go"), "").unwrap();
    for id in &ids {
        expect_result(jobs.wait(id).await, JobState::Succeeded);
    }
}

#[tokio::test]
async fn full_queue_rejects_submissions() {
    let daemon = start_with_jobs_table("queue_concurrency = 1\nmax_queued = 3\n").await;
    let mut jobs = Jobs::of(&daemon);

    let first = jobs.submit(command_job(WAIT_FOR_GO_FILE)).await;
    eventually("the first job runs", async || jobs.get(&first).await.state() == JobState::Running)
        .await;

    let mut ids = vec![first];
    for _ in 0..3 {
        ids.push(jobs.submit(command_job("true")).await);
    }

    let refusal = jobs.try_submit(command_job("true")).await.unwrap_err();
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert_eq!(refusal.metadata["limit"], "3");

    fs::write(daemon.file("go"), "").unwrap();
    for id in &ids {
        jobs.wait(id).await;
    }

    let id = jobs.submit(command_job("true")).await;
    expect_result(jobs.wait(&id).await, JobState::Succeeded);
}

#[tokio::test]
async fn wait_timeout_does_not_limit_the_job() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);

    let limited = tool_job("run", json!({"command": "sleep 100", "timeout_sec": 1}));
    let limited = jobs.submit(limited).await;
    let endless = jobs.submit(command_job("sleep 1000")).await;
    let job = jobs.wait_for(&endless, Some(50)).await;
    assert!(!matches!(job.state(), JobState::Succeeded | JobState::Failed));

    let response = expect_result(jobs.wait(&limited).await, JobState::Succeeded);
    assert_eq!(super::result_data(&response)["outcome"], "OUTCOME_TIMED_OUT");

    jobs.cancel(&endless).await;
}

#[tokio::test]
async fn job_runs_as_its_submitter() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("builder", "invoke", &["--for-tool", "run"]);
    let path = keys.path().display().to_string();
    let daemon = Setup::new().arguments(&["--keys", &path]).start().await;
    let mut jobs = Jobs::of(&daemon);

    let forbidden = tool_job("read_file", json!({"path": "x"}));
    let refusal = jobs.try_submit(with_key(&key, forbidden)).await.unwrap_err();
    assert_eq!(refusal.reason, "FORBIDDEN");

    let job = jobs.try_submit(with_key(&key, command_job("true"))).await.unwrap();
    assert_eq!(job.principal, "key:builder");

    let request = jig::api::v1::WaitJobRequest { job_id: job.job_id, wait_ms: None };
    let response = jobs.0.wait_job(with_key(&key, request)).await.unwrap();
    expect_result(response.into_inner().job.unwrap(), JobState::Succeeded);
}
