//! Runs that wait for a sandbox: the rules of the admission queue apply.

use std::{fs, sync::Arc, time::Duration};

use jig::api::v1::RunRequest;

use super::{deadline_refusal, run_until, start_limited, start_without_keys, wait_for_call_counts};
use crate::support::{KeyFile, Refusal, eventually, promptly, shell, start_request, with_key};

#[tokio::test]
async fn queue_timeout_rejects_run_waiting_for_sandbox() {
    let daemon = start_without_keys("concurrent_runs = 1\nqueue_timeout = \"2s\"\n").await;

    let blocker = daemon.spawn_run(run_until("go"));
    wait_for_call_counts(&daemon, None, (1, 0)).await;

    let waiting = daemon.spawn_run(shell("touch ran"));
    wait_for_call_counts(&daemon, None, (1, 1)).await;

    let refused = promptly("the daemon rejects the run", waiting).await.unwrap();
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.message.contains("2s"), "{refusal:?}");
    assert!(refusal.retry_after.is_some());

    let late = || {
        let mut late = tonic::Request::new(shell("touch ran"));
        late.set_timeout(Duration::from_secs(1));
        late
    };
    let refusal = deadline_refusal(&daemon, late).await;
    assert_eq!(refusal.reason, "TIMEOUT");
    assert!(refusal.message.contains("not started"), "{refusal:?}");

    fs::write(daemon.file("go"), "").unwrap();
    blocker.await.unwrap().unwrap();
    daemon.run(shell("true")).await;
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn runs_waiting_for_sandbox_are_limited_in_bytes() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("a", "invoke", &[]);
    let daemon = start_limited("concurrent_runs = 1\nqueue_timeout = \"10m\"\n", &keys).await;

    let blocker = daemon.spawn_run(with_key(&key, run_until("go")));
    wait_for_call_counts(&daemon, Some(&key), (1, 0)).await;

    let large = || {
        let request = RunRequest { stdin: vec![b'x'; 8 << 20].into(), ..shell("wc -c") };
        with_key(&key, request)
    };
    let mut calls = Vec::new();
    for number in 1..=7 {
        calls.push(daemon.spawn_run(large()));
        wait_for_call_counts(&daemon, Some(&key), (1, number)).await;
    }

    let refused = promptly("the daemon rejects the run", daemon.try_run(large())).await;
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.message.contains("more do not fit"), "{refusal:?}");

    fs::write(daemon.file("go"), "").unwrap();
    blocker.await.unwrap().unwrap();
    for call in calls {
        let answer = promptly("the run completes", call).await.unwrap().unwrap();
        assert_eq!(answer.stdout, "8388608\n");
    }
}

#[tokio::test]
async fn shutdown_rejects_runs_waiting_for_sandbox() {
    let mut daemon = start_without_keys("concurrent_runs = 1\nqueue_timeout = \"10m\"\n").await;

    let blocker = daemon.spawn_run(run_until("go"));
    wait_for_call_counts(&daemon, None, (1, 0)).await;

    let run = daemon.spawn_run(shell("touch ran"));
    wait_for_call_counts(&daemon, None, (1, 1)).await;

    let mut processes = daemon.processes();
    let process = tokio::spawn(async move {
        let mut stream = processes.start(start_request(shell("touch ran"))).await?.into_inner();
        while stream.message().await?.is_some() {}
        Ok::<(), tonic::Status>(())
    });
    eventually("the process waits for a sandbox", async || {
        !daemon.list_processes().await.is_empty()
    })
    .await;

    daemon.signal(rustix::process::Signal::TERM);
    let run = promptly("the daemon rejects the run", run).await.unwrap().unwrap_err();
    let process = promptly("the daemon rejects the process", process).await.unwrap();

    for refused in [run, process.unwrap_err()] {
        assert_eq!(Refusal::from_status(&refused).reason, "DRAINING");
    }

    // Running calls complete before the daemon exits.
    fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(blocker.await.unwrap().unwrap().exit_code, Some(0));
    assert!(daemon.wait_for_exit().await.success());
    assert!(!daemon.file("ran").exists());
}
