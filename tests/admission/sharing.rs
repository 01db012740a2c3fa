//! Sharing of permits and sandboxes among callers, and control of running work at full capacity.

use std::{fs, sync::Arc};

use jig::api::v1::{
    ApprovalState, CancelJobRequest, JobState, SubmitJobRequest, WatchEventsRequest,
    WriteFileRequest, WriteStdinRequest, approval_service_client::ApprovalServiceClient,
    event_service_client::EventServiceClient, job_service_client::JobServiceClient,
};
use tonic::Status;

use super::{run_until, start_limited, wait_for_approval_to_allow, wait_for_call_counts};
use crate::{
    callers::start_daemon_with_keys,
    support::{
        Daemon, KeyFile, Refusal, Setup, eventually, promptly, shell, start_request, with_key,
    },
};

/// A command that appends a line to `begun`, and runs until the file `go` exists.
fn blocked_run() -> jig::api::v1::RunRequest {
    shell("echo begun >> begun; until [ -e go ]; do sleep 0.01; done")
}

fn begun_count(daemon: &Daemon) -> usize {
    let begun = fs::read_to_string(daemon.file("begun")).unwrap_or_default();
    begun.lines().count()
}

#[tokio::test]
async fn runs_of_one_key_do_not_block_another() {
    let keys = Arc::new(KeyFile::new());
    let [a, b] = ["a", "b"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_limited("concurrent_runs = 4\nqueue_timeout = \"10m\"\n", &keys).await;

    let long_runs: Vec<_> =
        (0..10).map(|_| daemon.spawn_run(with_key(&a, blocked_run()))).collect();
    wait_for_call_counts(&daemon, Some(&a), (3, 7)).await;

    eventually("the sandboxes are in use", async || begun_count(&daemon) >= 3).await;
    for _ in 0..3 {
        let other = daemon.run(with_key(&b, shell("echo fine")));
        assert_eq!(promptly("the run of the other key completes", other).await.stdout, "fine\n");
    }
    assert_eq!(begun_count(&daemon), 3);

    // Processes use sandboxes like runs.
    let start = daemon.try_start_process(with_key(&b, start_request(shell("true"))));
    promptly("the process starts", start).await.unwrap().wait_for_exit().await;

    fs::write(daemon.file("go"), "").unwrap();
    for run in long_runs {
        promptly("the run ends", run).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn sole_key_takes_every_sandbox_and_later_key_is_rejected() {
    let keys = Arc::new(KeyFile::new());
    let a = keys.add_key("a", "invoke", &[]);

    let limits = "concurrent_runs = 2\nqueue_timeout = \"300ms\"\n";
    let daemon = start_limited(limits, &keys).await;
    let long_runs = [(); 2].map(|()| daemon.spawn_run(with_key(&a, blocked_run())));
    eventually("both commands run", async || begun_count(&daemon) == 2).await;

    // A key that arrives while all sandboxes are in use.
    let b = keys.add_key("b", "invoke", &[]);
    daemon.reload_config(Daemon::RELOADED).await;
    let refused = daemon.try_run(with_key(&b, shell("true"))).await;
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");

    let expected = "other callers: 2 running";
    assert!(refusal.message.contains(expected), "{refusal:?}");
    assert!(!refusal.message.contains("fewer"), "{refusal:?}");

    fs::write(daemon.file("go"), "").unwrap();
    for run in long_runs {
        promptly("the run ends", run).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn later_keys_get_permits_beside_busy_ones() {
    let keys = Arc::new(KeyFile::new());
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_limited("concurrent_calls = 12\nqueue_timeout = \"10m\"\n", &keys).await;

    let mut long_runs = Vec::new();
    for (key, calls, expected_counts) in [(&a, 20, (9, 11)), (&b, 5, (10, 15))] {
        long_runs.extend((0..calls).map(|_| daemon.spawn_run(with_key(key, blocked_run()))));
        wait_for_call_counts(&daemon, Some(&a), expected_counts).await;
    }

    for key in [&c, &d] {
        promptly("the later key gets a permit", daemon.run(with_key(key, shell("true")))).await;
    }

    fs::write(daemon.file("go"), "").unwrap();
    for call in long_runs {
        promptly("the run ends", call).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn keys_added_at_reload_share_permits() {
    let keys = KeyFile::new();
    let [a, b] = ["a", "b"].map(|name| keys.add_key(name, "invoke", &[]));
    let setup =
        Setup::new().workspace_table("[limits]\nconcurrent_calls = 4\nqueue_timeout = \"10m\"");
    let daemon = setup.start().await;

    // In the state directory: the daemon may not read another key file that was not named at its
    // start.
    let (workspace, path) = (daemon.workspace(), daemon.state_dir().join("keys.toml"));
    fs::copy(keys.path(), &path).unwrap();
    let text = format!(
        "keys = {path:?}\n[[workspaces]]\npath = {workspace:?}\n[limits]\nconcurrent_calls = 4\nqueue_timeout = \"10m\"\n"
    );
    fs::write(daemon.sibling_path("jig.toml"), text).unwrap();
    daemon.reload_config(Daemon::RELOADED).await;
    let long_runs: Vec<_> =
        (0..6).map(|_| daemon.spawn_run(with_key(&a, run_until("go")))).collect();
    wait_for_call_counts(&daemon, Some(&a), (3, 3)).await;

    promptly("the other key gets a permit", daemon.run(with_key(&b, shell("true")))).await;
    fs::write(daemon.file("go"), "").unwrap();
    for call in long_runs {
        promptly("the run ends", call).await.unwrap().unwrap();
    }
}

/// Writes bytes to the standard input of a process, each in a call of its own, and closes it.
async fn write_bytes_one_by_one(daemon: &Daemon, key: &str, process_id: &str, count: usize) {
    for number in 1..=count {
        let request = WriteStdinRequest {
            process_id: process_id.to_owned(),
            write_id: number.to_string(),
            data: b"x".to_vec().into(),
            eof: number == count,
        };
        let mut processes = daemon.processes();
        let call = processes.write_stdin(with_key(key, request));
        promptly("the daemon writes to stdin", call).await.unwrap();
    }
}

/// Submits a job that would create the file `ran`, and returns its id.
async fn submit_touch_job(daemon: &Daemon, key: &str) -> String {
    let request = SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: "{\"command\": \"touch ran\"}".to_owned(),
        ..SubmitJobRequest::default()
    };
    let mut jobs = JobServiceClient::new(daemon.channel());
    let response = jobs.submit_job(with_key(key, request)).await.unwrap();
    response.into_inner().job.unwrap().job_id
}

#[tokio::test]
async fn running_work_can_be_controlled_at_full_capacity() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("a", "admin", &["--calls-per-second", "1", "--burst", "10"]);
    let setup = Setup::new().workspace_table(
        "[policy]\nsafe_write = \"ask\"\n[limits]\nconcurrent_calls = 1\nqueued_calls = 2\nqueue_timeout = \"10m\"\nconcurrent_processes = 1",
    );
    let daemon = start_daemon_with_keys(setup, &keys).await;

    // A process, a running call, a queued call, a queued job, and a call pending approval.
    let mut cat = daemon.start_process(with_key(&key, start_request(shell("cat")))).await;
    let blocker = daemon.spawn_run(with_key(&key, run_until("go")));
    wait_for_call_counts(&daemon, Some(&key), (1, 0)).await;

    let waiting = daemon.spawn_run(with_key(&key, shell("true")));
    wait_for_call_counts(&daemon, Some(&key), (1, 1)).await;

    let job_id = submit_touch_job(&daemon, &key).await;
    wait_for_call_counts(&daemon, Some(&key), (1, 2)).await;

    let write = WriteFileRequest {
        path: "asked".to_owned(),
        content: "text".to_owned(),
        ..WriteFileRequest::default()
    };
    let (mut tools, write) = (daemon.tools(), with_key(&key, write));
    let pending_write = tokio::spawn(async move { tools.write_file(write).await });
    let decision = wait_for_approval_to_allow(&daemon, &key).await;
    let assert_saturated = |refused: Result<(), Status>| {
        let refusal = Refusal::from_status(&refused.unwrap_err());
        assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    };
    assert_saturated(daemon.try_run(with_key(&key, shell("true"))).await.map(drop));
    assert_saturated(
        daemon.try_start_process(with_key(&key, start_request(shell("true")))).await.map(drop),
    );

    // More calls than the rate limit allows.
    write_bytes_one_by_one(&daemon, &key, &cat.id, 30).await;

    cat.wait_for_exit().await;
    assert_eq!(cat.stdout, [b'x'; 30]);

    let mut events = EventServiceClient::new(daemon.channel());
    let request = with_key(&key, WatchEventsRequest::default());
    let watched = promptly("the daemon opens the watch", events.watch_events(request)).await;
    promptly("an event arrives", watched.unwrap().into_inner().message()).await.unwrap().unwrap();

    let mut jobs = JobServiceClient::new(daemon.channel());
    let request = with_key(&key, CancelJobRequest { job_id });
    let cancelled = promptly("the job is cancelled", jobs.cancel_job(request)).await.unwrap();
    assert_eq!(cancelled.into_inner().job.unwrap().state(), JobState::Cancelled);

    let mut approvals = ApprovalServiceClient::new(daemon.channel());
    let decided = approvals.decide_approval(with_key(&key, decision));
    let decided = promptly("the approval is decided", decided).await.unwrap().into_inner();
    assert_eq!(decided.approval.unwrap().state(), ApprovalState::Allowed);

    fs::write(daemon.file("go"), "").unwrap();
    blocker.await.unwrap().unwrap();
    waiting.await.unwrap().unwrap();
    promptly("the file is written", pending_write).await.unwrap().unwrap();

    assert!(!daemon.file("ran").exists() && daemon.file("asked").exists());
}
