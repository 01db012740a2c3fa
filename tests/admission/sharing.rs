//! What is left for others of what one caller could have all of, and what he cannot be kept from.

use std::{fs, sync::Arc};

use jig::api::v1::{
    ApprovalState, CancelJobRequest, DecideApprovalRequest, Decision, JobState,
    ListApprovalsRequest, SubmitJobRequest, WatchEventsRequest, WriteFileRequest,
    WriteStdinRequest, approval_service_client::ApprovalServiceClient,
    event_service_client::EventServiceClient, job_service_client::JobServiceClient,
};
use tonic::Status;

use super::{run_until, start_limited, wait_for_call_counts};
use crate::support::{
    Daemon, KeyFile, Refusal, Setup, eventually, promptly, shell, start_request, with_key,
};

/// A command that says that it has begun, and goes on until it is let go.
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
    let long: Vec<_> = (0..10).map(|_| daemon.spawn_run(with_key(&a, blocked_run()))).collect();
    wait_for_call_counts(&daemon, Some(&a), (3, 7)).await;
    eventually("the sandboxes are taken", async || begun_count(&daemon) >= 3).await;
    for _ in 0..3 {
        let other = daemon.run(with_key(&b, shell("echo fine")));
        assert_eq!(promptly("it runs", other).await.stdout, "fine\n");
    }
    assert_eq!(begun_count(&daemon), 3);
    // Started ones are runs, too.
    let start = daemon.try_start_process(with_key(&b, start_request(shell("true"))));
    promptly("it is started", start).await.unwrap().wait_for_exit().await;
    fs::write(daemon.file("go"), "").unwrap();
    for run in long {
        promptly("it ends", run).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn sole_key_takes_every_sandbox_and_later_key_is_rejected() {
    let keys = Arc::new(KeyFile::new());
    let a = keys.add_key("a", "invoke", &[]);
    let limits = "concurrent_runs = 2\nqueue_timeout = \"300ms\"\n";
    let daemon = start_limited(limits, &keys).await;
    let long = [(); 2].map(|()| daemon.spawn_run(with_key(&a, blocked_run())));
    eventually("both run", async || begun_count(&daemon) == 2).await;
    // One that comes later, when all is taken.
    let b = keys.add_key("b", "invoke", &[]);
    daemon.reload_config(Daemon::RELOADED).await;
    let refused = daemon.try_run(with_key(&b, shell("true"))).await;
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    let expected = "other callers: 2 running";
    assert!(refusal.message.contains(expected), "{refusal:?}");
    assert!(!refusal.message.contains("fewer"), "{refusal:?}");
    fs::write(daemon.file("go"), "").unwrap();
    for run in long {
        promptly("it ends", run).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn later_keys_get_permits_beside_busy_ones() {
    let keys = Arc::new(KeyFile::new());
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_limited("concurrent_calls = 12\nqueue_timeout = \"10m\"\n", &keys).await;
    let mut long = Vec::new();
    for (key, wanted, then) in [(&a, 20, (9, 11)), (&b, 5, (10, 15))] {
        long.extend((0..wanted).map(|_| daemon.spawn_run(with_key(key, blocked_run()))));
        wait_for_call_counts(&daemon, Some(&a), then).await;
    }
    for key in [&c, &d] {
        promptly("it finds a place", daemon.run(with_key(key, shell("true")))).await;
    }
    fs::write(daemon.file("go"), "").unwrap();
    for call in long {
        promptly("it ends", call).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn keys_added_at_reload_share_permits() {
    let keys = KeyFile::new();
    let [a, b] = ["a", "b"].map(|name| keys.add_key(name, "invoke", &[]));
    let setup =
        Setup::new().workspace_table("[limits]\nconcurrent_calls = 4\nqueue_timeout = \"10m\"");
    let daemon = setup.start().await;
    // Which it may read from the start, as one that is not named then it could not be.
    let (workspace, path) = (daemon.workspace(), daemon.state_dir().join("keys.toml"));
    fs::copy(keys.path(), &path).unwrap();
    let text = format!(
        "keys = {path:?}\n[[workspaces]]\npath = {workspace:?}\n[limits]\nconcurrent_calls = 4\nqueue_timeout = \"10m\"\n"
    );
    fs::write(daemon.sibling_path("jig.toml"), text).unwrap();
    daemon.reload_config(Daemon::RELOADED).await;
    let long: Vec<_> = (0..6).map(|_| daemon.spawn_run(with_key(&a, run_until("go")))).collect();
    wait_for_call_counts(&daemon, Some(&a), (3, 3)).await;
    promptly("another finds a place", daemon.run(with_key(&b, shell("true")))).await;
    fs::write(daemon.file("go"), "").unwrap();
    for call in long {
        promptly("it ends", call).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn running_work_can_be_controlled_at_full_capacity() {
    let keys = Arc::new(KeyFile::new());
    let a = keys.add_key("a", "admin", &["--calls-per-second", "1", "--burst", "10"]);
    let path = keys.path().display().to_string();
    let daemon = Setup::new()
        .workspace_table(
            "[policy]\nsafe_write = \"ask\"\n[limits]\nconcurrent_calls = 1\nqueued_calls = 2\nqueue_timeout = \"10m\"\nconcurrent_processes = 1",
        )
        .arguments(&["--keys", &path])
        .with_resource(Arc::clone(&keys) as _)
        .start()
        .await;
    // One process, one call, one that waits for its place, a job that does, and one that is asked about.
    let mut cat = daemon.start_process(with_key(&a, start_request(shell("cat")))).await;
    let blocker = daemon.spawn_run(with_key(&a, run_until("go")));
    wait_for_call_counts(&daemon, Some(&a), (1, 0)).await;
    let waiting = daemon.spawn_run(with_key(&a, shell("true")));
    wait_for_call_counts(&daemon, Some(&a), (1, 1)).await;
    let mut jobs = JobServiceClient::new(daemon.channel());
    let request = SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: "{\"command\": \"touch ran\"}".to_owned(),
        ..SubmitJobRequest::default()
    };
    let job = jobs.submit_job(with_key(&a, request)).await.unwrap();
    let job_id = job.into_inner().job.unwrap().job_id;
    wait_for_call_counts(&daemon, Some(&a), (1, 2)).await;
    let write = WriteFileRequest {
        path: "asked".to_owned(),
        content: "text".to_owned(),
        ..WriteFileRequest::default()
    };
    let (mut tools, write) = (daemon.tools(), with_key(&a, write));
    let asked = tokio::spawn(async move { tools.write_file(write).await });
    let mut approvals = ApprovalServiceClient::new(daemon.channel());
    let mut approval_id = String::new();
    eventually("it is asked about", async || {
        let request = with_key(&a, ListApprovalsRequest::default());
        let listed = approvals.list_approvals(request).await.unwrap().into_inner();
        approval_id =
            listed.approvals.first().map_or_else(String::new, |first| first.approval_id.clone());
        !approval_id.is_empty()
    })
    .await;
    let assert_saturated = |refused: Result<(), Status>| {
        let refusal = Refusal::from_status(&refused.unwrap_err());
        assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    };
    assert_saturated(daemon.try_run(with_key(&a, shell("true"))).await.map(drop));
    assert_saturated(
        daemon.try_start_process(with_key(&a, start_request(shell("true")))).await.map(drop),
    );
    // More than the rate would let through.
    for write in 0..30 {
        let request = WriteStdinRequest {
            process_id: cat.id.clone(),
            write_id: write.to_string(),
            data: b"x".to_vec().into(),
            eof: write == 29,
        };
        let mut processes = daemon.processes();
        promptly("it is fed", processes.write_stdin(with_key(&a, request))).await.unwrap();
    }
    cat.wait_for_exit().await;
    assert_eq!(cat.stdout, [b'x'; 30]);
    let mut events = EventServiceClient::new(daemon.channel());
    let request = with_key(&a, WatchEventsRequest::default());
    let watched = promptly("it is watched", events.watch_events(request)).await;
    promptly("events come", watched.unwrap().into_inner().message()).await.unwrap().unwrap();
    let request = with_key(&a, CancelJobRequest { job_id });
    let cancelled = promptly("it is cancelled", jobs.cancel_job(request)).await.unwrap();
    assert_eq!(cancelled.into_inner().job.unwrap().state(), JobState::Cancelled);
    let decision = DecideApprovalRequest {
        approval_id,
        decision: Decision::Allow.into(),
        ..DecideApprovalRequest::default()
    };
    let decided = approvals.decide_approval(with_key(&a, decision));
    let decided = promptly("it is decided", decided).await.unwrap().into_inner();
    assert_eq!(decided.approval.unwrap().state(), ApprovalState::Allowed);
    fs::write(daemon.file("go"), "").unwrap();
    blocker.await.unwrap().unwrap();
    waiting.await.unwrap().unwrap();
    promptly("it is written", asked).await.unwrap().unwrap();
    assert!(!daemon.file("ran").exists() && daemon.file("asked").exists());
}
