//! `jig exec`, `attach`, `ps` and `kill`, where there is no terminal.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Daemon, Mark, Proxy, eventually};

/// A command line of `jig` for a daemon at `socket`.
fn jig(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
    command
        .args(arguments)
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", socket.display()))
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs `jig`; answers its exit code and what it wrote.
async fn output(daemon: &Daemon, arguments: &[&str], input: &str) -> (i32, String, String) {
    let mut command = jig(&daemon.socket(), arguments);
    let input = input.to_owned();
    let run = move || -> Output {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        // A command that reads nothing leaves it.
        let _unread = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap_or(-1),
        text(output.stdout),
        text(output.stderr),
    )
}

fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn a_command_comes_out_as_if_it_ran_here() {
    let daemon = Daemon::start().await;
    for (arguments, input, expected) in [
        (
            &["exec", "echo out; echo err >&2; exit 7"][..],
            "",
            (7, "out\n", "err\n"),
        ),
        (&["exec", "--", "printf", "%s", "a b"], "", (0, "a b", "")),
        (&["exec", "cat"], "not given", (0, "", "")),
        (&["exec", "-i", "cat"], "given", (0, "given", "")),
        (&["exec", "-i", "--", "wc", "-c"], "12345", (0, "5\n", "")),
        (&["exec", "kill -9 $$"], "", (137, "", "")),
        (&["exec", "--timeout", "1", "sleep 1000"], "", (124, "", "")),
        (
            &["exec", "--env", "A=b", "--cwd", ".", "echo $A $PWD"],
            "",
            (0, "b /workspace\n", ""),
        ),
    ] {
        let (code, out, err) = output(&daemon, arguments, input).await;
        assert_eq!(
            (code, out.as_str(), err.as_str()),
            expected,
            "{arguments:?}"
        );
    }
    let (code, _, err) = output(&daemon, &["exec", "--", "no_such_program"], "").await;
    assert_eq!(code, 125);
    assert!(err.starts_with("jig: COMMAND_NOT_FOUND: "), "{err}");
    let (code, _, err) = output(&daemon, &["exec"], "").await;
    assert_eq!(code, 125);
    assert!(err.contains("no command to run"), "{err}");
}

#[tokio::test]
async fn large_input_and_output_go_through() {
    let daemon = Daemon::start().await;
    let input = "0123456789abcde\n".repeat(1 << 18);
    let (code, out, _) = output(&daemon, &["exec", "-i", "cat"], &input).await;
    assert_eq!(code, 0);
    assert!(out == input, "{} bytes", out.len());
}

#[tokio::test]
async fn an_interrupt_goes_to_the_command_and_a_second_one_ends_it() {
    let daemon = Daemon::start().await;
    let script = "trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done";
    let mark = Mark::new();
    let marked = mark.on_process(Default::default());
    let (name, value) = marked.env.iter().next().unwrap();
    let variable = format!("{name}={value}");
    let mut child = jig(&daemon.socket(), &["exec", "--env", &variable, script])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    signal(&child, Signal::INT);
    assert_eq!(lines.next().unwrap().unwrap(), "caught");
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    mark.vanishes().await;
}

#[tokio::test]
async fn a_process_is_left_found_again_and_ended() {
    let daemon = Daemon::start().await;
    let script = "echo one; while ! test -e go; do sleep 0.05; done; echo two; exit 5";
    let (code, id, err) = output(&daemon, &["exec", "-d", script], "").await;
    assert_eq!((code, err.as_str()), (0, ""));
    let id = id.trim();
    let (_, listed, _) = output(&daemon, &["ps"], "").await;
    let mut lines = listed.lines();
    assert!(lines.next().unwrap().starts_with("PROCESS"), "{listed}");
    let line = lines.next().unwrap();
    assert!(
        line.starts_with(id) && line.contains("running, detached"),
        "{listed}"
    );
    std::fs::write(daemon.file("go"), "").unwrap();
    let (code, out, _) = output(&daemon, &["attach", id], "").await;
    assert_eq!((code, out.as_str()), (5, "one\ntwo\n"));
    // Once more, and only what comes behind the first chunk.
    let (code, out, _) = output(&daemon, &["attach", "--after", "1", id], "").await;
    assert_eq!((code, out.as_str()), (5, "two\n"));
    let (_, listed, _) = output(&daemon, &["ps"], "").await;
    assert!(listed.contains("exit 5"), "{listed}");
    let (_, listed, _) = output(&daemon, &["ps", "--running"], "").await;
    assert_eq!(listed.lines().count(), 1, "{listed}");

    let (_, id, _) = output(&daemon, &["exec", "-d", "sleep 1000"], "").await;
    let id = id.trim();
    let (code, _, err) = output(&daemon, &["kill", "-s", "KILL", "nobody", id], "").await;
    assert_eq!(code, 1);
    assert!(err.starts_with("jig: PROCESS_NOT_FOUND: "), "{err}");
    let (code, _, _) = output(&daemon, &["attach", id], "").await;
    assert_eq!(code, 137);
    let (code, _, err) = output(&daemon, &["kill", id], "").await;
    assert_eq!(code, 1);
    assert!(err.starts_with("jig: PROCESS_ENDED: "), "{err}");
}

#[tokio::test]
async fn events_and_lists_are_json_for_who_asks() {
    let daemon = Daemon::start().await;
    let (code, out, _) = output(
        &daemon,
        &["--json", "exec", "printf out; printf e >&2; exit 2"],
        "",
    )
    .await;
    assert_eq!(code, 2);
    let events: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let id = events[0]["started"]["process_id"].as_str().unwrap();
    let data: Vec<&Value> = events
        .iter()
        .filter(|event| event.get("exited").is_none())
        .collect();
    assert_eq!(data.len(), 3, "{out}");
    assert!(out.contains("\"data\":\"b3V0\""), "{out}");
    let exited = &events.last().unwrap()["exited"];
    assert_eq!(
        (&exited["exit_code"], &exited["stdout_bytes"]),
        (&2.into(), &3.into())
    );
    let (_, listed, _) = output(&daemon, &["--json", "ps"], "").await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["processes"][0]["process_id"], id);
    assert_eq!(listed["processes"][0]["state"], "PROCESS_STATE_ENDED");
}

#[tokio::test]
async fn a_lost_connection_is_made_again() {
    let daemon = Daemon::start().await;
    let proxy = Proxy::to(&daemon);
    let script = "echo one; while ! test -e go; do sleep 0.05; done; seq 3; exit 6";
    let mut child = jig(&proxy.socket(), &["exec", "--keep", script])
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    proxy.cut();
    eventually("nobody watches, or somebody again", async || {
        !daemon.list_processes().await.is_empty()
    })
    .await;
    std::fs::write(daemon.file("go"), "").unwrap();
    let rest = tokio::task::spawn_blocking(move || {
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        (rest, child.wait().unwrap())
    });
    let (rest, status) = rest.await.unwrap();
    assert_eq!((first.as_str(), rest.as_str()), ("one\n", "1\n2\n3\n"));
    assert_eq!(status.code(), Some(6));
}

#[test]
fn without_a_daemon_a_command_runs_in_one_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
        command
            .args(arguments)
            .current_dir(folder.path())
            .env_clear();
        command
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let output = run(&["exec", "echo made > file; echo out; exit 3"]);
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(3), &b"out\n"[..])
    );
    assert!(folder.path().join("file").exists());
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
