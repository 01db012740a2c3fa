//! `jig run` prints what its command writes: all of it, as it comes, to whatever standard output is.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Daemon, Setup, eventually, minds_signals};

/// Lines of `seq`, and their bytes: more than an answer holds, and than a daemon keeps in memory.
const LINES: usize = 300_000;

fn sequence() -> String {
    (1..=LINES).map(|line| format!("{line}\n")).collect()
}

/// `jig run` with a daemon elsewhere, or without one with one of its own.
fn command(daemon: Option<&Daemon>, here: &Path, arguments: &[&str]) -> Command {
    let mut command = minds_signals(env!("CARGO_BIN_EXE_jig"));
    command
        .arg("run")
        .args(arguments)
        .current_dir(here)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(daemon) = daemon {
        command.env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()));
    }
    command
}

fn exits(mut command: Command, code: i32) -> Output {
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr[..output.stderr.len().min(4096)]);
    assert_eq!(output.status.code(), Some(code), "{told}");
    output
}

async fn ends(child: &mut Child) -> Option<i32> {
    let mut status = None;
    eventually("jig ends", async || {
        status = child.try_wait().unwrap();
        status.is_some()
    })
    .await;
    status.unwrap().code()
}

#[tokio::test]
async fn every_byte_arrives_in_a_pipe_and_in_a_file() {
    // Less than the command writes is kept of it.
    let setup = Setup::new().workspace_table("[limits]\nartifact_bytes = 65536");
    let daemon = setup.start().await;
    let own = tempfile::tempdir().unwrap();
    let beside = tempfile::tempdir().unwrap();
    let sequence = sequence();
    for (daemon, here) in [(Some(&daemon), Path::new("/")), (None, own.path())] {
        let line = format!("seq {LINES} & seq {LINES} >&2; wait; exit 7");
        let output = exits(command(daemon, here, &[&line]), 7);
        assert!(output.stdout == sequence.as_bytes(), "{}", output.stdout.len());
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(&sequence), "{}", told.len());

        let file = beside.path().join("seq.out");
        let mut to_file = command(daemon, here, &[&format!("seq {LINES}")]);
        to_file.stdout(File::create(&file).unwrap());
        exits(to_file, 0);
        assert!(fs::read(&file).unwrap() == sequence.as_bytes());
        fs::remove_file(file).unwrap();

        // As they are, also where they are no text.
        let output = exits(command(daemon, here, &["--", "printf", r"a\377\000b"]), 0);
        assert_eq!(output.stdout, b"a\xff\0b");
        // An answer for programs stays one.
        let output = exits(command(daemon, here, &["--json", "echo a"]), 0);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["stdout"], "a\n");
        // And what is to be cut is cut, which is told.
        let output = exits(command(daemon, here, &["--max-output", "100", "seq 1000"]), 0);
        assert!(output.stdout.len() < 300 && !output.stderr.is_empty());
    }
}

#[tokio::test]
async fn output_comes_while_the_command_runs_and_waits_for_its_reader() {
    let daemon = Daemon::start().await;
    let line = "echo first; while [ ! -e go ]; do sleep 0.05; done; seq 300000";
    let mut child = command(Some(&daemon), Path::new("/"), &[line]).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    assert_eq!(first, "first\n");
    fs::write(daemon.file("go"), "").unwrap();
    // Nobody reads for now: the command waits when it writes, and nothing is lost.
    let mut written = 0;
    eventually("the pipe is full", async || {
        let before = written;
        written = bytes_in(&reader);
        written > 0 && written == before
    })
    .await;
    assert!(child.try_wait().unwrap().is_none());
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert!(rest == sequence());
    assert_eq!(ends(&mut child).await, Some(0));
}

/// Bytes that wait in a pipe.
fn bytes_in(reader: &BufReader<impl std::os::fd::AsFd>) -> u64 {
    rustix::io::ioctl_fionread(reader.get_ref()).unwrap()
}

#[tokio::test]
async fn a_reader_that_leaves_and_an_interrupt_end_the_command() {
    let daemon = Daemon::start().await;
    let own = tempfile::tempdir().unwrap();
    for (to, here) in [(Some(&daemon), Path::new("/")), (None, own.path())] {
        let mut child = command(to, here, &["exec yes"]).spawn().unwrap();
        let mut first = [0; 2];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut first).unwrap();
        drop(stdout);
        assert_eq!(ends(&mut child).await, Some(141));

        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let line = "trap '' INT TERM; echo up; sleep 1000 & wait; wait";
            let mut child = command(to, here, &[line]).spawn().unwrap();
            let mut stdout = BufReader::new(child.stdout.take().unwrap());
            stdout.read_line(&mut String::new()).unwrap();
            kill_process(Pid::from_child(&child), signal).unwrap();
            assert_eq!(ends(&mut child).await, Some(code), "{signal:?}");
        }
        let output = exits(command(to, here, &["--timeout", "1", "sleep 1000"]), 124);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("timed out"), "{told}");
    }
    eventually("nothing of it is left", async || {
        daemon.info().await.counts.unwrap().runs_active == 0
    })
    .await;
}

#[tokio::test]
async fn a_repeated_run_is_done_once_and_answers_all_of_it_again() {
    let mut daemon = Setup::new().start().await;
    let line = format!("echo ran >> times; seq {LINES}; printf '\\377' >&2");
    let sequence = sequence();
    for turn in 0..3 {
        let arguments = ["--request-id", "once", &line];
        let output = exits(command(Some(&daemon), Path::new("/"), &arguments), 0);
        assert!(output.stdout == sequence.as_bytes(), "{}", output.stdout.len());
        assert_eq!(output.stderr, b"\xff");
        if turn == 1 {
            daemon = daemon.restart().await;
        }
    }
    assert_eq!(fs::read_to_string(daemon.file("times")).unwrap(), "ran\n");
}

#[tokio::test]
async fn what_was_not_kept_of_a_repeatable_run_is_no_success() {
    let setup = Setup::new().workspace_table("[limits]\nartifact_bytes = 65536");
    let daemon = setup.start().await;
    let arguments = ["--request-id", "once", "seq 300000"];
    let output = exits(command(Some(&daemon), Path::new("/"), &arguments), 125);
    assert_eq!(output.stdout.len(), 65536);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("only 65536 of "), "{told}");
}
