//! Jobs of several callers: no caller blocks another, and each job runs with its caller's current
//! rights.

use std::{fs, sync::Arc, time::Duration};

use jig::api::v1::{
    GetJobRequest, InvokeStatus, Job, JobState, SubmitJobRequest, WaitJobRequest, WatchJobRequest,
};
use serde_json::json;

use super::{
    Jobs, WAIT_FOR_GO_FILE, command_job, expect_result,
    start_blocked::{allow, pending_approvals_with_key, wait_for_pending_approvals_with_key},
    tool_job,
};
use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Refusal, Setup, eventually, promptly, with_key},
};

/// A client of the job service that calls with a key.
pub(super) struct Caller {
    jobs: Jobs,
    pub(super) key: String,
}

impl Caller {
    pub(super) fn new(daemon: &Daemon, key: &str) -> Self {
        Self { jobs: Jobs::of(daemon), key: key.to_owned() }
    }

    pub(super) async fn submit(&mut self, queue: &str, request: SubmitJobRequest) -> String {
        self.try_submit(queue, request).await.unwrap()
    }

    async fn try_submit(
        &mut self,
        queue: &str,
        request: SubmitJobRequest,
    ) -> Result<String, Refusal> {
        let request = SubmitJobRequest { queue: Some(queue.to_owned()), ..request };
        let submitted = self.jobs.try_submit(with_key(&self.key, request)).await;
        submitted.map(|job| job.job_id)
    }

    pub(super) async fn state(&mut self, id: &str) -> JobState {
        let job_id = id.to_owned();
        let request = with_key(&self.key, GetJobRequest { job_id });
        let response = self.jobs.0.get_job(request).await.unwrap().into_inner();
        response.job.unwrap().state()
    }

    pub(super) async fn wait(&mut self, id: &str) -> Job {
        let request = WaitJobRequest { job_id: id.to_owned(), wait_ms: None };
        let call = self.jobs.0.wait_job(with_key(&self.key, request));
        let response = promptly("the job ends", call).await;
        response.unwrap().into_inner().job.unwrap()
    }

    async fn wait_for_state(&mut self, id: &str, state: JobState) {
        eventually(&format!("{id} is {state:?}"), async || self.state(id).await == state).await;
    }
}

#[tokio::test]
async fn endless_jobs_of_one_caller_do_not_block_others() {
    let keys = Arc::new(KeyFile::new());
    let [busy, quiet] = ["busy", "quiet"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_daemon_with_keys(
        Setup::new().workspace_table("[jobs]\nconcurrency = 4\nqueue_concurrency = 1\n"),
        &keys,
    )
    .await;
    let (mut busy, mut quiet) = (Caller::new(&daemon, &busy), Caller::new(&daemon, &quiet));

    let mut ids = Vec::new();
    for number in 0..8 {
        let request = SubmitJobRequest { priority: Some(100), ..command_job(WAIT_FOR_GO_FILE) };
        ids.push(busy.submit(&format!("q{number}"), request).await);
    }

    busy.wait_for_state(&ids[2], JobState::Running).await;
    let id = quiet.submit("q7", command_job("true")).await;
    expect_result(quiet.wait(&id).await, JobState::Succeeded);
    assert_eq!(busy.state(&ids[3]).await, JobState::Queued);

    fs::write(daemon.file("go"), "").unwrap();
    for id in &ids {
        expect_result(busy.wait(id).await, JobState::Succeeded);
    }
}

#[tokio::test]
async fn busy_caller_hits_queue_limit_while_others_submit() {
    let keys = Arc::new(KeyFile::new());
    let [busy, quiet] = ["busy", "quiet"].map(|name| keys.add_key(name, "invoke", &[]));
    let table = "[jobs]\nqueue_concurrency = 1\nmax_queued = 20\nmax_queued_bytes = 3000\n";
    let daemon = start_daemon_with_keys(Setup::new().workspace_table(table), &keys).await;
    let (mut busy, mut quiet) = (Caller::new(&daemon, &busy), Caller::new(&daemon, &quiet));

    let first = busy.submit("q", command_job(WAIT_FOR_GO_FILE)).await;
    busy.wait_for_state(&first, JobState::Running).await;

    // Submitted concurrently: the limit is exact.
    let submissions = (0..40).map(|_| {
        let mut caller = Caller::new(&daemon, &busy.key);
        tokio::spawn(async move { caller.try_submit("q", command_job("true")).await })
    });
    let submissions: Vec<_> = submissions.collect();
    let mut accepted = Vec::new();
    for submission in submissions {
        match submission.await.unwrap() {
            Ok(id) => accepted.push(id),
            Err(refusal) => {
                assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
                assert_eq!(refusal.metadata["limit"], "20");
                // A constant: the daemon cannot know how long jobs last.
                assert_eq!(refusal.retry_after, Some(Duration::from_secs(5)));
                assert!(refusal.message.contains("CancelJob"), "{refusal:?}");
            }
        }
    }

    assert_eq!(accepted.len(), 15);

    let large = |bytes: usize| command_job(&format!("true {}", "x".repeat(bytes)));
    let refusal = quiet.try_submit("q", large(3000)).await.unwrap_err();
    assert_eq!(refusal.metadata["limit"], "3000", "{refusal:?}");

    let id = quiet.submit("q", large(1000)).await;
    fs::write(daemon.file("go"), "").unwrap();
    expect_result(quiet.wait(&id).await, JobState::Succeeded);

    for id in &accepted {
        expect_result(busy.wait(id).await, JobState::Succeeded);
    }

    quiet.submit("q", large(2000)).await;
}

#[tokio::test]
async fn rate_limit_counts_submissions_but_not_job_starts() {
    let keys = Arc::new(KeyFile::new());
    let flags = ["--calls-per-second", "1", "--burst", "3"];
    let slow = keys.add_key("slow", "invoke", &flags);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let mut slow = Caller::new(&daemon, &slow);

    let mut ids = Vec::new();
    let refusal = loop {
        match slow.try_submit("q", tool_job("list_files", json!({}))).await {
            Ok(id) => ids.push(id),
            Err(refusal) => break refusal,
        }
    };
    assert!(ids.len() >= 3);
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.retry_after.is_some());

    for id in &ids {
        expect_result(slow.wait(id).await, JobState::Succeeded);
    }
}

#[tokio::test]
async fn caller_at_its_concurrency_limit_does_not_block_others() {
    let keys = Arc::new(KeyFile::new());
    let limited = keys.add_key("limited", "invoke", &["--concurrent-calls", "1"]);
    let other = keys.add_key("other", "invoke", &[]);
    let daemon = start_daemon_with_keys(
        Setup::new().workspace_table("[jobs]\nqueue_concurrency = 2\n"),
        &keys,
    )
    .await;
    let (mut limited, mut other) = (Caller::new(&daemon, &limited), Caller::new(&daemon, &other));

    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(limited.submit("q", command_job(WAIT_FOR_GO_FILE)).await);
    }

    limited.wait_for_state(&ids[0], JobState::Running).await;
    let id = other.submit("q", command_job("true")).await;
    expect_result(other.wait(&id).await, JobState::Succeeded);
    assert_eq!(limited.state(&ids[1]).await, JobState::Queued);

    fs::write(daemon.file("go"), "").unwrap();
    for id in &ids {
        expect_result(limited.wait(id).await, JobState::Succeeded);
    }
}

#[tokio::test]
async fn job_runs_with_rights_its_caller_has_at_start() {
    let keys = Arc::new(KeyFile::new());
    let [unchanged, lowered] =
        ["unchanged", "lowered"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_daemon_with_keys(
        Setup::new().workspace_table("[jobs]\nqueue_concurrency = 1\n"),
        &keys,
    )
    .await;
    let (mut unchanged, mut lowered) =
        (Caller::new(&daemon, &unchanged), Caller::new(&daemon, &lowered));

    let first = unchanged.submit("q", command_job(WAIT_FOR_GO_FILE)).await;
    unchanged.wait_for_state(&first, JobState::Running).await;

    let queued_id = lowered.submit("q", command_job("touch ran")).await;
    let file = fs::read_to_string(keys.path()).unwrap();
    let (before, after) = file.split_once("name = \"lowered\"").unwrap();
    let after = after.replacen("invoke", "read", 1);
    fs::write(keys.path(), format!("{before}name = \"lowered\"{after}")).unwrap();
    daemon.reload_config(Daemon::RELOADED).await;

    fs::write(daemon.file("go"), "").unwrap();
    let result = expect_result(lowered.wait(&queued_id).await, JobState::Failed);
    assert_eq!(result.status(), InvokeStatus::Error);
    assert_eq!(result.error.unwrap().error_type, "forbidden");
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn job_pending_approval_does_not_block_its_queue() {
    let table = "[jobs]\nqueue_concurrency = 1\n[policy]\ndangerous = \"ask\"\n";
    let daemon = Setup::new().workspace_table(table).start().await;
    let mut jobs = Jobs::of(&daemon);

    let mut pending_ids = Vec::new();
    for name in ["a", "b", "c"] {
        let line = format!("echo {name} >> order");
        pending_ids.push(jobs.submit(command_job(&line)).await);
    }

    wait_for_pending_approvals_with_key(&daemon, None, 3).await;
    let allowed = jobs.submit(tool_job("list_files", json!({}))).await;
    let job = promptly("the allowed job ends", jobs.wait(&allowed)).await;
    expect_result(job, JobState::Succeeded);

    for id in &pending_ids {
        assert_eq!(jobs.get(id).await.state(), JobState::Queued);
    }

    // Cancelling a job withdraws its approval request.
    jobs.cancel(&pending_ids[1]).await;
    wait_for_pending_approvals_with_key(&daemon, None, 2).await;

    for approval in pending_approvals_with_key(&daemon, None).await {
        allow(&daemon, None, &approval).await;
    }

    for id in [&pending_ids[0], &pending_ids[2]] {
        let job = promptly("the approved job ends", jobs.wait(id)).await;
        expect_result(job, JobState::Succeeded);
    }

    let order = fs::read_to_string(daemon.file("order")).unwrap();
    let mut order: Vec<_> = order.lines().collect();
    order.sort_unstable();
    assert_eq!(order, ["a", "c"]);
}

#[tokio::test]
async fn job_of_disabled_tool_is_rejected_on_submission() {
    let table = "[policy]\ndeny_tools = [\"run\"]\n";
    let daemon = Setup::new().workspace_table(table).start().await;
    let mut jobs = Jobs::of(&daemon);
    let refusal = jobs.try_submit(command_job("true")).await.unwrap_err();
    assert_eq!(refusal.reason, "TOOL_DISABLED");
    jobs.submit(tool_job("list_files", json!({}))).await;
}

#[tokio::test]
async fn watchers_beyond_limit_are_rejected_and_existing_ones_stay() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);

    let id = jobs.submit(command_job(WAIT_FOR_GO_FILE)).await;
    let request = || WatchJobRequest { job_id: id.clone(), ..WatchJobRequest::default() };
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(jobs.0.watch_job(request()).await.unwrap().into_inner());
    }

    let refusal = Refusal::from_status(&jobs.0.watch_job(request()).await.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert_eq!(refusal.metadata["limit"], "64");

    fs::write(daemon.file("go"), "").unwrap();
    for mut stream in streams {
        while promptly("the watch ends", stream.message()).await.unwrap().is_some() {}
    }

    eventually("a new watcher is accepted", async || jobs.0.watch_job(request()).await.is_ok())
        .await;
}
