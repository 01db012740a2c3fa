//! The command `jig job`.

use std::{
    io::Read as _,
    process::{Command, Output, Stdio},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Daemon, eventually};

fn run_jig_job(daemon: &Daemon, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jig"))
        .arg("job")
        .args(arguments)
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
        .output()
        .unwrap()
}

/// Runs `jig job`, which must exit with `code`, and returns its standard output.
fn run_expecting_exit(daemon: &Daemon, arguments: &[&str], code: i32) -> String {
    let output = run_jig_job(daemon, arguments);
    let text = format!("{arguments:?}: {output:?}");
    assert_eq!(output.status.code(), Some(code), "{text}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn jobs_are_submitted_watched_and_listed() {
    let daemon = Daemon::start().await;

    for (arguments, expected) in [
        (&["ls"][..], "jig: there are no jobs\n"),
        (&["ls", "--state", "failed"], "jig: no job matches --state\n"),
    ] {
        let output = run_jig_job(&daemon, arguments);
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
    }

    let line = "command=echo out; echo err >&2; exit 3";
    let id = run_expecting_exit(&daemon, &["submit", "run", line, "timeout_sec=50"], 0);
    let id = id.trim();
    let summary = run_expecting_exit(&daemon, &["wait", id], 3);
    assert!(summary.contains("succeeded") && summary.contains("out\\n"), "{summary}");

    let watched = run_jig_job(&daemon, &["watch", id]);
    assert_eq!(watched.status.code(), Some(3));
    assert_eq!((&*watched.stdout, &*watched.stderr), (&b"out\n"[..], &b"err\n"[..]));

    let rest = run_expecting_exit(&daemon, &["watch", "--stdout-offset", "2", id], 3);
    assert_eq!(rest, "t\n");

    let submit_and_wait = ["submit", "--wait", "--queue", "q", "list_files", "--params", "{}"];
    run_expecting_exit(&daemon, &submit_and_wait, 0);
    let listed = run_expecting_exit(&daemon, &["ls", "--json"], 0);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let jobs = listed["jobs"].as_array().unwrap();
    assert_eq!((jobs.len(), &jobs[0]["queue"], &jobs[1]["job_id"]), (2, &"q".into(), &id.into()));

    let job: Value =
        serde_json::from_str(&run_expecting_exit(&daemon, &["get", id, "--json"], 0)).unwrap();
    assert_eq!(job["result"]["data"]["exit_code"], 3);
    assert_eq!(run_expecting_exit(&daemon, &["ls", "--state", "lost"], 0), "");

    let sleeping = run_expecting_exit(&daemon, &["submit", "run", "command=sleep 1000"], 0);
    assert!(run_expecting_exit(&daemon, &["cancel", sleeping.trim()], 0).contains("cancelled"));

    // Cancelling a job that has ended succeeds.
    run_expecting_exit(&daemon, &["cancel", id], 0);
}

#[tokio::test]
async fn job_watch_exits_like_its_command() {
    let daemon = Daemon::start().await;
    for (line, code, expected) in [
        (&["command=kill -9 $$"][..], 137, ""),
        (&["command=sleep 1000", "timeout_sec=1"], 124, "jig: ended: timed out\n"),
        (&["--params", "{\"argv\": [\"no-such-program\"]}"], 1, "no-such-program"),
    ] {
        let submit = [&["submit", "run"], line].concat();
        let id = run_expecting_exit(&daemon, &submit, 0);
        let watched = run_jig_job(&daemon, &["watch", id.trim()]);
        assert_eq!(watched.status.code(), Some(code), "{line:?}: {watched:?}");
        let stderr = String::from_utf8(watched.stderr).unwrap();
        let is_expected =
            if expected.is_empty() { stderr.is_empty() } else { stderr.contains(expected) };
        assert!(is_expected, "{line:?}: {stderr}");
        run_expecting_exit(&daemon, &["wait", id.trim()], code);
    }
}

#[tokio::test]
async fn job_watch_prints_json() {
    let daemon = Daemon::start().await;

    let line = "command=echo out; exit 3";
    let id = run_expecting_exit(&daemon, &["submit", "run", line], 0);
    run_expecting_exit(&daemon, &["wait", id.trim()], 3);
    let watched = run_expecting_exit(&daemon, &["watch", "--json", id.trim()], 3);
    let lines = watched.lines().map(serde_json::from_str::<Value>);
    let lines: Vec<_> = lines.map(Result::unwrap).collect();
    assert_eq!(lines.len(), 2, "{watched}");

    // "out\n" in base64.
    assert_eq!(lines[0]["stdout"]["data"], "b3V0Cg==");
    assert_eq!(lines[0]["stdout"]["offset"], 0);
    assert_eq!(lines[1]["job"]["state"], "JOB_STATE_SUCCEEDED");
    assert_eq!(lines[1]["job"]["result"]["exit_code"], 3);
}

#[tokio::test]
async fn cli_reports_invalid_job_arguments() {
    let daemon = Daemon::start().await;
    for (arguments, code, expected) in [
        (&["submit", "run", "command"][..], 64, "NAME=VALUE"),
        (&["submit", "run", "comand=x"], 1, "params.comand"),
        (&["submit", "run", "--params", "{"], 64, "--params is not a JSON object"),
        (&["submit", "dance"], 1, "UNKNOWN_TOOL"),
        (&["get", "nothing"], 1, "JOB_NOT_FOUND"),
        (&["ls", "--state", "sleeping"], 64, "queued"),
    ] {
        let output = run_jig_job(&daemon, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }

    let output =
        Command::new(env!("CARGO_BIN_EXE_jig")).args(["job", "ls"]).env_clear().output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--address"));
}

#[tokio::test]
async fn request_id_submits_job_once() {
    let daemon = Daemon::start().await;

    let submit = ["submit", "--request-id", "id", "run", "command=echo ran >> runs"];
    let first = run_expecting_exit(&daemon, &submit, 0);
    assert_eq!(run_expecting_exit(&daemon, &submit, 0), first);

    let submit_and_wait = [&submit[..], &["--wait"]].concat();
    run_expecting_exit(&daemon, &submit_and_wait, 0);
    let another = ["submit", "--request-id", "other", "run", "command=true"];
    assert_ne!(run_expecting_exit(&daemon, &another, 0), first);

    let runs = std::fs::read_to_string(daemon.file("runs")).unwrap();
    assert_eq!(runs, "ran\n");
}

#[tokio::test]
async fn interrupted_wait_names_the_job() {
    let mut daemon = Daemon::start().await;
    let mut jig = Command::new(env!("CARGO_BIN_EXE_jig"))
        .args(["job", "submit", "--wait", "run", "command=touch began; sleep 100"])
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the job runs", async || daemon.file("began").exists()).await;
    daemon.signal(Signal::KILL);
    daemon.wait_for_exit().await;

    let mut text = String::new();
    jig.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(!jig.wait().unwrap().success());
    assert!(text.contains("`jig job wait ") && text.contains("UNAVAILABLE"), "{text}");
}
