//! `jig run` prints the output of its command completely and live, whatever standard output is.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Daemon, Setup, command_with_default_signals, eventually};

/// Lines of `seq`: more bytes than a response holds and a daemon keeps in memory.
const LINE_COUNT: usize = 300_000;

fn sequence() -> String {
    (1..=LINE_COUNT).map(|line| format!("{line}\n")).collect()
}

/// The command `jig run`, with a running daemon or with an embedded one.
fn jig_run_command(daemon: Option<&Daemon>, here: &Path, arguments: &[&str]) -> Command {
    let mut command = command_with_default_signals(env!("CARGO_BIN_EXE_jig"));
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

fn run_expecting_exit(mut command: Command, code: i32) -> Output {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr[..output.stderr.len().min(4096)]);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    output
}

async fn wait_for_exit_code(child: &mut Child) -> Option<i32> {
    let mut status = None;
    eventually("jig exits", async || {
        status = child.try_wait().unwrap();
        status.is_some()
    })
    .await;
    status.unwrap().code()
}

#[tokio::test]
async fn every_byte_arrives_in_a_pipe_and_in_a_file() {
    // Artifacts are limited to less than the output.
    let setup = Setup::new().workspace_table("[limits]\nartifact_bytes = 65536");
    let daemon = setup.start().await;
    let empty_directory = tempfile::tempdir().unwrap();
    let beside = tempfile::tempdir().unwrap();

    let sequence = sequence();
    for (daemon, here) in [(Some(&daemon), Path::new("/")), (None, empty_directory.path())] {
        let line = format!("seq {LINE_COUNT} & seq {LINE_COUNT} >&2; wait; exit 7");
        let output = run_expecting_exit(jig_run_command(daemon, here, &[&line]), 7);
        assert!(output.stdout == sequence.as_bytes(), "{}", output.stdout.len());

        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(&sequence), "{}", stderr.len());

        let file = beside.path().join("seq.out");
        let mut to_file = jig_run_command(daemon, here, &[&format!("seq {LINE_COUNT}")]);
        to_file.stdout(File::create(&file).unwrap());
        run_expecting_exit(to_file, 0);

        assert!(fs::read(&file).unwrap() == sequence.as_bytes());

        fs::remove_file(file).unwrap();

        // Bytes that are not text are unchanged.
        let output =
            run_expecting_exit(jig_run_command(daemon, here, &["--", "printf", r"a\377\000b"]), 0);
        assert_eq!(output.stdout, b"a\xff\0b");

        // JSON output is not mixed with the stream.
        let output = run_expecting_exit(jig_run_command(daemon, here, &["--json", "echo a"]), 0);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["stdout"], "a\n");

        // With --max-output, the output is truncated with a note.
        let output = run_expecting_exit(
            jig_run_command(daemon, here, &["--max-output", "100", "seq 1000"]),
            0,
        );
        assert!(output.stdout.len() < 300 && !output.stderr.is_empty());
    }
}

#[tokio::test]
async fn output_streams_live_with_backpressure() {
    let daemon = Daemon::start().await;

    let line = "echo first; while [ ! -e go ]; do sleep 0.05; done; seq 300000";
    let mut child = jig_run_command(Some(&daemon), Path::new("/"), &[line]).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();

    assert_eq!(first, "first\n");

    fs::write(daemon.file("go"), "").unwrap();

    // While the test does not read, the command blocks in its writes, and nothing is lost.
    let mut written = 0;
    eventually("the pipe is full", async || {
        let before = written;
        written = pipe_bytes(&reader);
        written > 0 && written == before
    })
    .await;
    assert!(child.try_wait().unwrap().is_none());

    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert!(rest == sequence());
    assert_eq!(wait_for_exit_code(&mut child).await, Some(0));
}

/// Bytes buffered in a pipe.
fn pipe_bytes(reader: &BufReader<impl std::os::fd::AsFd>) -> u64 {
    rustix::io::ioctl_fionread(reader.get_ref()).unwrap()
}

#[tokio::test]
async fn closed_pipe_and_signals_end_the_command() {
    let daemon = Daemon::start().await;
    let empty_directory = tempfile::tempdir().unwrap();
    for (to, here) in [(Some(&daemon), Path::new("/")), (None, empty_directory.path())] {
        let mut child = jig_run_command(to, here, &["exec yes"]).spawn().unwrap();
        let mut first = [0; 2];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut first).unwrap();

        drop(stdout);
        assert_eq!(wait_for_exit_code(&mut child).await, Some(141));

        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let line = "trap '' INT TERM; echo up; sleep 1000 & wait; wait";
            let mut child = jig_run_command(to, here, &[line]).spawn().unwrap();
            let mut stdout = BufReader::new(child.stdout.take().unwrap());
            stdout.read_line(&mut String::new()).unwrap();
            kill_process(Pid::from_child(&child), signal).unwrap();
            assert_eq!(wait_for_exit_code(&mut child).await, Some(code), "{signal:?}");
        }

        let output =
            run_expecting_exit(jig_run_command(to, here, &["--timeout", "1", "sleep 1000"]), 124);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("timed out"), "{stderr}");
    }

    eventually("no run is active", async || daemon.info().await.counts.unwrap().runs_active == 0)
        .await;
}

#[tokio::test]
async fn repeated_run_executes_once_and_replays_all_output() {
    let mut daemon = Setup::new().start().await;
    let line = format!("echo ran >> times; seq {LINE_COUNT}; printf '\\377' >&2");
    let sequence = sequence();

    for round in 0..3 {
        let arguments = ["--request-id", "once", &line];
        let output =
            run_expecting_exit(jig_run_command(Some(&daemon), Path::new("/"), &arguments), 0);
        assert!(output.stdout == sequence.as_bytes(), "{}", output.stdout.len());
        assert_eq!(output.stderr, b"\xff");
        if round == 1 {
            daemon = daemon.restart().await;
        }
    }

    assert_eq!(fs::read_to_string(daemon.file("times")).unwrap(), "ran\n");
}

#[tokio::test]
async fn run_with_truncated_replay_fails() {
    let setup = Setup::new().workspace_table("[limits]\nartifact_bytes = 65536");
    let daemon = setup.start().await;
    let arguments = ["--request-id", "once", "seq 300000"];
    let output =
        run_expecting_exit(jig_run_command(Some(&daemon), Path::new("/"), &arguments), 125);
    assert_eq!(output.stdout.len(), 65536);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("only 65536 of "), "{stderr}");
}
