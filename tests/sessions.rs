//! Sessions: their records and artifacts, and the continuity of their step numbers.

use std::fs;

use jig::api::v1::{Edit, EditFileRequest, ReadFileRequest, WriteFileRequest};
use serde_json::Value;

use crate::{
    events::in_session,
    support::{Daemon, Mark, promptly, shell, with_metadata},
};

/// More sessions than a daemon holds open (`MAX_IDLE_OPEN_SESSIONS` of `daemon/store/sessions.rs`).
const MORE_THAN_OPEN_SESSIONS: usize = 300;

/// Makes a call in each of many sessions.
async fn call_in_many_sessions(daemon: &Daemon, prefix: &str) {
    fs::write(daemon.file("text"), "text\n").unwrap();
    for number in 0..MORE_THAN_OPEN_SESSIONS {
        let request = ReadFileRequest { path: "text".to_owned(), ..ReadFileRequest::default() };
        let session = format!("{prefix}-{number}");
        let request = with_metadata("jig-session", &session, request);
        daemon.tools().read_file(request).await.unwrap();
    }
}

/// Event and step of each record of a session. Their sequence numbers must have no gap.
fn recorded_steps(daemon: &Daemon, session: &str) -> Vec<(String, u64)> {
    let path = format!("sessions/{session}/events.jsonl");

    let text = fs::read_to_string(daemon.state_dir().join(path)).unwrap();
    let records: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sequence = records.iter().map(|record| record["sequence"].as_u64());
    assert!(sequence.eq((1..=records.len() as u64).map(Some)), "{text}");

    let event = |record: &Value| record["event"].as_str().unwrap().to_owned();
    let step = |record: &Value| record["step"].as_u64().unwrap();
    records.iter().map(|record| (event(record), step(record))).collect()
}

/// The result of [`recorded_steps`] for these records.
fn expected_steps(records: &[(&str, u64)]) -> Vec<(String, u64)> {
    let named = |(event, step): &(&str, u64)| (format!("tool_call_{event}"), *step);
    records.iter().map(named).collect()
}

/// How many record files the daemon holds open.
fn open_sessions(daemon: &Daemon) -> usize {
    let directory = format!("/proc/{}/fd", daemon.pid());
    fs::read_dir(directory)
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.ends_with("events.jsonl"))
        .count()
}

#[tokio::test]
async fn session_continues_its_steps_after_many_others() {
    let daemon = Daemon::start().await;

    let first = daemon.run(in_session("old", shell("echo first"))).await;
    call_in_many_sessions(&daemon, "other").await;
    assert!(open_sessions(&daemon) < MORE_THAN_OPEN_SESSIONS, "the daemon closes some sessions");

    let second = daemon.run(in_session("old", shell("echo second"))).await;
    assert_eq!(first.stdout_path, "logs/tool_step_0001_stdout.txt");
    assert_eq!(second.stdout_path, "logs/tool_step_0002_stdout.txt");

    for (response, text) in [(first, "first\n"), (second, "second\n")] {
        let artifact = daemon.artifact_of_session("old", &response.stdout_path).await;
        assert_eq!(artifact.unwrap().0, text.as_bytes());
    }
    assert_eq!(
        recorded_steps(&daemon, "old"),
        expected_steps(&[("started", 1), ("finished", 1), ("started", 2), ("finished", 2)])
    );

    let (bytes, size) =
        daemon.artifact_of_session("old", "logs/tool_step_0001_stderr.txt").await.unwrap();
    assert_eq!((bytes.len(), size), (0, 0), "the empty artifact still exists");
}

#[tokio::test]
async fn session_with_a_running_command_stays_open() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();

    let wait_command = "until [ -e end ]; do sleep 0.05; done; echo finished";
    let call = daemon.spawn_run(in_session("busy", mark.on(shell(wait_command))));
    mark.wait_for_processes(1).await;

    call_in_many_sessions(&daemon, "other").await;
    daemon.output(in_session("busy", shell("true"))).await;
    call_in_many_sessions(&daemon, "another").await;
    fs::write(daemon.file("end"), "").unwrap();
    let response = promptly("the command ends", call).await.unwrap().unwrap();
    assert_eq!(response.stdout, "finished\n");
    assert_eq!(response.stdout_path, "logs/tool_step_0001_stdout.txt");

    daemon.output(in_session("busy", shell("true"))).await;
    assert_eq!(
        recorded_steps(&daemon, "busy"),
        expected_steps(&[
            ("started", 1),
            ("started", 2),
            ("finished", 2),
            ("finished", 1),
            ("started", 3),
            ("finished", 3)
        ])
    );
}

#[tokio::test]
async fn reading_an_artifact_creates_no_session() {
    let daemon = Daemon::start().await;

    daemon.output(shell("echo text")).await;
    let sessions = || {
        let entries = fs::read_dir(daemon.state_dir().join("sessions")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    assert_eq!(sessions(), ["default"]);

    for path in [
        "logs/tool_step_0001_stdout.txt",
        "logs/tool_step_0001_stderr.txt",
        "events.jsonl",
        "nothing",
    ] {
        let refusal = daemon.artifact_of_session("unused", path).await.unwrap_err();
        assert_eq!(refusal.reason, "ARTIFACT_NOT_FOUND", "{path}: {refusal:?}");
        assert_eq!(refusal.metadata.get("path").unwrap(), path);
    }

    for path in ["/etc/passwd", "../default/logs/tool_step_0001_stdout.txt"] {
        let refusal = daemon.artifact_of_session("unused", path).await.unwrap_err();
        assert_eq!(refusal.reason, "PATH_ESCAPE", "{path}: {refusal:?}");
    }
    assert_eq!(sessions(), ["default"]);

    // Reading has no effect on a session that is created later under this name.
    let response = daemon.run(in_session("unused", shell("echo text"))).await;
    assert_eq!(response.stdout_path, "logs/tool_step_0001_stdout.txt");
}

#[tokio::test]
async fn records_contain_sizes_instead_of_file_content() {
    let daemon = Daemon::start().await;

    let request = WriteFileRequest {
        path: "large".to_owned(),
        content: "x".repeat(1 << 20),
        ..WriteFileRequest::default()
    };
    daemon.tools().write_file(request).await.unwrap();
    let edit =
        Edit { old_string: "x".repeat(1 << 20), new_string: "y".to_owned(), ..Edit::default() };

    let request = EditFileRequest {
        path: "large".to_owned(),
        edits: vec![edit],
        ..EditFileRequest::default()
    };
    daemon.tools().edit_file(request).await.unwrap();
    let edit = Edit {
        old_string: "let n0t_here = 2;".to_owned(),
        new_string: "x".to_owned(),
        ..Edit::default()
    };
    let request = EditFileRequest {
        path: "small".to_owned(),
        edits: vec![edit],
        ..EditFileRequest::default()
    };

    fs::write(daemon.file("small"), "let n0t_here = 1;\n").unwrap();
    let status = daemon.tools().edit_file(request).await.unwrap_err();
    assert!(status.message().contains("n0t_here"), "{status:?}");

    let request = WriteFileRequest {
        path: "small".to_owned(),
        content: "n0t-here".to_owned(),
        ..WriteFileRequest::default()
    };
    daemon.tools().write_file(request).await.unwrap();
    let path = daemon.state_dir().join("sessions/default/events.jsonl");
    let events = fs::read_to_string(path).unwrap();
    let params = |step: usize| -> Value {
        let line = events.lines().nth(step * 2).unwrap();
        serde_json::from_str::<Value>(line).unwrap()["params"].clone()
    };
    assert_eq!(params(0)["content"], "<1048576 bytes>");
    assert_eq!(params(1)["edits"], "<1048577 bytes>");
    assert_eq!(params(2)["edits"][0]["old_string"], "<17 bytes>");
    assert_eq!(params(2)["edits"][0]["new_string"], "<1 bytes>");
    assert_eq!(params(3)["content"], "<8 bytes>");

    // Errors in records contain no file content either.
    assert!(!events.contains("n0t"), "{events}");
    assert_eq!([params(0)["path"].clone(), params(1)["path"].clone()], ["large"; 2]);
}
