//! Spans and log lines of calls.

use jig::api::v1::{
    BatchCall, InvokeBatchRequest, InvokeRequest, ReadFileRequest, RunRequest,
    invoke_service_client::InvokeServiceClient,
};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};
use tonic::Request;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest,
};

use super::{CALLER_SPAN_ID, span_status, spans_by_name};
use crate::{
    invoke::{call, invoke},
    support::{Collector, Daemon, Setup, attribute_text, eventually, shell},
};

/// Fields of a call's log line that differ between calls.
const CALL_LOG_FIELDS: [&str; 8] =
    ["method", "tool", "dialect", "called_name", "model_call_id", "status", "reason", "outcome"];

/// A request of session `s1` in a trace.
fn traced_request<T>(id: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let parent = format!("00-{id}-{CALLER_SPAN_ID}-01");
    for (name, value) in [("traceparent", parent.as_str()), ("jig-session", "s1")] {
        request.metadata_mut().insert(name, value.parse().unwrap());
    }
    request
}

fn with_model_call_id(call: InvokeRequest, id: &str) -> InvokeRequest {
    InvokeRequest { request_id: id.to_owned(), ..call }
}

fn missing_file_request() -> ReadFileRequest {
    ReadFileRequest { path: "missing".to_owned(), ..ReadFileRequest::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_carry_principal_tool_and_model_call_id() {
    let (collector, endpoint) = Collector::start();
    let setup = Setup::new().environment("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
    let mut daemon = setup.start().await;
    let [by_name, typed, failed] = ["1", "2", "3"].map(|digit| digit.repeat(32));
    let bash = call("claude", "Bash", json!({"command": "true"}));
    invoke(&daemon, traced_request(&by_name, with_model_call_id(bash, "toolu_1"))).await;
    daemon.run(traced_request(&typed, shell("true"))).await;
    let response = daemon.tools().read_file(traced_request(&failed, missing_file_request())).await;
    response.unwrap_err();
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());

    let spans = spans_by_name(&collector, &by_name);
    let tool = &spans["execute_tool run"];
    let call_id = attribute_text(&tool.attributes, "jig.call.id").unwrap();

    for (name, value) in [
        ("gen_ai.tool.call.id", "toolu_1"),
        ("gen_ai.conversation.id", "s1"),
        ("jig.dialect", "claude"),
        ("jig.called_name", "Bash"),
        ("jig.principal", "uid:0"),
    ] {
        assert_eq!(attribute_text(&tool.attributes, name).as_deref(), Some(value), "{name}");
    }

    let rpc = &spans["jig.v1.InvokeService/Invoke"];
    for (name, value) in [
        ("gen_ai.conversation.id", "s1"),
        ("jig.principal", "uid:0"),
        ("jig.call.id", &call_id),
        ("server.address", daemon.socket().to_str().unwrap()),
    ] {
        assert_eq!(attribute_text(&rpc.attributes, name).as_deref(), Some(value), "{name}");
    }

    assert_eq!(attribute_text(&rpc.attributes, "server.port"), None);

    // Without an id from the model, the span has the call's own id.
    let spans = spans_by_name(&collector, &typed);
    let tool = &spans["execute_tool run"];
    let [model_call_id, call_id] =
        ["gen_ai.tool.call.id", "jig.call.id"].map(|name| attribute_text(&tool.attributes, name));
    assert_eq!(model_call_id, call_id);
    assert_eq!(attribute_text(&tool.attributes, "jig.dialect"), None);

    // The tool failed by the caller's mistake, so the RPC has no error.
    let spans = spans_by_name(&collector, &failed);
    let tool = &spans["execute_tool read_file"];
    assert_eq!(span_status(tool), StatusCode::Error);

    let description = &tool.status.as_ref().unwrap().message;
    assert!(description.contains("missing"), "{description}");
    assert_eq!(attribute_text(&tool.attributes, "error.type").as_deref(), Some("FILE_NOT_FOUND"));

    let rpc = &spans["jig.v1.ToolService/ReadFile"];
    assert_eq!(span_status(rpc), StatusCode::Unset);
    assert_eq!(attribute_text(&rpc.attributes, "error.type"), None);
    assert_eq!(attribute_text(&rpc.attributes, "rpc.status_code").as_deref(), Some("NOT_FOUND"));
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_spans_carry_model_call_ids() {
    let (collector, endpoint) = Collector::start();
    let setup = Setup::new().environment("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
    let mut daemon = setup.start().await;
    let id = "7".repeat(32);
    let call = |id: &str, name: &str, arguments: Value| BatchCall {
        call_id: id.to_owned(),
        name: name.to_owned(),
        arguments_json: arguments.to_string(),
        ..BatchCall::default()
    };

    let batch = InvokeBatchRequest {
        calls: vec![
            call("c1", "run", json!({"command": "true"})),
            call("c2", "list_files", json!({})),
        ],
        ..InvokeBatchRequest::default()
    };

    let mut client = InvokeServiceClient::new(daemon.channel());
    client.invoke_batch(traced_request(&id, batch)).await.unwrap();
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());

    let spans = spans_by_name(&collector, &id);
    for (span, expected) in [("execute_tool run", "c1"), ("execute_tool list_files", "c2")] {
        let call_id = attribute_text(&spans[span].attributes, "gen_ai.tool.call.id");
        assert_eq!(call_id.as_deref(), Some(expected));
    }
}

/// Lists the services by reflection, as grpcurl does, in a trace.
async fn list_services(daemon: &Daemon, id: &str) {
    let list = ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..ServerReflectionRequest::default()
    };
    let mut client = ServerReflectionClient::new(daemon.channel());
    let response =
        client.server_reflection_info(traced_request(id, tokio_stream::once(list))).await;
    let message = response.unwrap().into_inner().message().await.unwrap();

    assert!(message.unwrap().message_response.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_reflection_have_no_spans() {
    let (collector, endpoint) = Collector::start();
    let setup = Setup::new().environment("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
    let mut daemon = setup.start().await;
    let [probe, run, reflection] = ["4", "5", "6"].map(|digit| digit.repeat(32));
    let mut health = HealthClient::new(daemon.channel());
    let response = health.check(traced_request(&probe, HealthCheckRequest::default())).await;
    response.unwrap();
    list_services(&daemon, &reflection).await;
    daemon.run(traced_request(&run, shell("true"))).await;
    daemon.signal(Signal::TERM);

    assert!(daemon.wait_for_exit().await.success());
    assert_eq!(collector.spans_of_trace(&probe).len(), 0);
    assert_eq!(collector.spans_of_trace(&reflection).len(), 0);
    assert_eq!(collector.spans_of_trace(&run).len(), 3);
}

/// The log lines of calls.
fn call_log_lines(daemon: &Daemon) -> Vec<Value> {
    let log = daemon.log();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["message"] == "call").collect()
}

/// The values of [`CALL_LOG_FIELDS`] for each call of the test. `unknown_tool` is the outcome of
/// the call of an unknown tool.
fn expected_call_log(unknown_tool: &Value) -> Value {
    json!([
        ["jig.v1.ToolService/Run", "run", null, null, null, "OK", null, "exited"],
        ["jig.v1.InvokeService/Invoke", "run", "claude", "Bash", "toolu_1", "OK", null, "exited"],
        [
            "jig.v1.InvokeService/Invoke",
            null,
            "claude",
            "Nothing",
            "toolu_2",
            "OK",
            null,
            unknown_tool
        ],
        [
            "jig.v1.ToolService/ReadFile",
            "read_file",
            null,
            null,
            null,
            "NOT_FOUND",
            "FILE_NOT_FOUND",
            "file_not_found"
        ],
        [
            "jig.v1.ToolService/Run",
            "run",
            null,
            null,
            null,
            "INVALID_ARGUMENT",
            "INVALID_PARAMS",
            null
        ],
    ])
}

#[tokio::test]
async fn log_calls_flag_logs_each_call() {
    for flag in [&["--log-calls"][..], &[]] {
        let daemon = Setup::new().arguments(flag).start().await;
        let id = "6".repeat(32);
        daemon.run(traced_request(&id, shell("exit 3"))).await;
        let bash = call("claude", "Bash", json!({"command": "true"}));
        invoke(&daemon, traced_request(&id, with_model_call_id(bash, "toolu_1"))).await;
        let unknown = call("claude", "Nothing", json!({}));
        invoke(&daemon, traced_request(&id, with_model_call_id(unknown, "toolu_2"))).await;
        let response = daemon.tools().read_file(traced_request(&id, missing_file_request())).await;
        response.unwrap_err();

        let invalid = RunRequest { timeout_sec: Some(0), ..shell("true") };
        daemon.try_run(traced_request(&id, invalid)).await.unwrap_err();
        let mut health = HealthClient::new(daemon.channel());
        health.check(HealthCheckRequest::default()).await.unwrap();

        if flag.is_empty() {
            assert_eq!(call_log_lines(&daemon), Vec::<Value>::new());
            continue;
        }

        eventually("all calls are logged", async || call_log_lines(&daemon).len() == 5).await;
        let lines = call_log_lines(&daemon);
        for line in &lines {
            assert_eq!(line["level"], "INFO", "{line}");
            assert_eq!(line["trace_id"], id.as_str(), "{line}");
            assert_eq!(line["principal"], "uid:0", "{line}");
            assert_eq!(line["session"], "s1", "{line}");
            assert!(line["duration_sec"].is_number(), "{line}");
            assert!(line["call_id"].is_string(), "{line}");
        }

        let actual: Vec<_> =
            lines.iter().map(|line| CALL_LOG_FIELDS.map(|name| line[name].clone())).collect();
        assert_eq!(json!(actual), expected_call_log(&lines[2]["outcome"]));
        assert!(lines[2]["outcome"].is_string(), "{}", lines[2]);
        assert_ne!(lines[2]["outcome"], "success");
    }
}

#[tokio::test]
async fn log_writes_lists_as_json_arrays() {
    let daemon = Setup::new().listen_tcp().start().await;
    let line = || {
        let log = daemon.log();
        let mut lines = log.lines();
        lines.find(|line| line.contains("\"serving\"")).map(str::to_owned)
    };
    eventually("the daemon logs that it is serving", async || line().is_some()).await;
    let serving: Value = serde_json::from_str(&line().unwrap()).unwrap();
    let addresses = serving["addresses"].as_array().unwrap();

    let port = format!("127.0.0.1:{}", daemon.port());
    assert!(addresses.contains(&json!(port)), "{serving}");
    assert_eq!(addresses.len(), 2);
}
