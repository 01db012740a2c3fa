//! Calls that wait for a place: in which order they get one, how many may wait, and what ends it.

use std::{fs, sync::Arc, time::Duration};

use tonic::Code;

use super::{Call, counts, in_vain, limited, of_one_user, settled, until};
use crate::support::{Daemon, KeyFile, Refusal, eventually, promptly, shell, started, with_key};

/// A call that notes its name once it begins.
fn noting(daemon: &Daemon, key: &str, name: &str) -> Call {
    daemon.begin(with_key(key, shell(&format!("echo {name} >> order"))))
}

fn order(daemon: &Daemon) -> Vec<String> {
    let order = fs::read_to_string(daemon.file("order")).unwrap_or_default();
    order.lines().map(str::to_owned).collect()
}

fn let_go(daemon: &Daemon, file: &str) {
    fs::write(daemon.file(file), "").unwrap();
}

#[tokio::test]
async fn free_places_go_round_among_keys_and_to_each_ones_calls_in_their_order() {
    let keys = Arc::new(KeyFile::new());
    let [a, b, c] = ["a", "b", "c"].map(|name| keys.add(name, "invoke", &[]));
    let daemon = limited("concurrent_calls = 1\n", &keys).await;
    let blocker = daemon.begin(with_key(&a, until("go")));
    settled(&daemon, Some(&a), (1, 0)).await;
    let mut calls = Vec::new();
    for (key, name) in [(&a, "a1"), (&a, "a2"), (&a, "a3"), (&b, "b1"), (&b, "b2"), (&c, "c1")] {
        calls.push(noting(&daemon, key, name));
        let waiting = u32::try_from(calls.len()).unwrap();
        settled(&daemon, Some(&a), (1, waiting)).await;
    }
    let_go(&daemon, "go");
    for call in calls {
        promptly("it gets its place", call).await.unwrap().unwrap();
    }
    // The first key has had one already.
    assert_eq!(order(&daemon), ["b1", "c1", "a1", "b2", "a2", "a3"]);
    assert_eq!(blocker.await.unwrap().unwrap().exit_code, Some(0));
    settled(&daemon, Some(&a), (0, 0)).await;
}

#[tokio::test]
async fn a_key_for_one_call_at_a_time_makes_one_at_a_time_and_holds_up_nobody() {
    let keys = Arc::new(KeyFile::new());
    let one = keys.add("one", "invoke", &["--concurrent-calls", "1"]);
    let many = keys.add("many", "invoke", &[]);
    let daemon = limited("concurrent_calls = 8\n", &keys).await;
    let first = daemon.begin(with_key(&one, until("go")));
    settled(&daemon, Some(&one), (1, 0)).await;
    let mut calls = Vec::new();
    for (number, name) in ["1", "2", "3"].into_iter().enumerate() {
        calls.push(noting(&daemon, &one, name));
        settled(&daemon, Some(&one), (1, u32::try_from(number).unwrap() + 1)).await;
    }
    promptly("others pass", noting(&daemon, &many, "other")).await.unwrap().unwrap();
    // Processes are counted by themselves.
    let mut process = daemon.watch(with_key(&one, started(until("end")))).await;
    let refused = daemon.try_watch(with_key(&one, started(shell("true")))).await;
    let refusal = Refusal::of(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert_eq!(refusal.metadata["limit"], "1");
    let_go(&daemon, "end");
    process.finish().await;
    let_go(&daemon, "go");
    for call in calls {
        promptly("it gets its place", call).await.unwrap().unwrap();
    }
    first.await.unwrap().unwrap();
    assert_eq!(order(&daemon), ["other", "1", "2", "3"]);
}

#[tokio::test]
async fn no_more_calls_of_one_key_wait_than_may() {
    let keys = Arc::new(KeyFile::new());
    let [a, b] = ["a", "b"].map(|name| keys.add(name, "invoke", &[]));
    let daemon = limited("concurrent_calls = 1\nqueued_calls = 2\n", &keys).await;
    let blocker = daemon.begin(with_key(&a, until("go")));
    settled(&daemon, Some(&a), (1, 0)).await;
    let mut calls = vec![noting(&daemon, &a, "a1"), noting(&daemon, &a, "a2")];
    settled(&daemon, Some(&a), (1, 2)).await;
    let refused = daemon.try_run(with_key(&a, shell("touch ran"))).await;
    let refusal = Refusal::of(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert_eq!(refusal.metadata["limit"], "2");
    let wait = refusal.retry_after.unwrap();
    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(60));
    // Others have a queue of their own.
    calls.push(noting(&daemon, &b, "b1"));
    settled(&daemon, Some(&a), (1, 3)).await;
    let_go(&daemon, "go");
    for call in calls.into_iter().chain([blocker]) {
        promptly("it gets its place", call).await.unwrap().unwrap();
    }
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn who_has_waited_long_enough_is_told_so() {
    let daemon = of_one_user("concurrent_calls = 1\nqueue_timeout = \"200ms\"\n").await;
    let blocker = daemon.begin(until("go"));
    settled(&daemon, None, (1, 0)).await;
    let refused = promptly("it is refused", daemon.try_run(shell("touch ran"))).await;
    let refusal = Refusal::of(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.message.contains("200ms"), "{refusal:?}");
    // Nothing is known of how long calls last.
    assert!(refusal.retry_after.unwrap() >= Duration::from_secs(1));
    settled(&daemon, None, (1, 0)).await;
    let_go(&daemon, "go");
    blocker.await.unwrap().unwrap();
    daemon.run(shell("true")).await;
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn who_goes_away_does_not_wait_any_more() {
    let daemon = of_one_user("concurrent_calls = 1\n").await;
    let blocker = daemon.begin(until("go"));
    settled(&daemon, None, (1, 0)).await;
    let gone = daemon.begin(shell("touch gone"));
    settled(&daemon, None, (1, 1)).await;
    gone.abort();
    settled(&daemon, None, (1, 0)).await;
    let mut late = tonic::Request::new(shell("touch late"));
    late.set_timeout(Duration::from_millis(100));
    let refused = promptly("it is refused", daemon.try_run(late)).await;
    let code = refused.unwrap_err().code();
    // Our own client may be the first to see it.
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&code));
    settled(&daemon, None, (1, 0)).await;
    // One with a request id waits like any other, and was not done when it left.
    let request = || crate::support::with("jig-request-id", "id", shell("echo ran >> ran"));
    let left = daemon.begin(request());
    settled(&daemon, None, (1, 1)).await;
    left.abort();
    settled(&daemon, None, (1, 0)).await;
    let again = daemon.begin(request());
    settled(&daemon, None, (1, 1)).await;
    let_go(&daemon, "go");
    blocker.await.unwrap().unwrap();
    assert_eq!(again.await.unwrap().unwrap().exit_code, Some(0));
    let ran = fs::read_to_string(daemon.file("ran")).unwrap();
    assert_eq!(ran, "ran\n");
    for file in ["gone", "late"] {
        assert!(!daemon.file(file).exists());
    }
}

#[tokio::test]
async fn a_daemon_that_ends_sends_away_who_waits() {
    let mut daemon = of_one_user("concurrent_calls = 1\n").await;
    let blocker = daemon.begin(until("go"));
    settled(&daemon, None, (1, 0)).await;
    let waiting = [(); 3].map(|()| daemon.begin(shell("touch ran")));
    settled(&daemon, None, (1, 3)).await;
    daemon.signal(rustix::process::Signal::TERM);
    for call in waiting {
        let refused = promptly("it is sent away", call).await.unwrap();
        let refusal = Refusal::of(&refused.unwrap_err());
        assert_eq!(refusal.reason, "DRAINING");
        assert!(refusal.retry_after.is_some());
    }
    let_go(&daemon, "go");
    assert_eq!(blocker.await.unwrap().unwrap().exit_code, Some(0));
    assert!(daemon.exit().await.success());
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn what_takes_no_place_needs_none() {
    let daemon = of_one_user("concurrent_calls = 1\n").await;
    let blocker = daemon.begin(until("go"));
    settled(&daemon, None, (1, 0)).await;
    let invalid = promptly("it is refused", daemon.try_run(shell(""))).await;
    assert_eq!(Refusal::of(&invalid.unwrap_err()).reason, "INVALID_PARAMS");
    promptly("its health is told", daemon.health()).await;
    assert_eq!(counts(&daemon, None).await, (1, 0));
    let_go(&daemon, "go");
    blocker.await.unwrap().unwrap();
}

#[tokio::test]
async fn commands_that_go_on_keep_no_turn() {
    let keys = Arc::new(KeyFile::new());
    let [a, b] = ["a", "b"].map(|name| keys.add(name, "invoke", &[]));
    let daemon = limited("", &keys).await;
    let long: Vec<_> = (0..20).map(|_| daemon.begin(with_key(&a, until("go")))).collect();
    eventually("all of them run", async || {
        let info = counts(&daemon, Some(&a)).await;
        info == (20, 0)
    })
    .await;
    for key in [&a, &b] {
        promptly("others pass", daemon.run(with_key(key, shell("true")))).await;
    }
    let_go(&daemon, "go");
    for call in long {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn whose_deadline_comes_before_his_turn_is_told_that_nothing_was_done() {
    let daemon = of_one_user("concurrent_calls = 1\n").await;
    let blocker = daemon.begin(until("go"));
    settled(&daemon, None, (1, 0)).await;
    let without_an_id = || tonic::Request::new(shell("touch ran"));
    let with_an_id = || crate::support::with("jig-request-id", "id", shell("touch ran"));
    for has_id in [false, true] {
        let late = || {
            let mut late = if has_id { with_an_id() } else { without_an_id() };
            late.set_timeout(Duration::from_secs(2));
            late
        };
        let refusal = in_vain(&daemon, late).await;
        assert_eq!(refusal.reason, "TIMEOUT");
        assert!(refusal.message.contains("not started"), "{refusal:?}");
        assert!(refusal.retry_after.is_some());
        // Nor does it wait any more.
        assert_eq!(counts(&daemon, None).await, (1, 0));
    }
    // As long as somebody else waits for the same, it does.
    let patient = daemon.begin(with_an_id());
    settled(&daemon, None, (1, 1)).await;
    let mut hurried = with_an_id();
    hurried.set_timeout(Duration::from_secs(1));
    let late = daemon.try_run(hurried).await.unwrap_err();
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&late.code()));
    assert!(!daemon.file("ran").exists());
    let_go(&daemon, "go");
    blocker.await.unwrap().unwrap();
    let answer = promptly("it is done", patient).await.unwrap().unwrap();
    assert_eq!(answer.exit_code, Some(0));
    assert!(daemon.file("ran").exists());
}

#[tokio::test]
async fn calls_that_wait_hold_a_bounded_number_of_bytes() {
    let keys = Arc::new(KeyFile::new());
    let one = keys.add("one", "invoke", &["--concurrent-calls", "1"]);
    let other = keys.add("other", "invoke", &["--concurrent-calls", "1"]);
    let daemon = limited("queue_timeout = \"10m\"\n", &keys).await;
    let blockers = [&one, &other].map(|key| daemon.begin(with_key(key, until("go"))));
    settled(&daemon, Some(&one), (2, 0)).await;
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
    // 64 MiB of one caller, less what is around them.
    let mut calls = Vec::new();
    for number in 0..7 {
        calls.push(large(&one, number));
        settled(&daemon, Some(&one), (2, u32::try_from(number).unwrap() + 1)).await;
    }
    let refused = promptly("it is refused", large(&one, 7)).await.unwrap();
    let refusal = Refusal::of(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.message.contains("no room"), "{refusal:?}");
    assert!(refusal.retry_after.is_some());
    // There is room for others, and for what is small.
    calls.push(large(&other, 8));
    settled(&daemon, Some(&one), (2, 8)).await;
    let small = daemon.begin(with_key(&one, shell("true")));
    settled(&daemon, Some(&one), (2, 9)).await;
    let_go(&daemon, "go");
    for call in calls {
        promptly("it is done", call).await.unwrap().unwrap();
    }
    for call in blockers.into_iter().chain([small]) {
        promptly("it ends", call).await.unwrap().unwrap();
    }
    assert!(!daemon.file("file-7").exists());
}

#[tokio::test]
async fn who_comes_again_when_he_is_told_to_finds_room() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add("a", "invoke", &[]);
    let daemon = Arc::new(limited("concurrent_calls = 1\nqueued_calls = 2\n", &keys).await);
    let clients = (0..12).map(|_| {
        let (daemon, key) = (Arc::clone(&daemon), key.clone());
        tokio::spawn(async move {
            let mut refused = 0;
            for _ in 0..6 {
                while let Err(status) = daemon.try_run(with_key(&key, shell("sleep 0.1"))).await {
                    let refusal = Refusal::of(&status);
                    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
                    refused += 1;
                    // What is told is what is looked at.
                    tokio::time::sleep(refusal.retry_after.unwrap()).await;
                }
            }
            refused
        })
    });
    let mut refused = 0;
    for client in clients.collect::<Vec<_>>() {
        refused += promptly("it gets through", client).await.unwrap();
    }
    // Of 72 calls each is refused when it comes first, or so; few are a second time.
    assert!(refused <= 2 * 72, "{refused}");
}
