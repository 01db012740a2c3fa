//! Telemetry that the daemon exports: the three spans of a call and their parents, metrics and logs,
//! and delivery of the last ones at shutdown.

mod attributes;
mod calls;
mod content;
mod export;
pub(crate) mod metrics;
mod signals;

use std::collections::HashMap;

use jig::api::v1::RunRequest;
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use rustix::process::Signal;
use tonic::{Request, Response, Status};

use crate::support::{Collector, Daemon, Setup, argv, attribute_text, eventually, hex, shell};

/// The span of the caller, the parent of the RPC span.
const CALLER_SPAN_ID: &str = "00f067aa0ba902b7";

/// The spans of a trace, by name.
fn spans_by_name(collector: &Collector, id: &str) -> HashMap<String, Span> {
    let spans = collector.spans_of_trace(id);
    let count = spans.len();
    let named = spans.into_iter().map(|span| (span.name.clone(), span));
    let by_name: HashMap<_, _> = named.collect();
    assert_eq!(by_name.len(), count, "no span is exported twice");
    by_name
}

fn span_status(span: &Span) -> StatusCode {
    span.status.as_ref().map_or(StatusCode::Unset, |status| status.code())
}

/// Calls `Run` as part of the trace `id`.
async fn run_in_trace(
    daemon: &Daemon,
    id: &str,
    request: RunRequest,
) -> Result<jig::api::v1::RunResponse, Status> {
    let mut request = Request::new(request);
    let parent = format!("00-{id}-{CALLER_SPAN_ID}-01");
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    let answer = daemon.tools().run(request).await;
    answer.map(Response::into_inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_exports_three_spans_before_shutdown_completes() {
    let (collector, endpoint) = Collector::start();
    let setup = Setup::new()
        .environment("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
        .environment("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test");
    let mut daemon = setup.start().await;
    let id = |digit: &str| digit.repeat(32);
    let success = shell("echo $TRACEPARENT");

    let response = run_in_trace(&daemon, &id("1"), success).await.unwrap();
    let traceparent = response.stdout.trim().to_owned();
    let exit_3 = argv(&["sh", "-c", "exit 3"]);
    assert_eq!(run_in_trace(&daemon, &id("2"), exit_3).await.unwrap().exit_code, Some(3));

    let timeout = RunRequest { timeout_sec: Some(1), ..shell("sleep 100") };
    run_in_trace(&daemon, &id("3"), timeout).await.unwrap();
    let invalid = RunRequest { timeout_sec: Some(0), ..shell("true") };
    run_in_trace(&daemon, &id("4"), invalid).await.unwrap_err();
    let missing = argv(&["no-such-program"]);
    run_in_trace(&daemon, &id("5"), missing).await.unwrap_err();

    // Spans that are not delivered yet are delivered at shutdown.
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());

    check_success(&collector, &id("1"), &traceparent);
    check_exit_code(&collector, &id("2"));
    check_timeout(&collector, &id("3"));
    check_invalid_request(&collector, &id("4"));
    check_missing_program(&collector, &id("5"));

    let resource = collector.first_resource();
    for (name, value) in [("service.name", "jigd"), ("deployment.environment.name", "test")] {
        assert_eq!(attribute_text(&resource.attributes, name).as_deref(), Some(value), "{name}");
    }
}

/// Success: three nested spans, none with an error.
fn check_success(collector: &Collector, id: &str, traceparent: &str) {
    let spans = spans_by_name(collector, id);
    assert_eq!(spans.len(), 3, "{spans:#?}");

    let (rpc, tool, process) =
        (&spans["jig.v1.ToolService/Run"], &spans["execute_tool run"], &spans["sh"]);
    assert_eq!(rpc.kind(), SpanKind::Server);
    assert_eq!(tool.kind(), SpanKind::Internal);
    assert_eq!(process.kind(), SpanKind::Client);
    assert_eq!(hex(&rpc.parent_span_id), CALLER_SPAN_ID);
    assert_eq!(tool.parent_span_id, rpc.span_id);
    assert_eq!(process.parent_span_id, tool.span_id);

    for span in [rpc, tool, process] {
        assert_eq!(span_status(span), StatusCode::Unset, "{span:#?}");
        assert_eq!(attribute_text(&span.attributes, "error.type"), None);
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    }

    // TRACEPARENT of the command names the process span.
    assert_eq!(traceparent, format!("00-{id}-{}-01", hex(&process.span_id)));

    for (span, name, value) in [
        (rpc, "rpc.system.name", "grpc"),
        (rpc, "rpc.method", "jig.v1.ToolService/Run"),
        (rpc, "rpc.status_code", "OK"),
        (tool, "gen_ai.operation.name", "execute_tool"),
        (tool, "gen_ai.tool.name", "run"),
        (tool, "gen_ai.tool.type", "function"),
        (process, "process.executable.name", "sh"),
        (process, "process.exit.code", "0"),
        (process, "process.working_directory", "/workspace"),
        (process, "jig.sandbox.level", "L3"),
    ] {
        assert_eq!(attribute_text(&span.attributes, name).as_deref(), Some(value), "{name}");
    }

    for id in ["process.pid", "process.vpid"] {
        assert!(attribute_text(&process.attributes, id).is_some(), "{id}");
    }
    assert!(attribute_text(&tool.attributes, "gen_ai.tool.call.id").is_some());
}

/// Exit code 3 is an error of the command: only the process span has it.
fn check_exit_code(collector: &Collector, id: &str) {
    let spans = spans_by_name(collector, id);
    assert_eq!(spans.len(), 3, "{spans:#?}");

    let process = &spans["sh"];
    assert_eq!(span_status(process), StatusCode::Error);
    assert_eq!(attribute_text(&process.attributes, "error.type").as_deref(), Some("exit_nonzero"));
    assert_eq!(attribute_text(&process.attributes, "process.exit.code").as_deref(), Some("3"));
    assert_eq!(span_status(&spans["execute_tool run"]), StatusCode::Unset);
    assert_eq!(span_status(&spans["jig.v1.ToolService/Run"]), StatusCode::Unset);
}

/// A timeout is an error of the tool too, but not of the RPC.
fn check_timeout(collector: &Collector, id: &str) {
    let spans = spans_by_name(collector, id);
    assert_eq!(spans.len(), 3, "{spans:#?}");

    let process = &spans["sh"];
    assert_eq!(attribute_text(&process.attributes, "error.type").as_deref(), Some("timeout"));
    assert_eq!(attribute_text(&process.attributes, "process.exit.code"), None);
    assert_eq!(
        attribute_text(&process.attributes, "jig.process.signal").as_deref(),
        Some("SIGTERM")
    );

    let tool = &spans["execute_tool run"];
    assert_eq!(span_status(tool), StatusCode::Error);
    assert_eq!(attribute_text(&tool.attributes, "error.type").as_deref(), Some("timeout"));

    let rpc = &spans["jig.v1.ToolService/Run"];
    assert_eq!(span_status(rpc), StatusCode::Unset);
    assert_eq!(attribute_text(&rpc.attributes, "rpc.status_code").as_deref(), Some("OK"));
}

/// An invalid request is rejected before the tool span starts.
fn check_invalid_request(collector: &Collector, id: &str) {
    let spans = spans_by_name(collector, id);
    assert_eq!(spans.len(), 1, "{spans:#?}");

    let rpc = &spans["jig.v1.ToolService/Run"];
    assert_eq!(span_status(rpc), StatusCode::Unset, "an invalid request is no error of the server");
    assert_eq!(
        attribute_text(&rpc.attributes, "rpc.status_code").as_deref(),
        Some("INVALID_ARGUMENT")
    );
}

/// A missing program: the tool and the start of the process fail.
fn check_missing_program(collector: &Collector, id: &str) {
    let spans = spans_by_name(collector, id);
    assert_eq!(spans.len(), 3, "{spans:#?}");

    let process = &spans["no-such-program"];
    assert_eq!(attribute_text(&process.attributes, "error.type").as_deref(), Some("spawn_failed"));
    assert_eq!(span_status(&spans["execute_tool run"]), StatusCode::Error);
}

#[tokio::test]
async fn commands_have_a_trace_without_an_endpoint() {
    let daemon = Daemon::start().await;
    let output = daemon.output(shell("echo $TRACEPARENT")).await;
    let parts: Vec<_> = output.trim().split('-').collect();
    assert_eq!(parts.len(), 4, "{output}");
    assert_eq!((parts[0], parts[1].len(), parts[2].len()), ("00", 32, 16));
    assert_ne!(parts[1], "0".repeat(32));
    assert!(!daemon.log().to_lowercase().contains("otlp"), "{}", daemon.log());
}

#[tokio::test]
async fn propagators_select_the_trace_context_commands_receive() {
    let id = "b".repeat(32);
    // Without a propagator, the trace starts anew, and baggage is absent.
    for (list, keeps_trace, baggage, expects_warning) in [
        (None, true, "", false),
        (Some("tracecontext,baggage"), true, "tenant=7", false),
        (Some("none"), false, "", false),
        (Some("b3,baggage"), false, "tenant=7", true),
    ] {
        let mut setup = Setup::new();
        if let Some(list) = list {
            setup = setup.environment("OTEL_PROPAGATORS", list);
        }
        let daemon = setup.start().await;
        let mut request = Request::new(shell("echo \"$TRACEPARENT/$TRACESTATE/$BAGGAGE\""));
        for (name, value) in [
            ("traceparent", format!("00-{id}-{CALLER_SPAN_ID}-01")),
            ("tracestate", "vendor=1".to_owned()),
            ("baggage", "tenant=7".to_owned()),
        ] {
            request.metadata_mut().insert(name, value.parse().unwrap());
        }
        let response = daemon.tools().run(request).await.unwrap().into_inner();
        let parts: Vec<_> = response.stdout.trim_end().split('/').collect();
        assert_eq!(parts.len(), 3, "{list:?}: {response:?}");
        assert_eq!(parts[0].contains(&id), keeps_trace, "{list:?}: {response:?}");
        assert_eq!(parts[1] == "vendor=1", keeps_trace, "{list:?}: {response:?}");
        assert_eq!(parts[2], baggage, "{list:?}: {response:?}");
        let log = daemon.log();
        let warnings: Vec<_> =
            log.lines().filter(|line| line.contains("OTEL_PROPAGATORS")).collect();
        assert_eq!(warnings.len(), usize::from(expects_warning), "{list:?}: {log}");
        if let Some(warning) = warnings.first() {
            assert!(warning.contains("\"b3\"") && warning.contains("tracecontext,baggage,none"));
        }
    }
}

#[tokio::test]
async fn unreachable_collector_does_not_affect_calls() {
    let setup = Setup::new().environment("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    let mut daemon = setup.start().await;
    daemon.output(shell("true")).await;
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());
}

#[tokio::test]
async fn log_lines_are_json_with_the_trace_id_of_their_call() {
    let daemon = Setup::new().arguments(&["--log-level", "debug"]).start().await;

    let id = "a".repeat(32);
    run_in_trace(&daemon, &id, shell("true")).await.unwrap();
    // The daemon logs the end of a call beside its response.
    eventually("the call is logged", async || daemon.log().contains(&id)).await;
    let lines = daemon.log();
    let call_lines: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &serde_json::Value| line["trace_id"] == id.as_str())
        .collect();

    assert!(!call_lines.is_empty(), "{lines}");

    for line in &call_lines {
        assert_eq!(line["tool"], "run", "{line}");
        for name in ["timestamp", "level", "message", "call_id"] {
            assert!(line[name].is_string(), "{name} in {line}");
        }
    }
}
