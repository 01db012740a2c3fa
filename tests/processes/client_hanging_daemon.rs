//! A daemon that hangs or has no free sandbox. The user can leave `jig` at any time, and the
//! terminal returns to its previous mode.

use std::io::{BufRead as _, BufReader};

use jig::api::v1::ProcessState;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    command_line::{jig_command, signal_jig},
    terminal_user::TerminalUser,
};
use crate::support::{Daemon, Setup, eventually, shell, start_request};

const SHELL_ARGUMENTS: [&str; 5] = ["exec", "-it", "--", "bash", "--norc"];

fn send_signal(user: &TerminalUser, signal: Signal) {
    let pid = i32::try_from(user.jig.id()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn user_can_leave_a_daemon_that_hangs_before_start() {
    let daemon = Daemon::start().await;
    daemon.signal(Signal::STOP);

    for keys in ["\x03", "~.", "ls\r~."] {
        let mut user = TerminalUser::run_jig(&daemon, &SHELL_ARGUMENTS);
        user.wait_for_raw_mode(true).await;
        user.type_keys(keys);
        assert_eq!(user.wait_for_exit().await, Some(130), "{keys:?}");
    }

    for (signal, code) in
        [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)]
    {
        let mut user = TerminalUser::run_jig(&daemon, &SHELL_ARGUMENTS);
        user.wait_for_raw_mode(true).await;
        send_signal(&user, signal);
        assert_eq!(user.wait_for_exit().await, Some(code));
    }
}

#[tokio::test]
async fn leaving_cancels_the_wait_for_a_sandbox() {
    // As many as the daemon starts with.
    let setup = Setup::new().workspace_table("[limits]\nconcurrent_runs = 2");
    let daemon = setup.start().await;
    let _first = daemon.start_process(start_request(shell("sleep 1000"))).await;
    let _second = daemon.start_process(start_request(shell("sleep 1000"))).await;

    for keys in ["\x03", "~.", "ls\r\x03"] {
        let mut user = TerminalUser::run_jig(&daemon, &SHELL_ARGUMENTS);
        user.wait_for_raw_mode(true).await;
        let is_waiting = async || {
            let processes = daemon.list_processes().await;
            let last = processes.last().map(jig::api::v1::ProcessInfo::state);
            last == Some(ProcessState::Starting)
        };
        eventually("the process waits for a sandbox", is_waiting).await;
        user.type_keys(keys);
        assert_eq!(user.wait_for_exit().await, Some(130), "{keys:?}");

        let has_left = async || !is_waiting().await;
        eventually("the process no longer waits", has_left).await;
    }
}

#[tokio::test]
async fn user_can_leave_a_daemon_that_hangs_after_start() {
    let daemon = Daemon::start().await;
    let mut user = TerminalUser::run_jig(&daemon, &SHELL_ARGUMENTS);
    user.type_keys("echo be''gun\r");
    user.wait_for_text("begun\r\n").await;
    daemon.signal(Signal::STOP);
    user.type_keys("x");

    // More keys than jig reads ahead of the daemon's confirmation.
    user.type_keys(&"y".repeat(100));
    user.type_keys("\r~.");
    user.wait_for_text("detached; the command ends when the daemon notices").await;
    assert_eq!(user.wait_for_exit().await, Some(130));
}

#[tokio::test]
async fn signals_end_jig_while_the_daemon_hangs() {
    let daemon = Daemon::start().await;
    for (signal, code) in
        [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)]
    {
        let mut child =
            jig_command(&daemon.socket(), &["exec", "echo ready; sleep 1000"]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");

        daemon.signal(Signal::STOP);
        let mut status = None;
        eventually("jig exits", async || {
            status = child.try_wait().unwrap();
            if status.is_none() {
                // jig may handle two signals that arrive together as one.
                signal_jig(&child, signal);
            }
            status.is_some()
        })
        .await;
        assert_eq!(status.unwrap().code(), Some(code));

        daemon.signal(Signal::CONT);
    }
}

#[tokio::test]
async fn jig_started_with_sighup_ignored_survives_sighup() {
    let daemon = Daemon::start().await;
    let script = "echo ready; while ! test -e go; do sleep 0.05; done; exit 3";
    let mut child = std::process::Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\""])
        .args([env!("CARGO_BIN_EXE_jig"), "exec", script])
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();

    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");

    signal_jig(&child, Signal::HUP);
    std::fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
}
