//! AgentBench (rows A): envelopes, events, and the scenarios of its tools.

use jig::api::v1::{InvokeRequest, InvokeStatus, ToolFormat};
use serde_json::{Value as Json, json};

use super::{
    fixture::{invoke, json_of, list_tools, structure_of},
    rows,
};
use crate::{
    events::records,
    support::{Daemon, Setup},
};

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

#[tokio::test]
async fn a01_request_has_tool_params_and_id() {
    let daemon = Daemon::start().await;

    std::fs::write(daemon.file("f"), "text\n").unwrap();
    let by_struct = request("read_file", json!({"path": "f", "start_line": 1}));

    let by_text = InvokeRequest {
        params: None,
        params_json: r#"{"path": "f", "start_line": 1}"#.to_owned(),
        ..by_struct.clone()
    };
    let answers = [invoke(&daemon, "s", by_struct).await, invoke(&daemon, "s", by_text).await];
    for answer in answers {
        assert_eq!((&*answer.request_id, &*answer.tool), ("req-0001", "read_file"));
        assert_eq!(json_of(answer.data.unwrap())["content"], "text\n");
    }

    let unknown = invoke(&daemon, "s", request("write_file", json!({}))).await;
    assert_eq!(unknown.status(), InvokeStatus::Error);
    assert_eq!(unknown.error.unwrap().error_type, "unknown_tool");

    let listed = list_tools(&daemon, "agentbench", ToolFormat::JsonSchema).await;
    assert_eq!(listed.names, ["list_files", "read_file", "search", "apply_patch", "run"]);
}

#[tokio::test]
async fn a02_result_has_times_status_and_exit_code() {
    let daemon = Daemon::start().await;

    let ran = invoke(&daemon, "s", request("run", json!({"command": "sleep 0.2; exit 4"}))).await;
    assert_eq!(ran.status(), InvokeStatus::Success);
    assert_eq!((&*ran.request_id, &*ran.tool), ("req-0001", "run"));

    let (started, ended) = (ran.started_at.unwrap(), ran.ended_at.unwrap());
    assert!((started.seconds, started.nanos) < (ended.seconds, ended.nanos));
    assert!((0.2..20.0).contains(&ran.duration_sec), "{}", ran.duration_sec);
    assert_eq!(ran.exit_code, Some(4));
    assert_eq!(ran.stdout_path, "logs/tool_step_0001_stdout.txt");
    assert_eq!(ran.stderr_path, "logs/tool_step_0001_stderr.txt");

    // Only `run` has an exit code and artifacts.
    let listed = invoke(&daemon, "s", request("list_files", json!({}))).await;
    assert_eq!(listed.exit_code, None);
    assert_eq!((&*listed.stdout_path, &*listed.stderr_path), ("", ""));
    assert_eq!(listed.error, None);
    assert_eq!((&*listed.job_id, listed.pending), ("", false));

    // A failed call has no data.
    let failed = invoke(&daemon, "s", request("read_file", json!({"path": "f"}))).await;
    assert_eq!((failed.status(), &failed.data), (InvokeStatus::Error, &None));
    assert!(failed.started_at.is_some() && failed.ended_at.is_some());
}

#[tokio::test]
async fn a03_error_has_type_message_and_details() {
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
async fn a07_patch_is_stored_and_recorded() {
    let daemon = Daemon::start().await;

    invoke(&daemon, "s", request("list_files", json!({}))).await;
    let diff = "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n";
    let request = request("apply_patch", json!({ "unified_diff": diff }));
    let applied = invoke(&daemon, "s", request).await;
    assert_eq!(applied.status(), InvokeStatus::Success);

    let (patch, _) = daemon.artifact_of_session("s", "diffs/step_0002.patch").await.unwrap();
    assert_eq!(patch, diff.as_bytes());

    let records = records(&daemon, "s");
    let mut events = records.iter();
    let event = events.find(|record| record["event"] == "PATCH_APPLIED").unwrap();
    assert_eq!(event["request_id"], "req-0001");
    assert_eq!(event["changed_files"], json!(["f"]));
}

#[tokio::test]
async fn a09_each_call_has_its_events() {
    let daemon = Daemon::start().await;

    std::fs::write(daemon.file("f"), "text\n").unwrap();
    for path in ["f", "missing"] {
        invoke(&daemon, "s", request("read_file", json!({ "path": path }))).await;
    }

    let records = records(&daemon, "s");
    let names: Vec<_> = records.iter().map(|record| &record["event"]).collect();
    assert_eq!(
        names,
        ["tool_call_started", "tool_call_finished", "tool_call_started", "tool_call_finished"]
    );

    for record in &records {
        assert_eq!(record["request_id"], "req-0001");
        assert_eq!(record["tool"], "read_file");
        assert_eq!([&record["dialect"], &record["called_name"]], ["agentbench", "read_file"]);
    }
    assert_eq!(records[0]["params"]["path"], "f");
    assert_eq!(records[1]["status"], "success");
    assert_eq!(records[3]["status"], "error");
    assert!(records[1]["duration_sec"].as_f64().unwrap() >= 0.0);
}

#[tokio::test]
async fn a02_result_json_matches_the_document() {
    let daemon = Daemon::start().await;

    let invoke_with_result_json = async |tool, params| {
        let request = InvokeRequest { with_result_json: true, ..request(tool, params) };
        let response = invoke(&daemon, "s", request).await;
        assert_eq!((response.data, &*response.text), (None, ""));
        serde_json::from_str::<Json>(&response.result_json).unwrap()
    };
    let ran = invoke_with_result_json("run", json!({"command": "exit 4"})).await;
    let names = [
        "data",
        "duration_sec",
        "ended_at",
        "error",
        "exit_code",
        "request_id",
        "started_at",
        "status",
        "stderr_path",
        "stdout_path",
        "tool",
    ];
    assert!(ran.as_object().unwrap().keys().eq(names), "{ran}");
    assert_eq!(ran["status"], "success");
    assert_eq!(ran["exit_code"].as_i64(), Some(4));
    assert_eq!(ran["data"]["exit_code"].as_i64(), Some(4));
    assert_eq!(ran["stdout_path"], "logs/tool_step_0001_stdout.txt");
    assert!(ran["started_at"].as_str().unwrap().ends_with('Z'), "{ran}");

    std::fs::write(daemon.file("f"), "text\n").unwrap();
    let read = invoke_with_result_json("read_file", json!({"path": "f"})).await;
    assert_eq!(read["data"]["total_lines"].as_i64(), Some(1), "{read}");

    for absent in ["error", "exit_code", "stdout_path", "stderr_path"] {
        assert_eq!(read[absent], Json::Null, "{absent}");
    }

    let failed = invoke_with_result_json("read_file", json!({"path": "../f"})).await;
    assert_eq!([&failed["status"], &failed["data"]], [&json!("error"), &Json::Null]);
    assert_eq!(failed["error"]["error_type"], "path_escape");
    assert_eq!(failed["error"]["details"]["path"], "../f");
}

#[tokio::test]
async fn a08_artifacts_hold_full_output_and_exist_if_empty() {
    let daemon = Daemon::start().await;

    let command = "head -c 300000 /dev/zero | tr '\\0' x";
    let ran = invoke(&daemon, "s", request("run", json!({ "command": command }))).await;
    assert_eq!(ran.status(), InvokeStatus::Success, "{ran:?}");

    let (stdout, _) = daemon.artifact_of_session("s", &ran.stdout_path).await.unwrap();
    assert_eq!(stdout.len(), 300_000);

    let (stderr, _) = daemon.artifact_of_session("s", &ran.stderr_path).await.unwrap();
    assert_eq!(stderr, b"");

    for path in [&ran.stdout_path, &ran.stderr_path] {
        let file = daemon.state_dir().join("sessions/s").join(path);
        assert!(file.exists(), "{path}");
    }
}

#[tokio::test]
async fn a11_rejected_calls_have_events() {
    let daemon = Daemon::start().await;

    for (tool, params, error, recorded_params) in [
        ("read_file", json!({"path": "../x"}), "path_escape", json!({"path": "../x"})),
        ("list_files", json!({"root": "/etc"}), "path_escape", json!({"root": "/etc"})),
        ("search", json!({"glob": "*"}), "invalid_params", json!({"glob": "*"})),
        (
            "apply_patch",
            json!({"unified_diff": "x"}),
            "patch_parse_error",
            json!({"unified_diff": "<1 bytes>"}),
        ),
        ("run", json!({"command": ""}), "invalid_params", json!({"command": ""})),
        ("write_file", json!({"path": "secret"}), "unknown_tool", json!({"path": "<6 bytes>"})),
    ] {
        let session = format!("s-{tool}");
        let refused = invoke(&daemon, &session, request(tool, params)).await;
        assert_eq!(refused.error.unwrap().error_type, error, "{tool}");
        let records = records(&daemon, &session);
        let events: Vec<_> = records.iter().map(|record| &record["event"]).collect();
        assert_eq!(events, ["tool_call_started", "tool_call_finished"], "{tool}");
        for record in &records {
            assert_eq!([&record["tool"], &record["request_id"]], [tool, "req-0001"]);
        }
        assert_eq!(records[0]["params"], recorded_params, "{tool}");
        assert_eq!([&records[1]["status"], &records[1]["error_type"]], ["error", error]);
        assert!(records[1]["duration_sec"].is_f64(), "{tool}");
    }

    // A rejected command is not the last command.
    let list = request("list_files", json!({}));
    invoke(&daemon, "s-run", list).await;

    let request = InvokeRequest {
        tool: "terminal_last_command".to_owned(),
        dialect: "cli_agent".to_owned(),
        ..InvokeRequest::default()
    };
    let last = invoke(&daemon, "s-run", request).await;
    assert_eq!(last.error.unwrap().error_type, "no_command_history");
}

#[tokio::test]
async fn a11_events_record_status_and_params() {
    let daemon = Daemon::start().await;

    std::fs::write(daemon.file("f"), "text\n").unwrap();
    invoke(&daemon, "s", request("list_files", json!({}))).await;
    let timed_out = json!({"command": "exec sleep 1000", "timeout_sec": 1, "env": {"A": "secret"}});
    let timed_out = invoke(&daemon, "s", request("run", timed_out)).await;
    assert_eq!(timed_out.status(), InvokeStatus::Error);

    let records = records(&daemon, "s");
    assert_eq!(records[0]["params"], json!({}));

    let recorded_params =
        json!({"command": "exec sleep 1000", "timeout_sec": 1, "env": "<14 bytes>"});
    assert_eq!(records[2]["params"], recorded_params);
    assert_eq!(records[2]["tool_params"]["command"], "exec sleep 1000");
    assert_eq!([&records[3]["status"], &records[3]["error_type"]], ["error", "timeout"]);
    assert_eq!(records[3]["outcome"], "TIMED_OUT");
}

#[tokio::test]
async fn a12_run_uses_timeout_of_workspace() {
    let daemon = Setup::new().workspace_table("run_timeout = \"1s\"").start().await;
    let timed_out = request("run", json!({"command": "exec sleep 1000"}));
    let timed_out = invoke(&daemon, "s", timed_out).await;
    assert_eq!(timed_out.error.unwrap().error_type, "timeout");
    assert!(timed_out.duration_sec < 60.0, "{}", timed_out.duration_sec);
    let longer = json!({"command": "exec sleep 1.5", "timeout_sec": 100});
    let longer = invoke(&daemon, "s", request("run", longer)).await;
    assert_eq!(longer.exit_code, Some(0));
}
