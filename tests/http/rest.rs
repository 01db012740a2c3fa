//! The REST routes: bodies, queries, jobs and errors.

use serde_json::{Value as Json, json};

use crate::support::{CurlResponse, Daemon, Mark, Setup, curl, curl_command, kill_and_reap};

const BATCH: &str = "/v1/agent-tools/invoke-batch";

/// Sends a batch.
fn post_batch(daemon: &Daemon, body: &str) -> CurlResponse {
    curl(daemon, &["-H", "content-type: application/json", "-d", body], BATCH)
}

fn command_batch(command: &str, mode: &str) -> String {
    let call = json!({"call_id": "a", "name": "tool_exec", "arguments": {"command": command}});
    json!({"calls": [call], "mode": mode}).to_string()
}

/// The UUID of a new job.
fn submit_command(daemon: &Daemon, command: &str) -> String {
    let response = post_batch(daemon, &command_batch(command, "async")).json();
    response["results"][0]["job_id"].as_str().unwrap().to_owned()
}

/// The id of the last event of a stream.
fn last_id(body: &str) -> String {
    body.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned()
}

/// The events of a stream: their names and data.
fn events(body: &str) -> Vec<(String, Json)> {
    let events = body.split("\n\n").filter(|event| !event.is_empty());
    let field = |event: &str, name: &str| {
        event.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned()
    };
    events
        .map(|event| {
            let data = serde_json::from_str(&field(event, "data: ")).unwrap();
            (field(event, "event: "), data)
        })
        .collect()
}

#[tokio::test]
async fn client_that_disconnects_cancels_its_batch() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let command = format!("export {}; sleep 903 & sleep 903; wait", mark.variable());
    let body = command_batch(&command, "sync");
    let arguments = ["-H", "content-type: application/json", "-d", &body];
    let mut client = curl_command(&daemon, &arguments, BATCH).spawn().unwrap();
    mark.wait_for_processes(2).await;
    kill_and_reap(&mut client);
    mark.wait_until_gone().await;

    // With a request id, the batch continues.
    let arguments = [&arguments[..], &["-H", "jig-request-id: again"]].concat();
    let mut client = curl_command(&daemon, &arguments, BATCH).spawn().unwrap();
    mark.wait_for_processes(2).await;
    kill_and_reap(&mut client);
}

#[tokio::test]
async fn job_has_the_form_of_id_that_the_caller_uses() {
    let daemon = Daemon::start().await;
    let uuid = submit_command(&daemon, "echo hi");
    let stream = curl(&daemon, &[], &format!("/v1/jobs/{uuid}/stream"));
    for (name, data) in events(&stream.body) {
        assert!(name != "job" || data["job_id"] == *uuid, "{stream:?}");
    }
    let job = curl(&daemon, &[], &format!("/v1/jobs/{uuid}")).json()["job"].take();
    assert_eq!(job["job_id"], *uuid);

    let ulid = job_ulid(&daemon);
    let job = curl(&daemon, &[], &format!("/v1/jobs/{ulid}")).json()["job"].take();
    assert_eq!(job["job_id"], *ulid);

    let unknown = "01a20dc0-ced5-7000-8000-000000000000";
    let response = curl(&daemon, &[], &format!("/v1/jobs/{unknown}"));
    assert_eq!(response.status, 404);
    assert!(response.body.contains(unknown), "{response:?}");
}

/// The id of the only job, as the contract writes it.
fn job_ulid(daemon: &Daemon) -> String {
    let arguments = ["-H", "content-type: application/json", "-d", "{}"];
    let jobs = curl(daemon, &arguments, "/jig.v1.JobService/ListJobs").json();
    jobs["jobs"][0]["jobId"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn every_rejection_is_json() {
    let daemon = Daemon::start().await;
    for path in [
        "/v1/agent-tools?dialect=a&dialect=b",
        "/v1/agent-tools?dialekt=claude",
        "/v1/jobs/x?bogus=1",
        "/v1/jobs/%ff",
        "/v1/jobs/%ff/stream",
        "/v1/sessions/x/events?follow=maybe",
        "/v1/sessions/x/events?bogus=1",
        "/v1/sessions/x/events?after_sequence=-1",
        "/v1/sessions/%ff/events",
    ] {
        let response = curl(&daemon, &[], path);
        assert_eq!(response.status, 400, "{path}: {response:?}");
        assert_eq!(response.headers["content-type"], "application/json", "{path}");
        let body = response.json();
        assert_eq!(
            (&body["ok"], &body["error"]["code"]),
            (&json!(false), &json!("VALIDATION_ERROR"))
        );
    }

    let response = curl(&daemon, &[], "/v1/agent-tools?dialekt=claude");
    let text = response.json()["error"]["message"].take();
    assert!(text.as_str().unwrap().contains("unknown field `dialekt`"), "{text}");
}

#[tokio::test]
async fn query_names_the_workspace() {
    let workspace = tempfile::tempdir().unwrap();
    let table =
        format!("name = \"a\"\n[[workspaces]]\nname = \"b\"\npath = {:?}\n", workspace.path());
    let daemon = Setup::new().workspace_table(&table).start().await;
    let arguments = ["-H", "content-type: application/json", "-d", &command_batch("pwd", "async")];
    let response = curl(&daemon, &arguments, &format!("{BATCH}?workspace=b")).json();
    let job = response["results"][0]["job_id"].as_str().unwrap().to_owned();

    for suffix in ["", "/stream"] {
        let path = format!("/v1/jobs/{job}{suffix}");
        assert_eq!(curl(&daemon, &[], &path).status, 404, "{path}");
        assert_eq!(curl(&daemon, &[], &format!("{path}?workspace=b")).status, 200, "{path}");
    }
    assert_eq!(curl(&daemon, &[], "/v1/agent-tools?workspace=nowhere").status, 404);
}

#[tokio::test]
async fn body_of_a_batch_is_that_of_the_document() {
    let daemon = Daemon::start().await;
    let call = json!({"call_id": "a", "name": "tool_exec", "arguments": {"command": "true"}});
    let body = |field: &str, value: Json| {
        let mut body = json!({"calls": [call]});
        body[field] = value;
        body
    };
    for (body, message) in [
        (body("mode", json!("weird")), "'mode' is \"weird\"; it must be \"sync\" or \"async\""),
        (body("mode", json!(1)), "'mode' is 1; it must be \"sync\" or \"async\""),
        (body("mode", json!([])), "'mode' must be \"sync\" or \"async\""),
        (body("wait_ms", json!("100")), "'wait_ms' must be a number of milliseconds"),
        (body("calls", json!([])), "'calls' is required, with 1 to 20 elements"),
        (body("dialect", json!("claude")), "'dialect' is no field: give the query ?dialect=NAME"),
        (
            body("waitMs", json!(100)),
            "'waitMs' is unknown: did you mean wait_ms? Known: calls, mode, wait_ms, queue",
        ),
        (
            json!({"calls": [1], "mode": 1}),
            "'mode' is 1; it must be \"sync\" or \"async\"; 'calls[0]' must be an object; this is a number",
        ),
    ] {
        let response = post_batch(&daemon, &body.to_string());
        assert_eq!(response.status, 400, "{body}: {response:?}");
        assert_eq!(response.json()["error"]["message"], message, "{body}");
    }

    let response = curl(&daemon, &[], "/v1/agent-tools?dialect=zzz");
    let message = response.json()["error"]["message"].take();
    let expected = "'dialect' is \"zzz\"; it must be empty for the tools of jig.v1, or one of ";
    assert!(message.as_str().unwrap().starts_with(expected), "{message}");
}

#[tokio::test]
async fn stream_of_an_ended_job_ends_for_good() {
    let daemon = Daemon::start().await;
    let job = submit_command(&daemon, "echo hi; echo oh >&2");
    let path = format!("/v1/jobs/{job}/stream");
    // The first stream waits for the end.
    curl(&daemon, &[], &path);

    let stream = curl(&daemon, &[], &path).body;
    let events = events(&stream);
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["stdout", "stderr", "job"], "{stream}");
    for (_, data) in events.iter().filter(|(name, _)| name == "job") {
        assert_eq!(data["state"], "JOB_STATE_SUCCEEDED", "{stream}");
    }

    let id = last_id(&stream);
    assert_eq!(id, "3-3-end");
    let again = curl(&daemon, &["-H", &format!("last-event-id: {id}")], &path);
    assert_eq!((again.status, &*again.body), (204, ""));
    let unknown = "/v1/jobs/01a20dc0-ced5-7000-8000-000000000000/stream";
    assert_eq!(curl(&daemon, &["-H", &format!("last-event-id: {id}")], unknown).status, 404);
    let cut = curl(&daemon, &["-H", "last-event-id: 3-3"], &path);
    assert_eq!((cut.status, last_id(&cut.body)), (200, id));
}

#[tokio::test]
async fn json_with_a_key_given_twice_is_refused() {
    let daemon = Daemon::start().await;
    let twice = r#"{"command": "touch one", "command": "touch two"}"#;
    let env = r#"{"command": "true", "env": {"A": "1", "A": "2"}}"#;
    let call = format!(r#"{{"call_id": "a", "name": "tool_exec", "arguments": {twice}}}"#);
    let batch = format!(r#"{{"calls": [{call}]}}"#);
    for (path, body, key) in [
        ("/jig.v1.ToolService/Run", twice, "command"),
        ("/jig.v1.ToolService/Run", env, "A"),
        (BATCH, &batch, "command"),
    ] {
        let response = curl(&daemon, &["-H", "content-type: application/json", "-d", body], path);
        assert_eq!(response.status, 400, "{response:?}");
        let text = format!("the key \\\"{key}\\\" is given twice");
        assert!(response.body.contains(&text), "{response:?}");
    }
    assert!(!daemon.file("one").exists() && !daemon.file("two").exists());
}
