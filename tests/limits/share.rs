//! The share of the CPUs that commands have, which is less than the daemon's.

use std::fs;

use rustix::process::{Pid, getpriority_process};

use super::layer;
use crate::support::{Daemon, Mark, Setup, USER, descendants, eventually, shell};

/// How much nicer a command is.
const NICER: i32 = 10;

fn nice(pid: i32) -> i32 {
    getpriority_process(Pid::from_raw(pid)).unwrap()
}

fn name(pid: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok()
}

/// Where the kernel tells the share of a process's session; nothing where sessions have none.
fn share_of_session(pid: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/autogroup")).ok()
}

async fn commands_have_less(daemon: &Daemon) {
    let own = nice(daemon.pid());
    let expected = (own + NICER).min(19);
    let mark = Mark::new();
    let script = "renice -n 0 $$; nice -n -5 true; nice; exec sleep 1000";
    let run = daemon.begin(mark.on(shell(script)));
    let mut command = 0;
    eventually("it sleeps", async || {
        let mut processes = mark.processes().into_iter();
        let sleeps = |pid: &i32| name(*pid).is_some_and(|name| name == "sleep\n");
        command = processes.find(sleeps).unwrap_or_default();
        command != 0
    })
    .await;
    eventually("it has less", async || {
        let session = share_of_session(command);
        let ends = format!(" nice {NICER}\n");
        nice(command) == expected && session.is_none_or(|text| text.ends_with(&ends))
    })
    .await;
    assert_eq!(nice(daemon.pid()), own);
    if let Some(session) = share_of_session(daemon.pid()) {
        assert!(!session.ends_with(&format!(" nice {NICER}\n")), "{session}");
    }
    run.abort();
    mark.vanishes().await;
    // Those who make sandboxes keep what they have.
    for process in descendants(daemon.pid()) {
        let name = name(process.pid).unwrap_or_default();
        if ["jig-slot\n", "jig-template\n"].contains(&name.as_str()) {
            assert_eq!(nice(process.pid), own, "{process:?}");
        }
    }
}

#[tokio::test]
async fn commands_have_less_than_the_daemon() {
    let daemon = Setup::new().start().await;
    commands_have_less(&daemon).await;
    let told = layer(&daemon, "cpu_share").await;
    assert!(told.applied && told.detail.contains("nice +10"), "{told:?}");
}

#[tokio::test]
async fn commands_of_an_ordinary_users_daemon_have_less() {
    // The kernel lets few sessions' shares be changed by who is not root.
    commands_have_less(&Setup::new().user(USER).alone().start().await).await;
}

#[tokio::test]
async fn commands_in_the_daemons_namespaces_have_less() {
    commands_have_less(&Setup::new().at_l1().start().await).await;
}

#[tokio::test]
async fn commands_of_a_daemon_that_has_the_least_have_no_less() {
    commands_have_less(&Setup::new().under(["nice", "-n", "15"]).start().await).await;
}
