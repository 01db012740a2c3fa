//! The Claude Agent SDK (rows C): allowlist, tasks, concurrent calls, and the scenarios of its
//! tools.

use jig::api::v1::{
    CancelJobRequest, GetJobRequest, InvokeRequest, InvokeStatus, JobState, ToolFormat,
    job_service_client::JobServiceClient,
};
use serde_json::{Value as Json, json};

use super::{
    fixture::{invoke, json_of, list_tools, structure_of},
    rows,
};
use crate::support::{Daemon, Setup, eventually};

rows!("claude":
    c01_read c02_write c03_edit c04_multi_edit c05_glob c06_grep c07_ls c08_bash c10_notebook_read
    c10_notebook_edit c12_environment c13_timeouts c16_errors
);

/// Number of concurrent file operations in the document.
const CONCURRENT_FILE_CALLS: usize = 100;

fn request(tool: &str, params: Json) -> InvokeRequest {
    InvokeRequest {
        tool: tool.to_owned(),
        params: Some(structure_of(params)),
        dialect: "claude".to_owned(),
        ..InvokeRequest::default()
    }
}

/// Starts a task and returns the id of its job.
async fn start_task(daemon: &Daemon, command: &str) -> String {
    let started = invoke(daemon, "s", request("Task", json!({ "command": command }))).await;
    assert_eq!(started.status(), InvokeStatus::Success, "{started:?}");
    assert!(started.pending);
    let data = json_of(started.data.unwrap());
    assert_eq!(data, json!({ "success": true, "taskId": started.job_id }));
    started.job_id
}

async fn job_state(daemon: &Daemon, job_id: &str) -> JobState {
    let mut jobs = JobServiceClient::new(daemon.channel());
    let job_id = job_id.to_owned();
    let response = jobs.get_job(GetJobRequest { job_id }).await;
    response.unwrap().into_inner().job.unwrap().state()
}

#[tokio::test]
async fn c09_task_runs_in_background() {
    let daemon = Daemon::start().await;
    let job = start_task(&daemon, "until [ -e go ]; do sleep 0.05; done; echo done > out").await;
    eventually("the task runs", async || job_state(&daemon, &job).await == JobState::Running).await;
    std::fs::write(daemon.file("go"), "").unwrap();
    eventually("the task ends", async || job_state(&daemon, &job).await == JobState::Succeeded)
        .await;
    assert_eq!(std::fs::read(daemon.file("out")).unwrap(), b"done\n");
}

#[tokio::test]
async fn c09_a_task_is_cancelled() {
    let daemon = Daemon::start().await;
    let job = start_task(&daemon, "touch started; sleep 100000").await;
    eventually("the task runs", async || daemon.file("started").exists()).await;
    let mut jobs = JobServiceClient::new(daemon.channel());
    let request = CancelJobRequest { job_id: job.clone() };
    jobs.cancel_job(request).await.unwrap();
    eventually("the task ends", async || job_state(&daemon, &job).await == JobState::Cancelled)
        .await;
}

#[tokio::test]
async fn c09_invalid_task_is_rejected() {
    let daemon = Daemon::start().await;
    for (params, code) in [
        (json!({}), "invalid_params"),
        (json!({"command": ""}), "invalid_params"),
        (json!({"command": ["x"]}), "invalid_params"),
        (json!({"command": "true", "timeout": 5}), "invalid_params"),
        (json!({"command": null}), "invalid_params"),
        (json!({"command": "a\0b"}), "invalid_params"),
        (json!({"command": "true", "cwd": 5}), "invalid_params"),
        (json!({"command": "true", "cwd": "/etc"}), "path_escape"),
        (json!({"command": "true", "cwd": "../x"}), "path_escape"),
    ] {
        let refused = invoke(&daemon, "s", request("Task", params.clone())).await;
        assert_eq!(refused.status(), InvokeStatus::Error, "{params}");
        assert_eq!(refused.error.unwrap().error_type, code, "{params}");
        assert_eq!(json_of(refused.data.unwrap())["is_error"], true);
        assert_eq!((&*refused.job_id, refused.pending), ("", false));
    }
}

#[tokio::test]
async fn c11_all_tools_are_listed_without_allowlist() {
    let daemon = Daemon::start().await;
    let listed = list_tools(&daemon, "claude", ToolFormat::Anthropic).await;
    assert_eq!(
        listed.names,
        [
            "Read",
            "Write",
            "Edit",
            "MultiEdit",
            "Glob",
            "Grep",
            "LS",
            "Bash",
            "Task",
            "NotebookRead",
            "NotebookEdit"
        ]
    );
}

#[tokio::test]
async fn c11_allowlist_hides_other_tools() {
    let policy = "[policy]\nallow_tools = [\"read_file\", \"write_file\", \"edit_file\", \"list_files\", \"search\", \"run\"]";
    let daemon = Setup::new().workspace_table(policy).start().await;
    let listed = list_tools(&daemon, "claude", ToolFormat::Anthropic).await;
    assert_eq!(
        listed.names,
        ["Read", "Write", "Edit", "MultiEdit", "Glob", "Grep", "Bash", "Task"]
    );

    let refused = invoke(&daemon, "s", request("LS", json!({}))).await;
    let error = refused.error.unwrap();
    assert_eq!(error.error_type, "tool_disabled");
    assert!(error.message.contains("disabled LS"), "{}", error.message);
    assert_eq!(json_of(refused.data.unwrap())["is_error"], true);

    let unknown = invoke(&daemon, "s", request("Nothing", json!({}))).await;
    assert!(!unknown.text.contains("LS"), "{}", unknown.text);

    let listed = list_tools(&daemon, "agentbench", ToolFormat::JsonSchema).await;
    assert_eq!(listed.names, ["list_files", "read_file", "search", "run"]);
}

#[tokio::test]
async fn c14_100_file_operations_at_once() {
    let daemon = Setup::new().exclusive().start().await;

    let mut tasks = tokio::task::JoinSet::new();
    let daemon = std::sync::Arc::new(daemon);
    for number in 0..CONCURRENT_FILE_CALLS {
        let daemon = std::sync::Arc::clone(&daemon);
        tasks.spawn(async move {
            let session = format!("s{number}");
            let path = format!("d/f{number}");
            let params = json!({"path": path, "content": session});
            let written = invoke(&daemon, &session, request("Write", params)).await;
            assert_eq!(written.status(), InvokeStatus::Success, "{written:?}");
            let read = invoke(&daemon, &session, request("Read", json!({ "path": path }))).await;
            assert_eq!(json_of(read.data.unwrap())["content"], session.as_str());
        });
    }

    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }

    let listed = invoke(&daemon, "s", request("Glob", json!({"pattern": "d/*"}))).await;
    assert_eq!(json_of(listed.data.unwrap())["count"], CONCURRENT_FILE_CALLS as f64);
}
