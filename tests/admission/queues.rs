//! Calls that wait for a permit: their order, limits on their number, and what ends the wait.

use std::{fs, sync::Arc, time::Duration};

use tonic::Code;

use super::{
    PendingRun, call_counts, deadline_refusal, run_until, start_limited, start_without_keys,
    wait_for_call_counts,
};
use crate::support::{
    Daemon, KeyFile, Refusal, eventually, promptly, shell, start_request, with_key,
};

/// A call that appends its name to `order` when it starts.
fn spawn_ordered(daemon: &Daemon, key: &str, name: &str) -> PendingRun {
    daemon.spawn_run(with_key(key, shell(&format!("echo {name} >> order"))))
}

fn start_order(daemon: &Daemon) -> Vec<String> {
    let order = fs::read_to_string(daemon.file("order")).unwrap_or_default();
    order.lines().map(str::to_owned).collect()
}

fn release(daemon: &Daemon, file: &str) {
    fs::write(daemon.file(file), "").unwrap();
}

#[tokio::test]
async fn permits_rotate_among_keys_in_call_order() {
    let keys = Arc::new(KeyFile::new());
    let [a, b, c] = ["a", "b", "c"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_limited("concurrent_calls = 1\n", &keys).await;

    let blocker = daemon.spawn_run(with_key(&a, run_until("go")));
    wait_for_call_counts(&daemon, Some(&a), (1, 0)).await;

    let mut calls = Vec::new();
    for (key, name) in [(&a, "a1"), (&a, "a2"), (&a, "a3"), (&b, "b1"), (&b, "b2"), (&c, "c1")] {
        calls.push(spawn_ordered(&daemon, key, name));
        let waiting = u32::try_from(calls.len()).unwrap();
        wait_for_call_counts(&daemon, Some(&a), (1, waiting)).await;
    }

    release(&daemon, "go");
    for call in calls {
        promptly("the call gets its permit", call).await.unwrap().unwrap();
    }

    // The first key already had a permit.
    assert_eq!(start_order(&daemon), ["b1", "c1", "a1", "b2", "a2", "a3"]);
    assert_eq!(blocker.await.unwrap().unwrap().exit_code, Some(0));

    wait_for_call_counts(&daemon, Some(&a), (0, 0)).await;
}

#[tokio::test]
async fn key_limited_to_one_call_does_not_block_others() {
    let keys = Arc::new(KeyFile::new());
    let limited_key = keys.add_key("one", "invoke", &["--concurrent-calls", "1"]);
    let other_key = keys.add_key("many", "invoke", &[]);
    let daemon = start_limited("concurrent_calls = 8\n", &keys).await;

    let first = daemon.spawn_run(with_key(&limited_key, run_until("go")));
    wait_for_call_counts(&daemon, Some(&limited_key), (1, 0)).await;

    let mut calls = Vec::new();
    for (number, name) in ["1", "2", "3"].into_iter().enumerate() {
        calls.push(spawn_ordered(&daemon, &limited_key, name));
        wait_for_call_counts(&daemon, Some(&limited_key), (1, u32::try_from(number).unwrap() + 1))
            .await;
    }

    promptly("the call of another key passes", spawn_ordered(&daemon, &other_key, "other"))
        .await
        .unwrap()
        .unwrap();

    // Processes have a limit of their own.
    let mut process =
        daemon.start_process(with_key(&limited_key, start_request(run_until("end")))).await;
    let refused =
        daemon.try_start_process(with_key(&limited_key, start_request(shell("true")))).await;
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert_eq!(refusal.metadata["limit"], "1");

    release(&daemon, "end");
    process.wait_for_exit().await;

    release(&daemon, "go");
    for call in calls {
        promptly("the call gets its permit", call).await.unwrap().unwrap();
    }

    first.await.unwrap().unwrap();
    assert_eq!(start_order(&daemon), ["other", "1", "2", "3"]);
}

#[tokio::test]
async fn queued_calls_are_limited_per_key() {
    let keys = Arc::new(KeyFile::new());
    let [a, b] = ["a", "b"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_limited("concurrent_calls = 1\nqueued_calls = 2\n", &keys).await;

    let blocker = daemon.spawn_run(with_key(&a, run_until("go")));
    wait_for_call_counts(&daemon, Some(&a), (1, 0)).await;

    let mut calls = vec![spawn_ordered(&daemon, &a, "a1"), spawn_ordered(&daemon, &a, "a2")];
    wait_for_call_counts(&daemon, Some(&a), (1, 2)).await;

    let refused = daemon.try_run(with_key(&a, shell("touch ran"))).await;
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert_eq!(refusal.metadata["limit"], "2");

    let wait = refusal.retry_after.unwrap();
    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(60));

    // Each key has a queue of its own.
    calls.push(spawn_ordered(&daemon, &b, "b1"));
    wait_for_call_counts(&daemon, Some(&a), (1, 3)).await;

    release(&daemon, "go");
    for call in calls.into_iter().chain([blocker]) {
        promptly("the call gets its permit", call).await.unwrap().unwrap();
    }
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn queue_timeout_rejects_waiting_call() {
    let daemon = start_without_keys("concurrent_calls = 1\nqueue_timeout = \"200ms\"\n").await;

    let blocker = daemon.spawn_run(run_until("go"));
    wait_for_call_counts(&daemon, None, (1, 0)).await;

    let refused = promptly("the daemon rejects the call", daemon.try_run(shell("touch ran"))).await;
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.message.contains("200ms"), "{refusal:?}");

    // The daemon has no estimate of call durations yet.
    assert!(refusal.retry_after.unwrap() >= Duration::from_secs(1));

    wait_for_call_counts(&daemon, None, (1, 0)).await;
    release(&daemon, "go");
    blocker.await.unwrap().unwrap();
    daemon.run(shell("true")).await;

    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn disconnected_or_late_caller_leaves_the_queue() {
    let daemon = start_without_keys("concurrent_calls = 1\n").await;

    let blocker = daemon.spawn_run(run_until("go"));
    wait_for_call_counts(&daemon, None, (1, 0)).await;

    let disconnected = daemon.spawn_run(shell("touch disconnected"));
    wait_for_call_counts(&daemon, None, (1, 1)).await;

    disconnected.abort();
    wait_for_call_counts(&daemon, None, (1, 0)).await;

    let mut late = tonic::Request::new(shell("touch late"));
    late.set_timeout(Duration::from_millis(100));
    let refused = promptly("the daemon rejects the call", daemon.try_run(late)).await;
    let code = refused.unwrap_err().code();

    // The local client may report the deadline before the daemon.
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&code));

    wait_for_call_counts(&daemon, None, (1, 0)).await;

    // A call with a request id waits in the same queue, and has not run when its caller leaves.
    let request =
        || crate::support::with_metadata("jig-request-id", "id", shell("echo ran >> ran"));
    let detached = daemon.spawn_run(request());
    wait_for_call_counts(&daemon, None, (1, 1)).await;

    detached.abort();
    wait_for_call_counts(&daemon, None, (1, 0)).await;

    let again = daemon.spawn_run(request());
    wait_for_call_counts(&daemon, None, (1, 1)).await;

    release(&daemon, "go");
    blocker.await.unwrap().unwrap();
    assert_eq!(again.await.unwrap().unwrap().exit_code, Some(0));

    let ran = fs::read_to_string(daemon.file("ran")).unwrap();
    assert_eq!(ran, "ran\n");

    for file in ["disconnected", "late"] {
        assert!(!daemon.file(file).exists());
    }
}

#[tokio::test]
async fn shutdown_rejects_queued_calls() {
    let mut daemon = start_without_keys("concurrent_calls = 1\n").await;

    let blocker = daemon.spawn_run(run_until("go"));
    wait_for_call_counts(&daemon, None, (1, 0)).await;

    let waiting = [(); 3].map(|()| daemon.spawn_run(shell("touch ran")));
    wait_for_call_counts(&daemon, None, (1, 3)).await;

    daemon.signal(rustix::process::Signal::TERM);
    for call in waiting {
        let refused = promptly("the daemon rejects the queued call", call).await.unwrap();
        let refusal = Refusal::from_status(&refused.unwrap_err());
        assert_eq!(refusal.reason, "DRAINING");
        assert!(refusal.retry_after.is_some());
    }

    release(&daemon, "go");
    assert_eq!(blocker.await.unwrap().unwrap().exit_code, Some(0));
    assert!(daemon.wait_for_exit().await.success());
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn invalid_calls_and_health_checks_need_no_permit() {
    let daemon = start_without_keys("concurrent_calls = 1\n").await;

    let blocker = daemon.spawn_run(run_until("go"));
    wait_for_call_counts(&daemon, None, (1, 0)).await;

    let invalid = promptly("the daemon rejects the call", daemon.try_run(shell(""))).await;
    assert_eq!(Refusal::from_status(&invalid.unwrap_err()).reason, "INVALID_PARAMS");

    promptly("the daemon answers the health check", daemon.health()).await;
    assert_eq!(call_counts(&daemon, None).await, (1, 0));

    release(&daemon, "go");
    blocker.await.unwrap().unwrap();
}

#[tokio::test]
async fn running_commands_do_not_block_other_starts() {
    let keys = Arc::new(KeyFile::new());
    let [a, b] = ["a", "b"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_limited("", &keys).await;

    let long_runs: Vec<_> =
        (0..20).map(|_| daemon.spawn_run(with_key(&a, run_until("go")))).collect();
    eventually("all of them run", async || {
        let info = call_counts(&daemon, Some(&a)).await;
        info == (20, 0)
    })
    .await;

    for key in [&a, &b] {
        promptly("the call of another key passes", daemon.run(with_key(key, shell("true")))).await;
    }

    release(&daemon, "go");
    for call in long_runs {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn deadline_in_queue_reports_that_nothing_started() {
    let daemon = start_without_keys("concurrent_calls = 1\n").await;

    let blocker = daemon.spawn_run(run_until("go"));
    wait_for_call_counts(&daemon, None, (1, 0)).await;

    let without_an_id = || tonic::Request::new(shell("touch ran"));
    let with_an_id = || crate::support::with_metadata("jig-request-id", "id", shell("touch ran"));
    for has_id in [false, true] {
        let late = || {
            let mut late = if has_id { with_an_id() } else { without_an_id() };
            late.set_timeout(Duration::from_secs(2));
            late
        };
        let refusal = deadline_refusal(&daemon, late).await;
        assert_eq!(refusal.reason, "TIMEOUT");
        assert!(refusal.message.contains("not started"), "{refusal:?}");
        assert!(refusal.retry_after.is_some());

        // The call has left the queue.
        assert_eq!(call_counts(&daemon, None).await, (1, 0));
    }

    // A queued call stays as long as one of its callers waits.
    let without_deadline = daemon.spawn_run(with_an_id());
    wait_for_call_counts(&daemon, None, (1, 1)).await;

    let mut with_deadline = with_an_id();
    with_deadline.set_timeout(Duration::from_secs(1));
    let late = daemon.try_run(with_deadline).await.unwrap_err();
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&late.code()));
    assert!(!daemon.file("ran").exists());

    release(&daemon, "go");
    blocker.await.unwrap().unwrap();
    let answer = promptly("the call completes", without_deadline).await.unwrap().unwrap();
    assert_eq!(answer.exit_code, Some(0));
    assert!(daemon.file("ran").exists());
}

#[tokio::test]
async fn queued_calls_are_limited_in_bytes() {
    let keys = Arc::new(KeyFile::new());
    let one = keys.add_key("one", "invoke", &["--concurrent-calls", "1"]);
    let other = keys.add_key("other", "invoke", &["--concurrent-calls", "1"]);
    let daemon = start_limited("queue_timeout = \"10m\"\n", &keys).await;

    let blockers = [&one, &other].map(|key| daemon.spawn_run(with_key(key, run_until("go"))));
    wait_for_call_counts(&daemon, Some(&one), (2, 0)).await;

    let large = |key: &str, number: usize| {
        let request = jig::api::v1::WriteFileRequest {
            path: format!("file-{number}"),
            content: "x".repeat(8 << 20),
            ..Default::default()
        };
        let mut tools = daemon.tools();
        let request = with_key(key, request);
        tokio::spawn(async move { tools.write_file(request).await.map(drop) })
    };

    // The limit is 64 MiB per caller, including overhead.
    let mut calls = Vec::new();
    for number in 0..7 {
        calls.push(large(&one, number));
        wait_for_call_counts(&daemon, Some(&one), (2, u32::try_from(number).unwrap() + 1)).await;
    }

    let refused = promptly("the daemon rejects the call", large(&one, 7)).await.unwrap();
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.message.contains("more do not fit"), "{refusal:?}");
    assert!(refusal.retry_after.is_some());

    // Other callers and small calls still fit.
    calls.push(large(&other, 8));
    wait_for_call_counts(&daemon, Some(&one), (2, 8)).await;

    let small = daemon.spawn_run(with_key(&one, shell("true")));
    wait_for_call_counts(&daemon, Some(&one), (2, 9)).await;

    release(&daemon, "go");
    for call in calls {
        promptly("the call completes", call).await.unwrap().unwrap();
    }

    for call in blockers.into_iter().chain([small]) {
        promptly("the call ends", call).await.unwrap().unwrap();
    }
    assert!(!daemon.file("file-7").exists());
}

#[tokio::test]
async fn callers_that_follow_retry_after_succeed() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("a", "invoke", &[]);
    let daemon = Arc::new(start_limited("concurrent_calls = 1\nqueued_calls = 2\n", &keys).await);

    let clients = (0..12).map(|_| {
        let (daemon, key) = (Arc::clone(&daemon), key.clone());
        tokio::spawn(async move {
            let mut refused = 0;
            for _ in 0..6 {
                while let Err(status) = daemon.try_run(with_key(&key, shell("sleep 0.1"))).await {
                    let refusal = Refusal::from_status(&status);
                    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
                    refused += 1;
                    // The test checks exactly the advertised delay.
                    tokio::time::sleep(refusal.retry_after.unwrap()).await;
                }
            }
            refused
        })
    });
    let mut refused = 0;
    for client in clients.collect::<Vec<_>>() {
        refused += promptly("the client completes its calls", client).await.unwrap();
    }

    // About each of the 72 calls is rejected once, and few of them twice.
    assert!(refused <= 2 * 72, "{refused}");
}
