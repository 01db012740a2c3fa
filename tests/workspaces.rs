//! Several workspaces of one daemon: whatever happens meanwhile, none is taken for another.

use std::fs;

use jig::api::v1::RunRequest;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tonic::Request;

use crate::support::{
    Daemon, Refusal, Setup, descendants, eventually, host_status, is_alive, promptly, shell, with,
};

/// How many seconds the daemon waits for a slot at most (`BUILD_PATIENCE` of
/// `daemon/sandbox/pool.rs`), and some more.
const GIVES_UP_WITHIN_SEC: u32 = 40;

/// A command in one of the two workspaces.
fn in_workspace(name: &str, timeout_sec: u32, command: &str) -> Request<RunRequest> {
    let timeout_sec = Some(timeout_sec);
    let request = RunRequest {
        timeout_sec,
        ..shell(command)
    };
    with("jig-workspace", name, request)
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// The daemon's process of this name.
fn process(daemon: &Daemon, name: &str) -> i32 {
    let processes = descendants(daemon.pid());
    let mut pids = processes.iter().map(|process| process.pid);
    let found = pids.find(|pid| host_status(*pid, "Name").as_deref() == Some(name));
    found.expect("it runs")
}

#[tokio::test]
async fn an_answer_that_nobody_waits_for_any_more_is_not_taken_for_another_workspaces() {
    let other = TempDir::with_prefix("jig-test-other-").unwrap();
    fs::write(other.path().join("who"), "other").unwrap();
    let named = format!("other={}", other.path().display());
    let daemon = Setup::new()
        .arguments(&["--workspace", &named])
        .start()
        .await;
    fs::write(daemon.file("who"), "first").unwrap();
    // Without their templates both workspaces need the keeper, which does not answer.
    let keeper = process(&daemon, "jig-keeper");
    let below = descendants(keeper);
    send(keeper, Signal::STOP);
    send(process(&daemon, "jig-launcher"), Signal::KILL);
    eventually("launcher, templates and slots are gone", async || {
        !below.iter().any(is_alive)
    })
    .await;
    let status = daemon
        .try_run(in_workspace("workspace", 1, "cat who"))
        .await
        .unwrap_err();
    assert_eq!(Refusal::of(&status).reason, "RESOURCE_EXHAUSTED");
    // This one waits until the daemon itself has given up.
    let status = daemon
        .try_run(in_workspace("workspace", GIVES_UP_WITHIN_SEC, "cat who"))
        .await
        .unwrap_err();
    assert_eq!(Refusal::of(&status).reason, "SANDBOX_ERROR", "{status:?}");
    let of_other = daemon.begin(in_workspace("other", 20, "cat who"));
    eventually("its old sandboxes are found dead", async || {
        daemon.info().await.counts.unwrap().sandboxes_warm == 0
    })
    .await;
    send(keeper, Signal::CONT);
    let response = promptly("the other workspace's call", of_other).await;
    assert_eq!(response.unwrap().unwrap().stdout, "other");
    for (name, who) in [("workspace", "first"), ("other", "other")] {
        for _ in 0..4 {
            assert_eq!(daemon.output(in_workspace(name, 20, "cat who")).await, who);
        }
    }
}
