//! The CPU share of commands, which is less than the daemon's.

use std::fs;

use rustix::process::{Pid, getpriority_process};

use super::isolation_layer;
use crate::support::{
    DAEMON_UID, Daemon, Mark, Setup, descendants, eventually, find_descendant, shell,
};

/// What the daemon adds to the nice value of a command.
const NICE_INCREMENT: i32 = 10;
/// The nice value of a command that runs long.
const LONG_RUN_NICE: i32 = 19;

fn nice_value(pid: i32) -> i32 {
    getpriority_process(Pid::from_raw(pid)).unwrap()
}

fn process_name(pid: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok()
}

/// The autogroup of a process's session with its nice value. `None` on a kernel without autogroups.
fn autogroup_of(pid: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/autogroup")).ok()
}

async fn check_commands_have_lower_priority(daemon: &Daemon) {
    let daemon_nice = nice_value(daemon.pid());
    let expected = (daemon_nice + NICE_INCREMENT).min(LONG_RUN_NICE);
    // On a loaded machine, a short command can run long.
    eventually("a command has a lower priority", async || {
        daemon.output(shell("nice")).await == format!("{expected}\n")
    })
    .await;

    let mark = Mark::new();
    let script = "renice -n 0 $$; nice -n -5 true; nice; exec sleep 1000";
    let run = daemon.spawn_run(mark.on(shell(script)));
    let mut command = 0;
    eventually("the command sleeps", async || {
        let mut processes = mark.processes().into_iter();
        let sleeps = |pid: &i32| process_name(*pid).is_some_and(|name| name == "sleep\n");
        command = processes.find(sleeps).unwrap_or_default();
        command != 0
    })
    .await;

    eventually("the long command has the least priority", async || {
        nice_value(command) == LONG_RUN_NICE
    })
    .await;
    check_session(daemon, command).await;
    assert_eq!(nice_value(daemon.pid()), daemon_nice);

    run.abort();
    mark.wait_until_gone().await;

    // The processes that make sandboxes have the daemon's priority.
    for process in descendants(daemon.pid()) {
        let name = process_name(process.pid).unwrap_or_default();
        if ["jig-slot\n", "jig-template\n"].contains(&name.as_str()) {
            assert_eq!(nice_value(process.pid), daemon_nice, "{process:?}");
        }
    }
}

/// Checks that a command is in the session of its workspace, or in one with a lower share.
async fn check_session(daemon: &Daemon, command: i32) {
    let Some(daemon_session) = autogroup_of(daemon.pid()) else {
        return; // no shares of sessions on this kernel
    };
    let template =
        find_descendant(daemon.pid(), "jig-template").and_then(|it| autogroup_of(it.pid));
    eventually("the session has its share", async || match autogroup_of(command) {
        session if session == template => true,
        session => session.unwrap().ends_with(&format!(" nice {NICE_INCREMENT}\n")),
    })
    .await;
    assert!(!daemon_session.ends_with(&format!(" nice {NICE_INCREMENT}\n")), "{daemon_session}");
}

#[tokio::test]
async fn commands_have_lower_priority_than_the_daemon() {
    let daemon = Setup::new().start().await;
    check_commands_have_lower_priority(&daemon).await;
    let cpu_share = isolation_layer(&daemon, "cpu_share").await;
    assert!(cpu_share.applied && cpu_share.detail.contains("nice +10"), "{cpu_share:?}");
}

#[tokio::test]
async fn commands_of_an_unprivileged_daemon_have_lower_priority() {
    // The kernel limits how often a user other than root changes autogroups.
    check_commands_have_lower_priority(&Setup::new().user(DAEMON_UID).exclusive().start().await)
        .await;
}

#[tokio::test]
async fn commands_at_l1_have_lower_priority() {
    check_commands_have_lower_priority(&Setup::new().at_l1().start().await).await;
}

#[tokio::test]
async fn commands_of_a_nice_daemon_stay_at_nice_19() {
    check_commands_have_lower_priority(
        &Setup::new().wrapped_by(["nice", "-n", "15"]).start().await,
    )
    .await;
}
