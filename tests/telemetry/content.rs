//! Content of calls on spans: only if enabled, of bounded size, and without secrets.

use std::collections::BTreeMap;

use jig::api::v1::{RunRequest, SubmitJobRequest};
use opentelemetry_proto::tonic::{
    common::v1::{KeyValue, any_value::Value as AnyValue},
    trace::v1::Span,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    approvals::write_request,
    audit::AuditDirectory,
    invoke::{call, invoke},
    jobs::Jobs,
    support::{Collector, Daemon, Setup, attribute_text, curl, promptly, shell, start_request},
};

const ARGUMENTS: &str = "gen_ai.tool.call.arguments";
const RESULT: &str = "gen_ai.tool.call.result";
const COMMAND: &str = "process.command_args";
/// A notebook with an empty cell.
const NOTEBOOK: &str = r#"{"cells": [{"cell_type": "raw", "metadata": {}, "source": ""}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}"#;

/// A daemon with `arguments` that exports its spans, and writes an audit log.
async fn start(arguments: &[&str], table: &str) -> (Collector, AuditDirectory, Daemon) {
    let (collector, endpoint) = Collector::start();
    let audit = AuditDirectory::new();
    let setup = Setup::new().environment("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
    let setup = audit.of(setup.arguments(arguments).workspace_table(table));
    (collector, audit, setup.start().await)
}

async fn stop(daemon: &mut Daemon) {
    daemon.signal(Signal::TERM);
    assert!(promptly("the daemon ends", daemon.wait_for_exit()).await.success());
}

/// The spans that have an attribute.
fn spans_with(spans: &[Span], name: &str) -> usize {
    spans.iter().filter(|span| span.attributes.iter().any(|found| found.key == name)).count()
}

fn json_attribute(span: &Span, name: &str) -> Value {
    let text = attribute_text(&span.attributes, name).unwrap_or_else(|| panic!("{span:#?}"));
    serde_json::from_str(&text).unwrap()
}

/// The texts of an attribute that is a list.
fn list_attribute(attributes: &[KeyValue], name: &str) -> Vec<String> {
    let found = attributes.iter().find(|attribute| attribute.key == name).unwrap();
    let Some(AnyValue::ArrayValue(list)) = &found.value.as_ref().unwrap().value else {
        panic!("{found:?}");
    };
    let texts = list.values.iter().map(|value| match &value.value {
        Some(AnyValue::StringValue(text)) => text.clone(),
        other => panic!("{other:?}"),
    });
    texts.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_captured_only_if_enabled_and_has_a_limit() {
    for (mode, max_bytes) in
        [(None, 0), (Some("off"), 0), (Some("truncated"), 4 << 10), (Some("full"), 64 << 10)]
    {
        let arguments: Vec<_> = mode.iter().flat_map(|mode| ["--capture-content", mode]).collect();
        let (collector, _audit, mut daemon) = start(&arguments, "").await;
        daemon.run(shell("echo out; exit 3")).await;
        let large = format!(": {}; head -c 20000 /dev/zero | tr '\\0' x", "a".repeat(9000));
        daemon.run(RunRequest { max_output_bytes: Some(20_000), ..shell(&large) }).await;
        daemon.tools().write_file(write_request("f", "content of a file")).await.unwrap();
        stop(&mut daemon).await;

        let spans = collector.spans();
        let counts = [ARGUMENTS, RESULT, COMMAND].map(|name| spans_with(&spans, name));
        if max_bytes == 0 {
            assert_eq!(counts, [0; 3], "{mode:?}");
            continue;
        }

        assert_eq!(counts, [3, 3, 2], "{mode:?}");
        let named =
            |name: &str| -> Vec<&Span> { spans.iter().filter(|span| span.name == name).collect() };
        let (tools, processes) = (named("execute_tool run"), named("sh"));
        assert_eq!(json_attribute(tools[0], ARGUMENTS), json!({"command": "echo out; exit 3"}));
        let result = json_attribute(tools[0], RESULT);
        assert_eq!((&result["stdout"], &result["exit_code"]), (&json!("out\n"), &json!(3)));
        let command = list_attribute(&processes[0].attributes, COMMAND);
        assert_eq!(command, ["/bin/sh", "-c", "echo out; exit 3"]);

        // What is cut says so, and is valid JSON.
        let is_cut = mode == Some("truncated");
        for name in [ARGUMENTS, RESULT] {
            let text = attribute_text(&tools[1].attributes, name).unwrap();
            assert!(text.len() <= max_bytes, "{mode:?} {name}: {}", text.len());
            assert_eq!(text.contains("bytes more)"), is_cut, "{mode:?} {name}");
            assert_ne!(json_attribute(tools[1], name), Value::Null);
        }
        let command = list_attribute(&processes[1].attributes, COMMAND);
        assert_eq!(command[2].contains("bytes more)"), is_cut, "{mode:?}");

        // Content of files appears by its size.
        let [write] = named("execute_tool write_file")[..] else { panic!("{spans:#?}") };
        let arguments = json_attribute(write, ARGUMENTS);
        assert_eq!(arguments, json!({"path": "f", "content": "<17 bytes>"}));
    }
}

/// Each tool of a dialect with a parameter that can be secret or is content of a file, with a call
/// that has `canary` there.
fn dialect_calls(canary: &str) -> BTreeMap<&'static str, Vec<(&'static str, Value)>> {
    let new_file = |name: &str| format!("--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+{canary}\n");
    let v4a = format!("*** Begin Patch\n*** Add File: f\n+{canary}\n*** End Patch");
    let operation = json!({"type": "create_file", "path": "g", "diff": format!("+{canary}")});
    let edit = json!({"old_string": canary, "new_string": format!("{canary} and more")});
    BTreeMap::from([
        (
            "claude",
            vec![
                ("Write", json!({"path": "a", "content": canary})),
                (
                    "Edit",
                    json!({"path": "a", "old_string": canary, "new_string": canary.to_owned() + "+"}),
                ),
                ("MultiEdit", json!({"path": "a", "edits": [edit]})),
                ("Write", json!({"path": "n.ipynb", "content": NOTEBOOK})),
                ("NotebookEdit", json!({"path": "n.ipynb", "cell_index": 0, "source": canary})),
            ],
        ),
        (
            "anthropic",
            vec![
                (
                    "str_replace_based_edit_tool",
                    json!({"command": "create", "path": "/workspace/b", "file_text": canary}),
                ),
                (
                    "str_replace_based_edit_tool",
                    json!({"command": "str_replace", "path": "/workspace/b", "old_str": canary, "new_str": canary.to_owned() + "+"}),
                ),
                (
                    "str_replace_based_edit_tool",
                    json!({"command": "insert", "path": "/workspace/b", "insert_line": 0, "insert_text": canary}),
                ),
            ],
        ),
        (
            "openai",
            vec![
                ("apply_patch", json!({"patch": v4a})),
                ("apply_patch", json!({"operation": operation})),
            ],
        ),
        (
            "cli_agent",
            vec![
                ("create_file", json!({"path": "h", "content": canary})),
                (
                    "replace_string_in_file",
                    json!({"path": "h", "old_string": canary, "new_string": canary.to_owned() + "+"}),
                ),
            ],
        ),
        ("dracode", vec![("write_file", json!({"file_path": "i", "content": canary}))]),
        (
            "agentbench",
            vec![
                ("apply_patch", json!({"unified_diff": new_file("j")})),
                ("run", json!({"command": "true", "env": {"TOKEN": canary}})),
            ],
        ),
        (
            "",
            vec![
                ("write_file", json!({"path": "d", "content": canary})),
                ("apply_patch", json!({"unified_diff": new_file("k")})),
            ],
        ),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_captured_or_audited() {
    let [variable, input, content] = ["canary-variable-1", "canary-input-2", "canary-content-3"];
    let table = "[[tools]]\nname = \"login\"\ndescription = \"Logs in.\"\nargv = [\"true\", \"{token}\"]\n\
                 [tools.schema]\nproperties.token = { type = \"string\", writeOnly = true }";
    let (collector, audit, mut daemon) = start(&["--capture-content", "full"], table).await;
    let request = RunRequest {
        env: [("TOKEN".to_owned(), variable.to_owned())].into(),
        stdin: input.as_bytes().to_vec().into(),
        ..shell("cat >/dev/null; [ \"$TOKEN\" ]")
    };
    let params = json!({
        "command": "cat >/dev/null; [ \"$TOKEN\" ]",
        "env": {"TOKEN": variable},
        "stdin": "Y2FuYXJ5LWlucHV0LTI=",
    });

    assert_eq!(daemon.run(request.clone()).await.exit_code, Some(0));
    daemon.start_process(start_request(request)).await.wait_for_exit().await;
    let response = invoke(&daemon, call("", "run", params.clone())).await;
    assert!(response.error.is_none(), "{response:?}");
    let mut jobs = Jobs::of(&daemon);
    let submit = SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: params.to_string(),
        ..SubmitJobRequest::default()
    };
    let job = jobs.submit(submit).await;
    jobs.wait(&job).await;
    let post = |path: &str, headers: &[&str], body: Value| {
        let body = body.to_string();
        let mut arguments = vec!["-H", "content-type: application/json", "--data-raw", &body];
        arguments.extend(headers.iter().flat_map(|header| ["-H", header]));
        let response = curl(&daemon, &arguments, path);
        assert_eq!(response.status, 200, "{path}: {response:?}");
    };
    post("/jig.v1.ToolService/Run", &[], params.clone());
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mcp_params = json!({"name": "run", "arguments": params, "_meta": meta});
    post(
        "/mcp",
        &[
            "accept: application/json, text/event-stream",
            "mcp-protocol-version: 2026-07-28",
            "mcp-method: tools/call",
            "mcp-name: run",
        ],
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": mcp_params}),
    );
    // Tools of the contract are part of each dialect.
    let call_of_batch = json!({"call_id": "1", "name": "run", "arguments": params});
    post(
        "/v1/agent-tools/invoke-batch",
        &[],
        json!({"calls": [call_of_batch], "mode": "sync", "wait_ms": 15_000}),
    );
    let response = invoke(&daemon, call("", "login", json!({"token": variable}))).await;
    assert!(response.error.is_none(), "{response:?}");
    for (dialect, calls) in dialect_calls(content) {
        for (tool, params) in calls {
            let response = invoke(&daemon, call(dialect, tool, params)).await;
            assert!(response.error.is_none(), "{dialect} {response:?}");
        }
    }
    stop(&mut daemon).await;

    let spans = collector.spans();
    let counts = [ARGUMENTS, RESULT].map(|name| spans_with(&spans, name));
    assert!(counts.iter().all(|count| *count >= 22), "{counts:?}");
    let everything = format!("{spans:?}");
    // A result shows content, such as the diff of an edit.
    let arguments: String =
        spans.iter().filter_map(|span| attribute_text(&span.attributes, ARGUMENTS)).collect();
    for (canary, exported) in [
        (variable, &everything),
        (input, &everything),
        ("Y2FuYXJ5LWlucHV0LTI", &everything),
        (content, &arguments),
    ] {
        assert!(!exported.contains(canary), "{canary} in a span");
        assert!(!audit.text().contains(canary), "{canary} in the audit log");
    }
    assert!(audit.lines().len() > 10);
}
