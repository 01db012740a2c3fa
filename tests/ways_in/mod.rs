//! One table: the same call by every way in has the same effect, record, span and error.

mod created_workspaces;
mod roles;
mod telemetry;
mod way;

use jig::api::v1::{
    WatchEventsRequest, event_service_client::EventServiceClient, watch_events_response::Item,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use rustix::process::Signal;
use serde_json::{Value, json};

use self::way::{Ask, Way};
use crate::{
    agent_sandbox::TABLE,
    invoke::json_of,
    support::{Collector, Daemon, KeyFile, Setup, attribute_text, with_metadata},
};

/// A rule that denies one command.
pub(crate) const POLICY: &str = "[[policy.rules]]\nname = \"no-denied\"\ntool = \"run\"\n\
                      pattern = '\"denied\"'\naction = \"deny\"";

fn run(command: &str) -> Ask {
    Ask::Run { command: command.to_owned() }
}

fn read(path: &str) -> Ask {
    Ask::ReadFile { path: path.to_owned() }
}

fn made_by(way: Way) -> String {
    format!("made-by-{way:?}")
}

/// The calls of the table, with their results.
fn calls(way: Way) -> Vec<(Ask, Result<String, String>)> {
    let (made, sent) = (made_by(way), format!("sent-by-{way:?}"));
    let download = |path: &str| Ask::Download { path: path.to_owned() };
    let text = || Ok("text\n".to_owned());
    vec![
        (run(&format!("echo out; touch {made}")), Ok("out\n".to_owned())),
        (read("f"), text()),
        (read("missing"), failed("FILE_NOT_FOUND")),
        (upload(&sent, "text\n"), Ok(String::new())),
        (download(&sent), text()),
        (download("missing"), failed("FILE_NOT_FOUND")),
        (delete(&made), Ok(String::new())),
        (run("denied"), failed("POLICY_DENIED")),
    ]
}

fn upload(path: &str, content: &str) -> Ask {
    Ask::Upload { path: path.to_owned(), content: content.to_owned() }
}

fn delete(path: &str) -> Ask {
    Ask::Delete { path: path.to_owned() }
}

fn failed(reason: &str) -> Result<String, String> {
    Err(reason.to_owned())
}

/// Fields of records that do not depend on the way in or the time.
const COMMON_FIELDS: [&str; 11] = [
    "denied_by",
    "error_type",
    "event",
    "exit_code",
    "message",
    "outcome",
    "principal",
    "status",
    "step",
    "stdout_bytes",
    "tool",
];

fn expected_records(way: Way) -> Vec<Value> {
    let mut step = 0;
    let mut records = Vec::new();
    for (ask, _) in calls(way).into_iter().filter(|(ask, _)| way.has(ask)) {
        let (tool, fields) = match &ask {
            Ask::Run { command } if command == "denied" => {
                records.push(json!({
                    "denied_by": "rule:file:no-denied", "event": "tool_call_denied",
                    "principal": "key:agent", "step": 0, "tool": "run",
                }));
                continue;
            }
            Ask::Run { .. } => (
                "run",
                json!({"exit_code": 0, "outcome": "EXITED", "status": "success", "stdout_bytes": 4}),
            ),
            Ask::ReadFile { path } if path == "missing" => {
                let text = "\"missing\" does not exist: list its directory for the existing names";
                let kind = "file_not_found";
                ("read_file", json!({"error_type": kind, "message": text, "status": "error"}))
            }
            Ask::ReadFile { .. } => ("read_file", json!({"status": "success"})),
            Ask::Upload { .. } => ("upload", json!({"status": "success"})),
            Ask::Delete { .. } => ("delete_path", json!({"status": "success"})),
            // It writes no records.
            Ask::Download { .. } => continue,
        };
        step += 1;
        for event in ["tool_call_started", "tool_call_finished"] {
            let mut record =
                json!({"event": event, "principal": "key:agent", "step": step, "tool": tool});
            if event == "tool_call_finished" {
                record.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            }
            records.push(record);
        }
    }
    records
}

/// The records of a session.
pub(crate) async fn session_records(daemon: &Daemon, session: &str, key: &str) -> Vec<Value> {
    let request = WatchEventsRequest { follow: Some(false), ..WatchEventsRequest::default() };
    let mut request = with_metadata("jig-session", session, request);
    request.metadata_mut().insert("x-api-key", key.parse().unwrap());
    let mut client = EventServiceClient::new(daemon.channel());
    let mut responses = client.watch_events(request).await.unwrap().into_inner();
    let mut records = Vec::new();
    while let Some(response) = responses.message().await.unwrap() {
        if let Some(Item::Event(event)) = response.item {
            records.push(json_of(&event.record.unwrap_or_default()));
        }
    }
    records
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_in_gives_the_same_call() {
    let keys = KeyFile::new();
    let path = keys.path();
    let key = keys.add_key("agent", "admin", &[]);
    let authorization = format!("Bearer {key}");
    let (collector, endpoint) = Collector::start();
    let setup = Setup::new()
        .arguments(&["--keys", path.to_str().unwrap()])
        .workspace_table(&format!("{TABLE}\n{POLICY}"));
    let setup = setup.environment("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
    let mut daemon = setup.workspace_file("f", "text\n").start().await;

    for (number, way) in Way::ALL.into_iter().enumerate() {
        let trace = trace_id(number);
        let session = format!("{way:?}");
        let traceparent = format!("00-{trace}-00000000000000aa-01");
        let headers = [
            ("authorization", &*authorization),
            ("jig-session", &session),
            ("traceparent", &traceparent),
        ];
        for (ask, expected) in calls(way).into_iter().filter(|(ask, _)| way.has(ask)) {
            let expected = expected.map_err(|reason| way.visible_reason(&ask, &reason));
            assert_eq!(way.call(&daemon, &headers, &ask).await, expected, "{way:?} {ask:?}");
            if expected.as_deref() == Ok("out\n") {
                assert!(daemon.file(&made_by(way)).exists(), "{way:?}");
            }
        }
        let is_left = !way.has(&delete(""));
        assert_eq!(daemon.file(&made_by(way)).exists(), is_left, "{way:?}");
        let mut records = session_records(&daemon, &session, &key).await;
        for record in &mut records {
            record.as_object_mut().unwrap().retain(|name, _| COMMON_FIELDS.contains(&&**name));
        }
        assert_eq!(records, expected_records(way), "{way:?}");
    }
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());
    for (number, way) in Way::ALL.into_iter().enumerate() {
        let spans = collector.spans_of_trace(&trace_id(number));
        let found: Vec<_> = spans
            .iter()
            .filter(|span| span.name.starts_with("execute_tool"))
            .map(tool_attributes)
            .collect();
        assert_eq!(found, expected_tool_spans(way), "{way:?}");

        let mut rpcs = spans.iter().filter(|span| span.name.contains(".v1."));
        let first = rpcs.next().map(|span| attribute_text(&span.attributes, "rpc.status_code"));
        assert_eq!(first.flatten().as_deref(), Some("OK"), "{way:?}");
    }
}

/// The trace of a way in.
fn trace_id(number: usize) -> String {
    format!("{:032x}", number + 1)
}

/// The attributes of a tool's span that are alike for every way in. An absent one is empty.
fn tool_attributes(span: &Span) -> [String; 5] {
    ["gen_ai.tool.name", "jig.principal", "gen_ai.conversation.id", "error.type", "jig.denied_by"]
        .map(|name| attribute_text(&span.attributes, name).unwrap_or_default())
}

fn expected_tool_spans(way: Way) -> Vec<[String; 5]> {
    let session = format!("{way:?}");
    [
        ("run", "", ""),
        ("read_file", "", ""),
        ("read_file", "FILE_NOT_FOUND", ""),
        ("upload", "", ""),
        ("delete_path", "", ""),
        ("run", "POLICY_DENIED", "rule:file:no-denied"),
    ]
    .into_iter()
    .filter(|(tool, ..)| match *tool {
        "read_file" => way.has(&read("")),
        "upload" => way.has(&upload("", "")),
        "delete_path" => way.has(&delete("")),
        _ => true,
    })
    .map(|(tool, error, rule)| [tool, "key:agent", &session, error, rule].map(str::to_owned))
    .collect()
}

/// Asserts that each way in rejects a key.
async fn assert_rejected(daemon: &Daemon, key: Option<&str>, reason: &str) {
    let key = key.map(|key| format!("Bearer {key}"));
    let headers: Vec<_> = key.iter().map(|key| ("authorization", &**key)).collect();
    for way in Way::ALL {
        let download = Ask::Download { path: "f".to_owned() };
        let changes = [run("touch made"), upload("made", "x"), delete("f")];
        for ask in changes.into_iter().chain([read("f"), read("missing"), download]) {
            if way.has(&ask) {
                let outcome = way.call(daemon, &headers, &ask).await;
                let expected = failed(&way.visible_reason(&ask, reason));
                assert_eq!(outcome, expected, "{way:?} {ask:?}");
            }
        }
    }
    assert!(!daemon.file("made").exists() && daemon.file("f").exists());
}

#[tokio::test]
async fn each_way_in_rejects_the_same_keys() {
    let keys = KeyFile::new();
    let path = keys.path();
    let reader = keys.add_key("reader", "read", &[]);
    let denied = keys.add_key("denied", "invoke", &["--for-tool", "search"]);
    let revoked = keys.add_key("revoked", "admin", &[]);
    let setup = Setup::new().arguments(&["--keys", path.to_str().unwrap()]).workspace_table(TABLE);
    let daemon = setup.workspace_file("f", "text\n").start().await;
    let headers = [("authorization", &*format!("Bearer {revoked}"))];
    for way in Way::ALL {
        assert_eq!(way.call(&daemon, &headers, &run("echo a")).await.as_deref(), Ok("a\n"));
    }

    assert!(keys.run_jig_key(&["revoke", "revoked"]).status.success());
    daemon.reload_config(Daemon::RELOADED).await;
    for key in [None, Some("jig_no-key"), Some(&*revoked)] {
        assert_rejected(&daemon, key, "UNAUTHENTICATED").await;
    }
    assert_rejected(&daemon, Some(&reader), "FORBIDDEN").await;
    assert_rejected(&daemon, Some(&denied), "FORBIDDEN").await;
}
