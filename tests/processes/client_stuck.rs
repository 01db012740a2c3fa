//! A daemon that does not answer, or has no room: whoever waits for it can leave at any time, and finds
//! the terminal as it was.

use std::io::{BufRead as _, BufReader};

use jig::api::v1::ProcessState;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    command_line::{jig, signal},
    person::Person,
};
use crate::support::{Daemon, Setup, eventually, shell, started};

const SHELL: [&str; 5] = ["exec", "-it", "--", "bash", "--norc"];

fn send(person: &Person, signal: Signal) {
    let pid = i32::try_from(person.jig.id()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn a_daemon_that_hangs_before_the_start_is_left() {
    let daemon = Daemon::start().await;
    daemon.signal(Signal::STOP);
    for keys in ["\x03", "~.", "ls\r~."] {
        let mut person = Person::runs(&daemon, &SHELL);
        person.hands_over(true).await;
        person.types(keys);
        assert_eq!(person.ends().await, Some(130), "{keys:?}");
    }
    for (sent, code) in
        [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)]
    {
        let mut person = Person::runs(&daemon, &SHELL);
        person.hands_over(true).await;
        send(&person, sent);
        assert_eq!(person.ends().await, Some(code));
    }
}

#[tokio::test]
async fn waiting_for_a_sandbox_is_given_up() {
    // As many as are made at the start.
    let setup = Setup::new().workspace_table("[limits]\nconcurrent_runs = 2");
    let daemon = setup.start().await;
    let _first = daemon.watch(started(shell("sleep 1000"))).await;
    let _second = daemon.watch(started(shell("sleep 1000"))).await;
    for keys in ["\x03", "~.", "ls\r\x03"] {
        let mut person = Person::runs(&daemon, &SHELL);
        person.hands_over(true).await;
        let waits = async || {
            let listed = daemon.list_processes().await;
            let last = listed.last().map(jig::api::v1::ProcessInfo::state);
            last == Some(ProcessState::Starting)
        };
        eventually("it waits", waits).await;
        person.types(keys);
        assert_eq!(person.ends().await, Some(130), "{keys:?}");
        let is_gone = async || !waits().await;
        eventually("it waits no more", is_gone).await;
    }
}

#[tokio::test]
async fn a_daemon_that_hangs_later_is_left() {
    let daemon = Daemon::start().await;
    let mut person = Person::runs(&daemon, &SHELL);
    person.types("echo be''gun\r");
    person.sees("begun\r\n").await;
    daemon.signal(Signal::STOP);
    person.types("x");
    // More than is read ahead of what is given.
    person.types(&"y".repeat(100));
    person.types("\r~.");
    assert_eq!(person.ends().await, Some(130));
    let told = person.screen();
    assert!(told.contains("left; the command ends when the daemon notices"), "{told}");
}

#[tokio::test]
async fn without_a_terminal_signals_are_minded_however_long_the_daemon_hangs() {
    let daemon = Daemon::start().await;
    for (sent, code) in
        [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)]
    {
        let mut child = jig(&daemon.socket(), &["exec", "echo ready; sleep 1000"]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        daemon.signal(Signal::STOP);
        let mut status = None;
        eventually("jig ends", async || {
            status = child.try_wait().unwrap();
            if status.is_none() {
                // Two interrupts that come at once may be minded as one.
                signal(&child, sent);
            }
            status.is_some()
        })
        .await;
        assert_eq!(status.unwrap().code(), Some(code));
        daemon.signal(Signal::CONT);
    }
}

#[tokio::test]
async fn who_was_told_to_outlive_the_terminal_does() {
    let daemon = Daemon::start().await;
    let waits = "echo ready; while ! test -e go; do sleep 0.05; done; exit 3";
    let mut child = std::process::Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\""])
        .args([env!("CARGO_BIN_EXE_jig"), "exec", waits])
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    signal(&child, Signal::HUP);
    std::fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
}
