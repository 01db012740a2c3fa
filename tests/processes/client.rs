//! `jig exec`, `attach`, `ps` and `kill` without a terminal.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::{PipeFlags, pipe_with},
    process::Signal,
};
use serde_json::Value;

use super::command_line::{jig_command, run_jig, signal_jig};
use crate::support::{Daemon, Mark, eventually, promptly};

#[tokio::test]
async fn exec_reproduces_output_and_exit_code() {
    let daemon = Daemon::start().await;
    for (arguments, input, expected) in [
        (&["exec", "echo out; echo err >&2; exit 7"][..], "", (7, "out\n", "err\n")),
        (&["exec", "--", "printf", "%s", "a b"], "", (0, "a b", "")),
        (&["exec", "cat"], "not given", (0, "", "")),
        (&["exec", "-i", "cat"], "given", (0, "given", "")),
        (&["exec", "-i", "--", "wc", "-c"], "12345", (0, "5\n", "")),
        (&["exec", "kill -9 $$"], "", (137, "", "")),
        (&["exec", "--timeout", "1", "sleep 1000"], "", (124, "", "jig: ended: timed out\n")),
        (&["exec", "--env", "A=b", "--cwd", ".", "echo $A $PWD"], "", (0, "b /workspace\n", "")),
    ] {
        let (code, out, err) = run_jig(&daemon, arguments, input).await;
        assert_eq!((code, out.as_str(), err.as_str()), expected, "{arguments:?}");
    }

    let (code, _, err) = run_jig(&daemon, &["exec", "--", "no_such_program"], "").await;
    assert_eq!(code, 125);
    assert!(err.starts_with("jig: COMMAND_NOT_FOUND: "), "{err}");

    let (code, _, err) = run_jig(&daemon, &["exec"], "").await;
    assert_eq!(code, 125);
    assert!(err.contains("no command given"), "{err}");
}

#[tokio::test]
async fn command_runs_once_per_request_id() {
    let daemon = Daemon::start().await;
    let exec = ["--request-id", "id", "exec", "-i", "echo ran >> runs; cat"];
    for _ in 0..2 {
        let (code, out, err) = run_jig(&daemon, &exec, "given").await;
        assert_eq!((code, out.as_str(), err.as_str()), (0, "given", ""));
    }

    let runs = std::fs::read_to_string(daemon.file("runs")).unwrap();
    assert_eq!(runs, "ran\n");
}

#[tokio::test]
async fn large_input_and_output_pass_unchanged() {
    let daemon = Daemon::start().await;
    let input = "0123456789abcde\n".repeat(1 << 18);
    let (code, out, _) = run_jig(&daemon, &["exec", "-i", "cat"], &input).await;
    assert_eq!(code, 0);
    assert!(out == input, "{} bytes", out.len());
}

#[tokio::test]
async fn first_interrupt_reaches_the_command_and_second_ends_it() {
    let daemon = Daemon::start().await;
    let script = "trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done";
    let mark = Mark::new();
    let variable = mark.variable();
    let mut child =
        jig_command(&daemon.socket(), &["exec", "--env", &variable, script]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");

    signal_jig(&child, Signal::INT);
    assert_eq!(lines.next().unwrap().unwrap(), "caught");

    signal_jig(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));

    mark.wait_until_gone().await;
}

#[tokio::test]
async fn detached_process_is_listed_attached_and_killed() {
    let daemon = Daemon::start().await;
    let script = "echo one; while ! test -e go; do sleep 0.05; done; echo two; exit 5";
    let (code, id, err) = run_jig(&daemon, &["exec", "-d", script], "").await;
    assert_eq!((code, err.as_str()), (0, ""));

    let id = id.trim();
    let (_, list, _) = run_jig(&daemon, &["ps"], "").await;
    let mut lines = list.lines();
    assert!(lines.next().unwrap().starts_with("PROCESS"), "{list}");

    let line = lines.next().unwrap();
    assert!(line.starts_with(id) && line.contains("running, detached"), "{list}");

    std::fs::write(daemon.file("go"), "").unwrap();
    let (code, out, _) = run_jig(&daemon, &["attach", id], "").await;
    assert_eq!((code, out.as_str()), (5, "one\ntwo\n"));

    // A second attach replays only the output after the first chunk.
    let (code, out, _) = run_jig(&daemon, &["attach", "--after", "1", id], "").await;
    assert_eq!((code, out.as_str()), (5, "two\n"));

    let (_, list, _) = run_jig(&daemon, &["ps", "-a"], "").await;
    assert!(list.contains("exit 5"), "{list}");

    for arguments in [&["ps"][..], &["ps", "--running"]] {
        let (_, list, _) = run_jig(&daemon, arguments, "").await;
        assert_eq!(list.lines().count(), 1, "{list}");
    }

    let (_, id, _) = run_jig(&daemon, &["exec", "-d", "sleep 1000"], "").await;
    let id = id.trim();
    let (code, _, err) = run_jig(&daemon, &["kill", "-s", "KILL", "nobody", id], "").await;
    assert_eq!(code, 1);
    assert!(err.starts_with("jig: PROCESS_NOT_FOUND: "), "{err}");

    let (code, _, _) = run_jig(&daemon, &["attach", id], "").await;
    assert_eq!(code, 137);

    let (code, _, err) = run_jig(&daemon, &["kill", id], "").await;
    assert_eq!(code, 1);
    assert!(err.starts_with("jig: PROCESS_ENDED: "), "{err}");
}

#[tokio::test]
async fn json_flag_prints_events_and_lists_as_json() {
    let daemon = Daemon::start().await;
    let (code, out, _) =
        run_jig(&daemon, &["--json", "exec", "printf out; printf e >&2; exit 2"], "").await;
    assert_eq!(code, 2);

    let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let id = events[0]["started"]["process_id"].as_str().unwrap();
    let data: Vec<&Value> = events.iter().filter(|event| event.get("exited").is_none()).collect();
    assert_eq!(data.len(), 3, "{out}");
    assert!(out.contains("\"data\":\"b3V0\""), "{out}");

    let exited = &events.last().unwrap()["exited"];
    assert_eq!((&exited["exit_code"], &exited["stdout_bytes"]), (&2.into(), &3.into()));

    let (_, list, _) = run_jig(&daemon, &["--json", "ps", "-a"], "").await;
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["processes"][0]["process_id"], id);
    assert_eq!(list["processes"][0]["state"], "PROCESS_STATE_ENDED");

    let (code, out, _) = run_jig(&daemon, &["--json", "exec", "-d", "true"], "").await;
    let response: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    assert!(response["process_id"].is_string(), "{out}");

    // An error at the end of a stream is printed as JSON as well.
    let (code, out, _) = run_jig(&daemon, &["--json", "exec", "--", "/nope"], "").await;
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 125);
    assert!(report["error"]["call_id"].is_string(), "{out}");
}

#[tokio::test]
async fn ps_long_shows_session_and_directory() {
    let daemon = Daemon::start().await;
    let arguments = ["--session", "theirs", "exec", "true"];
    assert_eq!(run_jig(&daemon, &arguments, "").await.0, 0);
    assert_eq!(run_jig(&daemon, &["exec", "false"], "").await.0, 1);

    let (_, list, _) = run_jig(&daemon, &["ps", "--all"], "").await;
    assert!(!list.contains("theirs"), "{list}");

    let (_, list, _) = run_jig(&daemon, &["ps", "--all", "--long"], "").await;

    // The newest process comes first.
    let lines: Vec<_> = list.lines().collect();
    assert!(lines[1].contains("exit 1") && lines[2].contains("exit 0"), "{list}");
    assert!(lines[2].contains("  theirs   /workspace  "), "{list}");
}

#[tokio::test]
async fn interrupted_attach_leaves_the_process_running() {
    let daemon = Daemon::start().await;
    let (_, id, _) = run_jig(&daemon, &["exec", "-d", "sleep 1000"], "").await;
    let id = id.trim();
    let viewer = jig_command(&daemon.socket(), &["attach", id]).spawn().unwrap();
    let attached = async || daemon.list_processes().await[0].attached == 1;
    eventually("jig is attached", attached).await;

    // jig has installed its signal handlers by now.
    signal_jig(&viewer, Signal::INT);
    let output = viewer.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains(&format!("jig attach {id}\n")), "{stderr}");

    let (_, list, _) = run_jig(&daemon, &["ps", "--running"], "").await;
    assert!(list.contains(id), "{list}");
}

#[tokio::test]
async fn leaving_a_kept_process_prints_the_attach_command() {
    let daemon = Daemon::start().await;
    for (signal, code) in [(Signal::TERM, 143), (Signal::QUIT, 131), (Signal::INT, 130)] {
        let script = "trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done";
        let mut child = jig_command(&daemon.socket(), &["exec", "--keep", script]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");

        signal_jig(&child, signal);
        if signal == Signal::INT {
            assert_eq!(lines.next().unwrap().unwrap(), "caught");
            signal_jig(&child, signal);
        }

        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");

        let processes = daemon.list_processes().await;
        let id = &processes.last().unwrap().process_id;
        assert!(stderr.contains(&format!("jig attach {id}\n")), "{stderr}");
    }
}

#[tokio::test]
async fn closed_stdout_ends_jig() {
    let daemon = Daemon::start().await;

    // One command writes endlessly, the other writes twice and is then silent.
    let once = "echo y; while ! test -e go; do sleep 0.05; done; echo y; exec sleep 1000";
    for (flags, script) in [(&["exec"][..], "yes"), (&["exec"], once), (&["exec", "--keep"], "yes")]
    {
        let mark = Mark::new();
        let variable = mark.variable();
        let arguments = [flags, &["--env", &variable, script]].concat();
        let (stdout, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut command = jig_command(&daemon.socket(), &arguments);
        let child = command.stdout(writer.try_clone().unwrap()).spawn().unwrap();
        drop(command);
        let mut stdout = BufReader::new(File::from(stdout));
        let mut first = String::new();
        stdout.read_line(&mut first).unwrap();
        drop(stdout);
        // A process that another test is starting may still have a copy of the reading end.
        eventually("no reader is left", async || {
            let mut polled = [PollFd::new(&writer, PollFlags::empty())];
            poll(&mut polled, Some(&Timespec::default())).unwrap();
            polled[0].revents().contains(PollFlags::ERR)
        })
        .await;
        drop(writer);
        if script == once {
            std::fs::write(daemon.file("go"), "").unwrap();
        }

        let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
        let output = promptly("jig exits", output).await.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(141), "{stderr}");

        if flags.contains(&"--keep") {
            let processes = daemon.list_processes().await;
            let id = &processes.last().unwrap().process_id;
            assert!(stderr.contains(&format!("jig attach {id}\n")), "{stderr}");
            assert!(!mark.processes().is_empty());
        } else {
            assert_eq!(stderr, "");
            mark.wait_until_gone().await;
        }
    }
}

#[tokio::test]
async fn output_gap_turns_success_into_failure() {
    let daemon = Daemon::start().await;
    let script =
        "head -c 3000000 /dev/zero; while ! test -e go; do sleep 0.05; done; exit $(cat go)";

    for (status, expected) in [("0", 125), ("3", 3)] {
        let _absent = std::fs::remove_file(daemon.file("go"));
        let (_, id, _) = run_jig(&daemon, &["exec", "-d", script], "").await;
        std::fs::write(daemon.file("new"), status).unwrap();
        std::fs::rename(daemon.file("new"), daemon.file("go")).unwrap();
        let process_has_ended = async || {
            let processes = daemon.list_processes().await;
            processes.last().is_some_and(|process| process.end_time.is_some())
        };
        eventually("the process has ended", process_has_ended).await;

        let (code, out, stderr) = run_jig(&daemon, &["attach", id.trim()], "").await;
        assert_eq!(code, expected, "{stderr}");
        assert!(out.len() < 3_000_000);

        let line = stderr.lines().find(|line| line.contains("jig artifact "));
        let path = line.and_then(|line| line.rsplit(' ').next()).expect(&stderr);
        let (bytes, _) = daemon.artifact(path).await;
        assert_eq!(bytes.len(), 3_000_000, "{stderr}");
    }
}

#[tokio::test]
async fn attach_prints_both_streams_in_written_order() {
    let daemon = Daemon::start().await;
    let script = "i=0; while [ $i -lt 40 ]; do echo out $i; sleep 0.01; echo err $i >&2; sleep 0.01; i=$((i + 1)); done";
    let (_, id, _) = run_jig(&daemon, &["exec", "-d", script], "").await;
    let id = id.trim();

    let (_, events, _) = run_jig(&daemon, &["--json", "attach", id], "").await;
    let mut expected = String::new();
    for line in events.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let output = event.get("stdout").or_else(|| event.get("stderr"));
        if let Some(output) = output {
            let data = output["data"].as_str().unwrap();
            expected.push_str(&String::from_utf8(BASE64.decode(data).unwrap()).unwrap());
        }
    }

    for _ in 0..5 {
        let (mut reads, writes) = std::io::pipe().unwrap();
        let mut command = jig_command(&daemon.socket(), &["attach", id]);
        command.stdout(writes.try_clone().unwrap()).stderr(writes);
        let mut child = command.spawn().unwrap();
        // The command holds the pipe open as well.
        drop(command);
        let mut combined = String::new();
        reads.read_to_string(&mut combined).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(combined, expected);
    }
}

#[tokio::test]
async fn unreadable_stdin_fails_instead_of_ending_input() {
    let daemon = Daemon::start().await;
    let directory = File::open(daemon.workspace()).unwrap();
    let child = jig_command(&daemon.socket(), &["exec", "-i", "cat; echo end"])
        .stdin(directory)
        .spawn()
        .unwrap();
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let output = output.await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();

    assert_eq!((output.status.code(), &output.stdout[..]), (Some(125), &b""[..]));
    assert!(stderr.contains("cannot read standard input"), "{stderr}");
}

#[test]
fn exec_without_an_address_embeds_a_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
        command.args(arguments).current_dir(directory.path()).env_clear();
        command.env("PATH", "/usr/bin:/bin").stdin(Stdio::null()).output().unwrap()
    };
    let output = run(&["exec", "echo made > file; echo out; exit 3"]);

    assert_eq!((output.status.code(), &output.stdout[..]), (Some(3), &b"out\n"[..]));
    assert!(directory.path().join("file").exists());

    for arguments in [
        &["exec", "-d", "true"][..],
        &["exec", "--keep", "true"],
        &["attach", "x"],
        &["ps"],
        &["kill", "x"],
    ] {
        let output = run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert!(text.contains("--address"), "{arguments:?}: {text}");
    }
}
