//! AgentBench (row A): its envelopes, its events, and the scenarios of its tools.

use jig::api::v1::{InvokeRequest, InvokeStatus, ToolFormat};
use serde_json::{Value as Json, json};

use super::{
    rows,
    stage::{invoke, json_of, list_tools, structure_of},
};
use crate::support::Daemon;

rows!("agentbench": a04_list_files a05_read_file a06_search a07_apply_patch a08_run a10_containment);

fn request(tool: &str, params: Json) -> InvokeRequest {
    InvokeRequest {
        request_id: "req-0001".to_owned(),
        tool: tool.to_owned(),
        params: Some(structure_of(params)),
        dialect: "agentbench".to_owned(),
        ..InvokeRequest::default()
    }
}

fn records(daemon: &Daemon, session: &str) -> Vec<Json> {
    let path = format!("sessions/{session}/events.jsonl");
    let text = std::fs::read_to_string(daemon.state().join(path)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn a01_a_request_is_a_tool_with_params_and_an_id() {
    let daemon = Daemon::start().await;
    std::fs::write(daemon.file("f"), "it\n").unwrap();
    let by_struct = request("read_file", json!({"path": "f", "start_line": 1}));
    let by_text = InvokeRequest {
        params: None,
        params_json: r#"{"path": "f", "start_line": 1}"#.to_owned(),
        ..by_struct.clone()
    };
    let answers = [
        invoke(&daemon, "s", by_struct).await,
        invoke(&daemon, "s", by_text).await,
    ];
    for answer in answers {
        assert_eq!(
            (&*answer.request_id, &*answer.tool),
            ("req-0001", "read_file")
        );
        assert_eq!(json_of(answer.data.unwrap())["content"], "it\n");
    }
    let unknown = invoke(&daemon, "s", request("write_file", json!({}))).await;
    assert_eq!(unknown.status(), InvokeStatus::Error);
    assert_eq!(unknown.error.unwrap().error_type, "unknown_tool");
    let listed = list_tools(&daemon, "agentbench", ToolFormat::JsonSchema).await;
    assert_eq!(
        listed.names,
        ["list_files", "read_file", "search", "apply_patch", "run"]
    );
}

#[tokio::test]
async fn a02_a_result_says_when_and_how_it_went() {
    let daemon = Daemon::start().await;
    let ran = invoke(
        &daemon,
        "s",
        request("run", json!({"command": "sleep 0.2; exit 4"})),
    )
    .await;
    assert_eq!(ran.status(), InvokeStatus::Success);
    assert_eq!((&*ran.request_id, &*ran.tool), ("req-0001", "run"));
    let (started, ended) = (ran.started_at.unwrap(), ran.ended_at.unwrap());
    assert!((started.seconds, started.nanos) < (ended.seconds, ended.nanos));
    assert!(
        (0.2..20.0).contains(&ran.duration_sec),
        "{}",
        ran.duration_sec
    );
    assert_eq!(ran.exit_code, Some(4));
    assert_eq!(ran.stdout_path, "logs/tool_step_0001_stdout.txt");
    assert_eq!(ran.stderr_path, "logs/tool_step_0001_stderr.txt");
    // Only of `run`.
    let listed = invoke(&daemon, "s", request("list_files", json!({}))).await;
    assert_eq!(listed.exit_code, None);
    assert_eq!((&*listed.stdout_path, &*listed.stderr_path), ("", ""));
    assert_eq!(listed.error, None);
    assert_eq!((&*listed.job_id, listed.pending), ("", false));
    // No data where it failed, and no error where it did not.
    let failed = invoke(&daemon, "s", request("read_file", json!({"path": "f"}))).await;
    assert_eq!(
        (failed.status(), &failed.data),
        (InvokeStatus::Error, &None)
    );
    assert!(failed.started_at.is_some() && failed.ended_at.is_some());
}

#[tokio::test]
async fn a03_an_error_has_a_type_a_message_and_details() {
    let daemon = Daemon::start().await;
    let failed = invoke(&daemon, "s", request("read_file", json!({"path": "../x"}))).await;
    let error = failed.error.unwrap();
    assert_eq!(error.error_type, "path_escape");
    assert!(error.message.contains("../x"), "{error:?}");
    assert!(!error.suggestion.is_empty());
    assert_eq!(json_of(error.details.unwrap())["path"], "../x");
    assert_eq!(failed.text, error.message);
}

#[tokio::test]
async fn a07_a_patch_is_kept_and_told() {
    let daemon = Daemon::start().await;
    invoke(&daemon, "s", request("list_files", json!({}))).await;
    let diff = "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n";
    let request = request("apply_patch", json!({ "unified_diff": diff }));
    let applied = invoke(&daemon, "s", request).await;
    assert_eq!(applied.status(), InvokeStatus::Success);
    let (patch, _) = daemon
        .artifact_of("s", "diffs/step_0002.patch")
        .await
        .unwrap();
    assert_eq!(patch, diff.as_bytes());
    let records = records(&daemon, "s");
    let mut events = records.iter();
    let event = events
        .find(|record| record["event"] == "patch_applied")
        .unwrap();
    assert_eq!(event["request_id"], "req-0001");
    assert_eq!(event["changed_files"], json!(["f"]));
}

#[tokio::test]
async fn a09_each_call_has_its_events() {
    let daemon = Daemon::start().await;
    std::fs::write(daemon.file("f"), "it\n").unwrap();
    for path in ["f", "missing"] {
        invoke(&daemon, "s", request("read_file", json!({ "path": path }))).await;
    }
    let records = records(&daemon, "s");
    let names: Vec<_> = records.iter().map(|record| &record["event"]).collect();
    assert_eq!(
        names,
        [
            "tool_call_started",
            "tool_call_finished",
            "tool_call_started",
            "tool_call_finished"
        ]
    );
    for record in &records {
        assert_eq!(record["request_id"], "req-0001");
        assert_eq!(record["tool"], "read_file");
        assert_eq!(
            [&record["dialect"], &record["said_as"]],
            ["agentbench", "read_file"]
        );
    }
    assert_eq!(records[0]["params"]["path"], "f");
    assert_eq!(records[1]["status"], "success");
    assert_eq!(records[3]["status"], "error");
    assert!(records[1]["duration_sec"].as_f64().unwrap() >= 0.0);
}
