//! Several workspaces of one daemon: none is ever mistaken for another.

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

/// Somewhat longer than the daemon waits for a slot (`BUILD_TIMEOUT` of
/// `daemon/sandbox/pool/build.rs`).
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

/// The pid of the daemon's process of this name.
fn process_id(daemon: &Daemon, name: &str) -> i32 {
    let processes = descendants(daemon.pid());
    let mut pids = processes.iter().map(|process| process.pid);
    let found = pids.find(|pid| status_field(*pid, "Name").as_deref() == Some(name));
    found.expect("the process does not run")
}

#[tokio::test]
async fn late_keeper_reply_is_not_used_for_another_workspace() {
    let other_directory = TempDir::with_prefix("jig-test-other-").unwrap();
    fs::write(other_directory.path().join("who"), "other").unwrap();
    let named = format!("other={}", other_directory.path().display());
    let daemon = Setup::new().arguments(&["--workspace", &named]).start().await;
    fs::write(daemon.file("who"), "first").unwrap();

    // Without their templates, both workspaces need the keeper, which is stopped.
    let keeper = process_id(&daemon, "jig-keeper");
    let keeper_descendants = descendants(keeper);
    send_signal(keeper, Signal::STOP);
    send_signal(process_id(&daemon, "jig-launcher"), Signal::KILL);
    eventually("launcher, templates and slots have exited", async || {
        !keeper_descendants.iter().any(is_alive)
    })
    .await;

    let status = daemon.try_run(in_workspace("workspace", 1, "cat who")).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "RESOURCE_EXHAUSTED");

    // This call waits until the daemon gives up.
    let status =
        daemon.try_run(in_workspace("workspace", SLOT_TIMEOUT_SEC, "cat who")).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "SANDBOX_ERROR", "{status:?}");

    let other_run = daemon.spawn_run(in_workspace("other", 20, "cat who"));
    eventually("the daemon has dropped its dead sandboxes", async || {
        daemon.info().await.counts.unwrap().sandboxes_idle == 0
    })
    .await;

    send_signal(keeper, Signal::CONT);
    let response = promptly("the call in the other workspace ends", other_run).await;
    assert_eq!(response.unwrap().unwrap().stdout, "other");

    for (name, content) in [("workspace", "first"), ("other", "other")] {
        for _ in 0..4 {
            assert_eq!(daemon.output(in_workspace(name, 20, "cat who")).await, content);
        }
    }
}

/// The file systems that a run may write to: device and directory of each writable mount that is
/// neither a device nor covered by another.
fn writable_mounts(mountinfo: &str) -> BTreeSet<String> {
    let mut mounts_by_point = BTreeMap::new();
    for line in mountinfo.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, _, device, root, mount_point, options, ..] = fields.as_slice() else {
            panic!("{line}");
        };
        let is_writable = options.split(',').any(|option| option == "rw");
        let is_device = mount_point.starts_with("/dev/") && options.contains("noexec");

        // Masks in /proc are devices too.
        let is_mask = mount_point.starts_with("/proc/");
        if is_writable && !(is_device && *mount_point != "/dev/pts") && !is_mask {
            mounts_by_point.insert(*mount_point, format!("{device} {root}"));
        }
    }
    mounts_by_point.into_values().collect()
}

#[tokio::test]
async fn concurrent_runs_share_only_their_workspace() {
    for (setup, level) in [(Setup::new(), "L3"), (Setup::new().at_l2(), "L2")] {
        let other_directory = TempDir::with_prefix("jig-test-other-").unwrap();
        let named = format!("other={}", other_directory.path().display());
        let daemon = setup.arguments(&["--workspace", &named]).start().await;
        compile_in_workspace(&daemon, "carry_over");
        fs::copy(daemon.file("carry_over"), other_directory.path().join("carry_over")).unwrap();

        // The first run uses everything that a run can use, and keeps running.
        let mark = Mark::new();
        let first = daemon.spawn_run(mark.on(shell(
            "cat /proc/self/mountinfo > mounts; ./carry_over leave; touch ready; sleep 1000",
        )));
        eventually("the first run has left its traces", async || daemon.file("ready").exists())
            .await;

        let mounts = writable_mounts(&fs::read_to_string(daemon.file("mounts")).unwrap());
        assert!(mounts.len() >= 4, "{mounts:?}");

        for (workspace, shared) in [("workspace", 1), ("other", 0)] {
            let run = daemon.try_run(in_workspace(workspace, 60, "exec ./carry_over find"));
            let response = run.await.unwrap();
            assert_eq!(response.isolation, level);
            check_no_leftovers(&response);

            let request = in_workspace(workspace, 60, "cat /proc/self/mountinfo");
            let run_mounts = writable_mounts(&daemon.try_run(request).await.unwrap().stdout);
            assert_eq!(run_mounts.len(), mounts.len(), "{run_mounts:?}");

            let common: Vec<_> = run_mounts.intersection(&mounts).collect();
            assert_eq!(common.len(), shared, "{workspace} at {level}: {common:?}");
        }

        assert!(!first.is_finished(), "the first run ran all the time");

        first.abort();
        mark.wait_until_gone().await;
    }
}
