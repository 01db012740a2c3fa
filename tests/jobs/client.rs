//! `jig job`, as people use it.

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::Daemon;

fn jig(daemon: &Daemon, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jig"))
        .arg("job")
        .args(arguments)
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
        .output()
        .unwrap()
}

/// Runs `jig job`, which must exit with `code`; answers what it wrote to standard output.
fn exits(daemon: &Daemon, arguments: &[&str], code: i32) -> String {
    let output = jig(daemon, arguments);
    let text = format!("{arguments:?}: {output:?}");
    assert_eq!(output.status.code(), Some(code), "{text}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn jobs_are_submitted_watched_and_listed() {
    let daemon = Daemon::start().await;
    for (arguments, told) in [
        (&["ls"][..], "jig: there are no jobs\n"),
        (&["ls", "--state", "failed"], "jig: there are no such jobs\n"),
    ] {
        let output = jig(&daemon, arguments);
        assert_eq!(String::from_utf8(output.stderr).unwrap(), told);
    }
    let line = "command=echo out; echo err >&2; exit 3";
    let id = exits(&daemon, &["submit", "run", line, "timeout_sec=50"], 0);
    let id = id.trim();
    let told = exits(&daemon, &["wait", id], 3);
    assert!(told.contains("succeeded") && told.contains("out\\n"), "{told}");
    let watched = jig(&daemon, &["watch", id]);
    assert_eq!(watched.status.code(), Some(3));
    assert_eq!((&*watched.stdout, &*watched.stderr), (&b"out\n"[..], &b"err\n"[..]));
    let from = exits(&daemon, &["watch", "--stdout-offset", "2", id], 3);
    assert_eq!(from, "t\n");
    let waited = ["submit", "--wait", "--queue", "q", "list_files", "--params", "{}"];
    exits(&daemon, &waited, 0);
    let listed = exits(&daemon, &["ls", "--json"], 0);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let jobs = listed["jobs"].as_array().unwrap();
    assert_eq!((jobs.len(), &jobs[0]["queue"], &jobs[1]["job_id"]), (2, &"q".into(), &id.into()));
    let got: Value = serde_json::from_str(&exits(&daemon, &["get", id, "--json"], 0)).unwrap();
    assert_eq!(got["result"]["data"]["exit_code"], 3);
    assert_eq!(exits(&daemon, &["ls", "--state", "lost"], 0), "");
    let sleeping = exits(&daemon, &["submit", "run", "command=sleep 1000"], 0);
    assert!(exits(&daemon, &["cancel", sleeping.trim()], 0).contains("cancelled"));
    // And to end what has ended is no failure.
    exits(&daemon, &["cancel", id], 0);
}

#[tokio::test]
async fn a_job_is_watched_to_the_end_that_its_command_had() {
    let daemon = Daemon::start().await;
    for (line, code, told) in [
        (&["command=kill -9 $$"][..], 137, ""),
        (&["command=sleep 1000", "timeout_sec=1"], 124, "jig: ended: timed out\n"),
        (&["--params", "{\"argv\": [\"no-such-program\"]}"], 1, "no-such-program"),
    ] {
        let submit = [&["submit", "run"], line].concat();
        let id = exits(&daemon, &submit, 0);
        let watched = jig(&daemon, &["watch", id.trim()]);
        assert_eq!(watched.status.code(), Some(code), "{line:?}: {watched:?}");
        let text = String::from_utf8(watched.stderr).unwrap();
        let is_told = match told {
            "" => text.is_empty(),
            told => text.contains(told),
        };
        assert!(is_told, "{line:?}: {text}");
        exits(&daemon, &["wait", id.trim()], code);
    }
}

#[tokio::test]
async fn a_job_is_watched_as_json() {
    let daemon = Daemon::start().await;
    let line = "command=echo out; exit 3";
    let id = exits(&daemon, &["submit", "run", line], 0);
    exits(&daemon, &["wait", id.trim()], 3);
    let watched = exits(&daemon, &["watch", "--json", id.trim()], 3);
    let lines = watched.lines().map(serde_json::from_str::<Value>);
    let lines: Vec<_> = lines.map(Result::unwrap).collect();
    assert_eq!(lines.len(), 2, "{watched}");
    // "out", and the end of the line.
    assert_eq!(lines[0]["stdout"]["data"], "b3V0Cg==");
    assert_eq!(lines[0]["stdout"]["offset"], 0);
    assert_eq!(lines[1]["job"]["state"], "JOB_STATE_SUCCEEDED");
    assert_eq!(lines[1]["job"]["result"]["exit_code"], 3);
}

#[tokio::test]
async fn what_cannot_be_is_said() {
    let daemon = Daemon::start().await;
    for (arguments, code, part) in [
        (&["submit", "run", "command"][..], 64, "NAME=VALUE"),
        (&["submit", "run", "comand=x"], 1, "params.comand"),
        (&["submit", "run", "--params", "{"], 64, "--params is no JSON object"),
        (&["submit", "dance"], 1, "UNKNOWN_TOOL"),
        (&["get", "nothing"], 1, "JOB_NOT_FOUND"),
        (&["ls", "--state", "sleeping"], 64, "queued"),
    ] {
        let output = jig(&daemon, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(part), "{arguments:?}: {told}");
    }
    let output =
        Command::new(env!("CARGO_BIN_EXE_jig")).args(["job", "ls"]).env_clear().output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--address"));
}

#[tokio::test]
async fn a_job_is_submitted_once_for_each_request_id() {
    let daemon = Daemon::start().await;
    let submit = ["submit", "--request-id", "id", "run", "command=echo ran >> runs"];
    let first = exits(&daemon, &submit, 0);
    assert_eq!(exits(&daemon, &submit, 0), first);
    let waited = [&submit[..], &["--wait"]].concat();
    exits(&daemon, &waited, 0);
    let another = ["submit", "--request-id", "other", "run", "command=true"];
    assert_ne!(exits(&daemon, &another, 0), first);
    let runs = std::fs::read_to_string(daemon.file("runs")).unwrap();
    assert_eq!(runs, "ran\n");
}
