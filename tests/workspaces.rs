//! Several workspaces of one daemon: whatever happens meanwhile, none is taken for another.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use jig::api::v1::RunRequest;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tonic::Request;

use crate::support::{
    Daemon, Mark, Refusal, Setup, check_no_leftovers, compile_in_workspace, descendants,
    eventually, is_alive, promptly, shell, status_field, with_metadata,
};

/// How many seconds the daemon waits for a slot at most (`BUILD_PATIENCE` of
/// `daemon/sandbox/pool/mod.rs`), and some more.
const SLOT_TIMEOUT_SEC: u32 = 40;

/// A command in one of the two workspaces.
fn in_workspace(name: &str, timeout_sec: u32, command: &str) -> Request<RunRequest> {
    let timeout_sec = Some(timeout_sec);
    let request = RunRequest { timeout_sec, ..shell(command) };
    with_metadata("jig-workspace", name, request)
}

fn send_signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// The daemon's process of this name.
fn process_id(daemon: &Daemon, name: &str) -> i32 {
    let processes = descendants(daemon.pid());
    let mut pids = processes.iter().map(|process| process.pid);
    let found = pids.find(|pid| status_field(*pid, "Name").as_deref() == Some(name));
    found.expect("it runs")
}

#[tokio::test]
async fn late_keeper_reply_is_not_used_for_another_workspace() {
    let other = TempDir::with_prefix("jig-test-other-").unwrap();
    fs::write(other.path().join("who"), "other").unwrap();
    let named = format!("other={}", other.path().display());
    let daemon = Setup::new().arguments(&["--workspace", &named]).start().await;
    fs::write(daemon.file("who"), "first").unwrap();
    // Without their templates both workspaces need the keeper, which does not answer.
    let keeper = process_id(&daemon, "jig-keeper");
    let below = descendants(keeper);
    send_signal(keeper, Signal::STOP);
    send_signal(process_id(&daemon, "jig-launcher"), Signal::KILL);
    eventually("launcher, templates and slots are gone", async || !below.iter().any(is_alive))
        .await;
    let status = daemon.try_run(in_workspace("workspace", 1, "cat who")).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "RESOURCE_EXHAUSTED");
    // This one waits until the daemon itself has given up.
    let status =
        daemon.try_run(in_workspace("workspace", SLOT_TIMEOUT_SEC, "cat who")).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "SANDBOX_ERROR", "{status:?}");
    let of_other = daemon.spawn_run(in_workspace("other", 20, "cat who"));
    eventually("its old sandboxes are found dead", async || {
        daemon.info().await.counts.unwrap().sandboxes_idle == 0
    })
    .await;
    send_signal(keeper, Signal::CONT);
    let response = promptly("the other workspace's call", of_other).await;
    assert_eq!(response.unwrap().unwrap().stdout, "other");
    for (name, who) in [("workspace", "first"), ("other", "other")] {
        for _ in 0..4 {
            assert_eq!(daemon.output(in_workspace(name, 20, "cat who")).await, who);
        }
    }
}

/// What a run may write to: device and directory in it, of each mount that is writable, not a device
/// and not covered by another.
fn writable_mounts(mountinfo: &str) -> BTreeSet<String> {
    let mut found = BTreeMap::new();
    for line in mountinfo.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, _, device, root, place, options, ..] = words.as_slice() else {
            panic!("{line}");
        };
        let is_writable = options.split(',').any(|option| option == "rw");
        let is_device = place.starts_with("/dev/") && options.contains("noexec");
        // Masks are devices, too.
        let is_mask = place.starts_with("/proc/");
        if is_writable && !(is_device && *place != "/dev/pts") && !is_mask {
            found.insert(*place, format!("{device} {root}"));
        }
    }
    found.into_values().collect()
}

#[tokio::test]
async fn concurrent_runs_share_only_their_workspace() {
    for (setup, level) in [(Setup::new(), "L3"), (Setup::new().at_l2(), "L2")] {
        let other = TempDir::with_prefix("jig-test-other-").unwrap();
        let named = format!("other={}", other.path().display());
        let daemon = setup.arguments(&["--workspace", &named]).start().await;
        compile_in_workspace(&daemon, "carry_over");
        fs::copy(daemon.file("carry_over"), other.path().join("carry_over")).unwrap();

        // It has all that a run can have, and keeps it.
        let mark = Mark::new();
        let first = daemon.spawn_run(mark.on(shell(
            "cat /proc/self/mountinfo > mounts; ./carry_over leave; touch ready; sleep 1000",
        )));
        eventually("it has left everything", async || daemon.file("ready").exists()).await;
        let mounts = writable_mounts(&fs::read_to_string(daemon.file("mounts")).unwrap());
        assert!(mounts.len() >= 4, "{mounts:?}");
        for (workspace, shared) in [("workspace", 1), ("other", 0)] {
            let tried = daemon.try_run(in_workspace(workspace, 60, "exec ./carry_over find"));
            let response = tried.await.unwrap();
            assert_eq!(response.isolation, level);
            check_no_leftovers(&response);
            let look = in_workspace(workspace, 60, "cat /proc/self/mountinfo");
            let own = writable_mounts(&daemon.try_run(look).await.unwrap().stdout);
            assert_eq!(own.len(), mounts.len(), "{own:?}");
            let common: Vec<_> = own.intersection(&mounts).collect();
            assert_eq!(common.len(), shared, "{workspace} at {level}: {common:?}");
        }
        assert!(!first.is_finished(), "it was there all the time");
        first.abort();
        mark.wait_until_gone().await;
    }
}
