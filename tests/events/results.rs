//! Results of calls in watches: rows C15 and C17 of tests/seeds/README.md.

use std::{fs, sync::Arc};

use jig::api::v1::{
    BatchCall, CallResult, Event, InvokeBatchRequest, InvokeRequest, ResultAbsence,
    SubmitJobRequest, WatchEventsRequest, invoke_service_client::InvokeServiceClient,
    watch_events_response::Item,
};
use serde_json::{Value, json};

use super::{EventWatch, event_record, records, watch_request};
use crate::{
    callers::start_daemon_with_keys,
    invoke::{call, invoke},
    jobs::Jobs,
    support::{Daemon, KeyFile, Setup, with_key},
};

fn request_with_results(after_sequence: u64) -> WatchEventsRequest {
    WatchEventsRequest { with_results: true, ..watch_request(after_sequence) }
}

fn claude_call(id: &str, tool: &str, params: Value) -> InvokeRequest {
    InvokeRequest { request_id: id.to_owned(), ..call("claude", tool, params) }
}

impl EventWatch {
    /// The next result, and the events before it.
    async fn next_result(&mut self) -> (Vec<Event>, CallResult) {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                Some(Item::Event(event)) => events.push(event),
                Some(Item::CallResult(result)) => return (events, result),
                item => panic!("expected an event or a result, got {item:?}"),
            }
        }
    }
}

#[tokio::test]
async fn c15_watch_streams_results_of_calls() {
    let daemon = Daemon::start().await;

    fs::write(daemon.file("f"), "lines of a file").unwrap();
    let mut watch = EventWatch::of(&daemon, request_with_results(0)).await;
    for (id, tool, params, is_error) in [
        ("tool_use_1", "Read", json!({"path": "f"}), false),
        ("tool_use_2", "Read", json!({"path": "missing"}), true),
        ("tool_use_3", "Read", json!({"path": "../f"}), true),
        ("tool_use_4", "Read", json!({"paht": "f"}), true),
        ("tool_use_5", "Bash", json!({"command": "cat f; exit 3"}), false),
        ("tool_use_6", "WebFetch", json!({}), true),
    ] {
        let response = invoke(&daemon, claude_call(id, tool, params)).await;
        let (events, result) = watch.next_result().await;
        assert_eq!(result.request_id, id);
        assert_eq!((&*result.tool, &*result.dialect), (tool, "claude"));
        assert_eq!((&result.content, result.is_error), (&response.text, is_error));
        assert!(!result.content.is_empty() && !result.truncated);
        let last = events.last().unwrap();
        assert_eq!(last.r#type, "tool_call_finished", "{id}");
        assert_eq!((&last.call_id, &*last.request_id), (&result.call_id, id));
        assert_eq!(last.result_absence(), ResultAbsence::Unspecified);
    }

    let response = invoke(&daemon, call("", "read_file", json!({"path": "f"}))).await;
    let (_, result) = watch.next_result().await;
    assert_eq!((&*result.tool, &*result.dialect), ("read_file", ""));
    assert_eq!(result.content, response.text);
    assert_eq!(result.request_id, result.call_id);

    for record in records(&daemon, "default") {
        assert!(!record.to_string().contains("lines of a file"), "{record}");
    }
}

#[tokio::test]
async fn c15_watch_streams_results_of_jobs_and_batches() {
    let daemon = Daemon::start().await;

    fs::write(daemon.file("f"), "of a file").unwrap();
    let mut watch = EventWatch::of(&daemon, request_with_results(0)).await;
    let request = InvokeBatchRequest {
        dialect: "claude".to_owned(),
        calls: vec![BatchCall {
            call_id: "tool_use_1".to_owned(),
            name: "Read".to_owned(),
            arguments_json: json!({"path": "f"}).to_string(),
            ..BatchCall::default()
        }],
        ..InvokeBatchRequest::default()
    };
    let mut client = InvokeServiceClient::new(daemon.channel());
    client.invoke_batch(request).await.unwrap();
    let (events, result) = watch.next_result().await;
    assert_eq!(result.request_id, "tool_use_1");

    let content: Value = serde_json::from_str(&result.content).unwrap();
    assert_eq!(content["content"], "of a file");

    let last = event_record(events.last().unwrap());
    assert_eq!(last["job_id"], result.job_id);
    assert_eq!(last["request_id"], "tool_use_1");

    let mut jobs = Jobs::of(&daemon);
    let submission = SubmitJobRequest {
        tool: "Read".to_owned(),
        dialect: "claude".to_owned(),
        params_json: json!({"path": "missing"}).to_string(),
        ..SubmitJobRequest::default()
    };
    let id = jobs.submit(submission).await;
    let (_, result) = watch.next_result().await;
    assert_eq!((&result.job_id, result.is_error), (&id, true));

    let job = jobs.wait(&id).await;
    assert_eq!(result.content, job.result.unwrap().text);
}

#[tokio::test]
async fn c15_a_repeated_call_has_one_result() {
    let daemon = Daemon::start().await;

    let mut watch = EventWatch::of(&daemon, request_with_results(0)).await;
    let write = || {
        let write = call("claude", "Write", json!({"path": "f", "content": "x"}));
        crate::support::with_metadata("jig-request-id", "once", write)
    };
    let first = invoke(&daemon, write()).await;
    assert_eq!(invoke(&daemon, write()).await.text, first.text);

    invoke(&daemon, call("claude", "Read", json!({"path": "f"}))).await;
    let (_, result) = watch.next_result().await;
    assert_eq!((&*result.tool, &result.content), ("Write", &first.text));
    assert_eq!(watch.next_result().await.1.tool, "Read");
}

#[tokio::test]
async fn c15_past_results_are_absent() {
    let daemon = Daemon::start().await;

    fs::write(daemon.file("f"), "x").unwrap();
    let read = |id: &str| claude_call(id, "Read", json!({"path": "f"}));
    let mut without = EventWatch::of(&daemon, watch_request(0)).await;
    invoke(&daemon, read("before")).await;
    let mut watch = EventWatch::of(&daemon, request_with_results(0)).await;
    invoke(&daemon, read("now")).await;

    let (events, result) = watch.next_result().await;
    assert_eq!(result.request_id, "now");

    let absences = events
        .iter()
        .filter(|event| event.r#type == "tool_call_finished")
        .map(|event| (&*event.request_id, event.result_absence()));
    let expected = [("before", ResultAbsence::Past), ("now", ResultAbsence::Unspecified)];
    assert!(absences.eq(expected), "{events:?}");

    // A watch without results gets neither results nor absences.
    for _ in 0..4 {
        let event = without.next_event().await;
        assert_eq!(event.result_absence(), ResultAbsence::Unspecified);
    }

    let of_type = WatchEventsRequest {
        types: vec!["tool_call_started".to_owned()],
        ..request_with_results(0)
    };
    let mut started = EventWatch::of(&daemon, of_type).await;
    invoke(&daemon, read("more")).await;

    for id in ["before", "now", "more"] {
        assert_eq!(started.next_event().await.request_id, id);
    }

    // After the result that this watch does not get.
    invoke(&daemon, read("last")).await;
    assert_eq!(started.next_event().await.request_id, "last");
}

#[tokio::test]
async fn c15_caller_gets_no_content_of_forbidden_tools() {
    let keys = Arc::new(KeyFile::new());
    let invoke_key = keys.add_key("calls", "invoke", &[]);
    let read_key = keys.add_key("looks", "read", &[]);
    let file_key = keys.add_key("reads", "invoke", &["--for-tool", "read_file"]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;

    fs::write(daemon.file("f"), "secret lines").unwrap();
    let mut read_watch =
        EventWatch::of(&daemon, with_key(&read_key, request_with_results(0))).await;
    let mut file_watch =
        EventWatch::of(&daemon, with_key(&file_key, request_with_results(0))).await;
    let mut invoke_watch =
        EventWatch::of(&daemon, with_key(&invoke_key, request_with_results(0))).await;
    let run = claude_call("run", "Bash", json!({"command": "cat f"}));
    invoke(&daemon, with_key(&invoke_key, run)).await;

    let read = claude_call("read", "Read", json!({"path": "f"}));
    invoke(&daemon, with_key(&invoke_key, read)).await;

    let (_, result) = invoke_watch.next_result().await;
    assert!(result.content.contains("secret lines"), "{result:?}");

    let (events, result) = read_watch.next_result().await;
    assert!(events.iter().any(|event| event.tool == "run"), "{events:?}");
    assert_eq!(result.absence(), ResultAbsence::Forbidden);
    assert_eq!((&*result.request_id, &*result.content), ("run", ""));
    assert!(!result.is_error);

    // A key limited to tools sees no events of other tools.
    let (events, result) = file_watch.next_result().await;
    assert!(events.iter().all(|event| event.tool == "read_file"), "{events:?}");
    assert_eq!(&*result.request_id, "read");
    assert!(result.content.contains("secret lines"), "{result:?}");
}

#[tokio::test]
async fn c17_long_contents_keep_head_and_tail() {
    let daemon = Daemon::start().await;

    let text = format!("begins{}ends", "x".repeat(300_000));
    fs::write(daemon.file("f"), text).unwrap();
    let mut watch = EventWatch::of(&daemon, request_with_results(0)).await;
    invoke(&daemon, claude_call("1", "Read", json!({"path": "f"}))).await;
    let (_, result) = watch.next_result().await;
    assert!(result.truncated && result.content.len() <= 32 << 10);

    let content: Value = serde_json::from_str(&result.content).unwrap();
    let text = content["content"].as_str().unwrap();
    assert!(text.starts_with("begins") && text.ends_with("ends"), "{text}");
}
