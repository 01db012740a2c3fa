//! RauskuClaw over HTTP: every example of its document with curl, and the streams of jobs.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::Stdio,
    sync::Arc,
};

use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::{
    fixture::Fixture,
    matching::{difference, expand},
    scenario::parse,
};
use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Setup, curl, curl_command, kill_and_reap},
};

const SCENARIOS: &str = include_str!("http/rauskuclaw.toml");

/// A request and its expected response.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpScenario {
    #[serde(default)]
    files: BTreeMap<String, Json>,
    /// The role of the key that curl sends.
    key: Option<String>,
    path: String,
    /// The body of a POST request. Without one, it is a GET request.
    body: Option<String>,
    status: u16,
    response: String,
}

async fn start_with_keys() -> (Daemon, BTreeMap<String, String>) {
    let file = Arc::new(KeyFile::new());
    let roles = ["read", "invoke", "admin"];
    let keys = roles.map(|role| (role.to_owned(), file.add_key(role, role, &[])));
    (start_daemon_with_keys(Setup::new(), &file).await, keys.into())
}

#[tokio::test]
async fn examples_of_the_document_over_http() {
    let (daemon, keys) = start_with_keys().await;
    let fixture = Fixture::of_daemon(daemon);
    let scenarios: BTreeMap<String, HttpScenario> = toml::from_str(SCENARIOS).unwrap();

    let mismatches: Vec<_> = scenarios
        .iter()
        .filter_map(|(name, scenario)| {
            fixture.reset_workspace(&scenario.files);
            let mismatch = mismatch(fixture.daemon(), &keys, scenario)?;
            Some(format!("{name}: {mismatch}"))
        })
        .collect();
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}

fn mismatch(
    daemon: &Daemon,
    keys: &BTreeMap<String, String>,
    scenario: &HttpScenario,
) -> Option<String> {
    let mut arguments = Vec::new();
    if let Some(role) = &scenario.key {
        arguments.extend(["-H".to_owned(), format!("x-api-key: {}", keys[role])]);
    }
    // Long bodies exceed the limit of a command line.
    let mut body_file = tempfile::NamedTempFile::new().unwrap();
    if let Some(body) = &scenario.body {
        let body = serde_json::from_str(body).map(|json| expand(json).to_string());
        body_file.write_all(body.unwrap_or(scenario.body.clone().unwrap()).as_bytes()).unwrap();
        let path = format!("@{}", body_file.path().display());
        arguments.extend(["-H".into(), "Content-Type: application/json".into()]);
        arguments.extend(["--data-binary".into(), path]);
    }

    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let response = curl(daemon, &arguments, &scenario.path);
    if response.status != scenario.status {
        return Some(format!("{response:?}"));
    }
    difference(&parse(&scenario.response), &response.json(), "response")
}

/// The events of a stream of server-sent events: name, id and data.
fn parse_events(stream: &str) -> Vec<(String, String, Json)> {
    let events = stream.split("\n\n").filter(|event| event.starts_with("event:"));
    events
        .map(|event| {
            let field = |name: &str| {
                let line = event.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                line.trim().to_owned()
            };
            (field("event:"), field("id:"), serde_json::from_str(&field("data:")).unwrap())
        })
        .collect()
}

fn submit_command(daemon: &Daemon, command: &str) -> String {
    let calls =
        json!([{ "call_id": "a", "name": "tool_exec", "arguments": { "command": command } }]);
    let body = json!({ "calls": calls, "mode": "async" }).to_string();
    let arguments = ["-H", "content-type: application/json", "-d", &body];
    let response = curl(daemon, &arguments, "/v1/agent-tools/invoke-batch").json();
    response["results"][0]["job_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn e09_job_stream_resumes_by_last_event_id() {
    let daemon = Daemon::start().await;
    let job = submit_command(
        &daemon,
        "echo one; until [ -e go ]; do sleep 0.05; done; echo two; echo x >&2",
    );
    let path = format!("/v1/jobs/{job}/stream");

    // The first stream is cut after the first line of output.
    let mut first = curl_command(&daemon, &[], &path).stdout(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(first.stdout.take().unwrap());
    let mut received = String::new();
    while !received.contains("one\\n") {
        assert!(reader.read_line(&mut received).unwrap() > 0, "{received}");
    }
    kill_and_reap(&mut first);
    let _cut = reader.read_to_string(&mut received);
    let (name, id, data) = parse_events(&(received + "\n\n")).pop().unwrap();
    assert_eq!((name.as_str(), &data["text"]), ("stdout", &json!("one\n")));

    std::fs::write(daemon.file("go"), "").unwrap();
    let header = format!("last-event-id: {id}");
    let rest = parse_events(&curl(&daemon, &["-H", &header], &path).body);
    let texts = |name: &str| -> String {
        let events = rest.iter().filter(|(event, ..)| event == name);
        events.map(|(.., data)| data["text"].as_str().unwrap()).collect()
    };
    assert_eq!((texts("stdout"), texts("stderr")), ("two\n".to_owned(), "x\n".to_owned()));
    let (name, _, last) = rest.last().unwrap();
    assert_eq!((name.as_str(), &last["state"]), ("job", &json!("JOB_STATE_SUCCEEDED")));

    let response = curl(&daemon, &[], &format!("/v1/jobs/{job}"));
    assert_eq!(response.status, 200);
    let job = &response.json()["job"];
    assert_eq!(job["state"], "JOB_STATE_SUCCEEDED");
    assert_eq!(job["result"]["data"]["stdout"], "one\ntwo\n");

    let refused = curl(&daemon, &["-H", "last-event-id: 7"], &path);
    assert_eq!(refused.status, 400, "{refused:?}");
}
