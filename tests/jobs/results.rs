//! Results of jobs of every tool.

use std::{fs, sync::Arc};

use jig::api::v1::{InvokeStatus, JobState, ListJobsRequest, SubmitJobRequest};
use prost_types::value::Kind;
use serde_json::json;

use super::{Jobs, command_job, expect_result, field, result_data, tool_job};
use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Refusal, Setup, eventually, with_key, with_metadata},
};

#[tokio::test]
async fn job_succeeds_whatever_its_command_exits_with() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);

    let id = jobs.submit(command_job("echo out; echo err >&2; exit 3")).await;
    let job = jobs.wait(&id).await;
    assert_eq!((&*job.tool, &*job.queue, job.priority), ("run", "default", 0));
    assert_eq!((&*job.session, &*job.principal), ("default", "uid:0"));
    assert_eq!(job.step, Some(1));
    assert!(job.submit_time.is_some() && job.start_time.is_some());

    let response = expect_result(job, JobState::Succeeded);
    assert_eq!(response.status(), InvokeStatus::Success);
    assert_eq!((&*response.tool, &*response.job_id), ("run", &*id));
    assert_eq!(response.exit_code, Some(3));

    let data = result_data(&response);
    assert_eq!(data["stdout"], "out\n");
    assert_eq!(data["stderr"], "err\n");
    assert_eq!(data["outcome"], "OUTCOME_EXITED");

    let error = response.error.unwrap();
    assert_eq!(error.error_type, "abnormal_exit");

    let structure = response.data.unwrap();
    assert_eq!(field(&structure, "exit_code"), &Kind::NumberValue(3.0));
    assert_eq!(response.stdout_path, "logs/tool_step_0001_stdout.txt");
    assert_eq!(daemon.artifact(&response.stdout_path).await.0, b"out\n");
}

#[tokio::test]
async fn every_tool_runs_as_a_job() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);

    fs::write(daemon.file("text"), "some text\n").unwrap();
    let notebook = json!({
        "cells": [{"cell_type": "code", "execution_count": null, "id": "a", "metadata": {}, "outputs": [], "source": "1"}],
        "metadata": {"language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    });
    let mut tools = Vec::new();
    for (tool, params, expected) in [
        ("write_file", json!({"path": "a", "content": "x"}), json!({"created": true})),
        ("read_file", json!({"path": "text"}), json!({"content": "some text\n"})),
        ("create_directory", json!({"path": "d"}), json!({"created": ["d"]})),
        ("list_files", json!({}), json!({"files": ["a", "text"]})),
        ("list_dir", json!({"path": "d"}), json!({"entries": []})),
        ("search", json!({"query": "SOME"}), json!({"total_matches": 1})),
        ("move_path", json!({"source": "a", "destination": "d/a"}), json!({"replaced": false})),
        ("delete_path", json!({"path": "d", "recursive": "true"}), json!({"deleted_count": 2})),
        ("stat", json!({"path": "text"}), json!({"size_bytes": 10})),
        (
            "edit_file",
            json!({"path": "text", "edits": [{"old_string": "some", "new_string": "new"}]}),
            json!({"path": null}),
        ),
        (
            "apply_patch",
            json!({"unified_diff": "--- a/text\n+++ b/text\n@@ -1 +1 @@\n-new text\n+newer text\n"}),
            json!({"patch_path": "diffs/step_0011.patch"}),
        ),
        (
            "edit_notebook",
            json!({"path": "n.ipynb", "cell_index": 0, "mode": "REPLACE", "source": "2"}),
            json!({"cell_count": 1}),
        ),
        ("read_notebook", json!({"path": "n.ipynb"}), json!({"language": "python"})),
        ("run", json!({"argv": ["cat", "text"]}), json!({"stdout": "newer text\n"})),
        ("last_command", json!({}), json!({"exit_code": 0})),
    ] {
        tools.push(tool);
        let id = jobs.submit(tool_job(tool, params)).await;
        let response = expect_result(jobs.wait(&id).await, JobState::Succeeded);
        assert_eq!(response.error, None);
        let data = result_data(&response);
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&data[name], value, "{tool}: {data}");
        }
        if tool == "apply_patch" {
            fs::write(daemon.file("n.ipynb"), notebook.to_string()).unwrap();
        }
    }

    let run_id = jobs.submit(tool_job("run", json!({"command": "true"}))).await;
    let id = jobs.submit(tool_job("wait_job", json!({"job_id": run_id}))).await;
    let response = expect_result(jobs.wait(&id).await, JobState::Succeeded);
    assert_eq!(result_data(&response)["output"]["exit_code"], 0);

    tools.push("wait_job");
    let refusal = jobs.try_submit(tool_job("", json!({}))).await;
    assert_eq!(refusal.unwrap_err().invalid_fields(), ["tool"]);

    let refusal = jobs.try_submit(tool_job("dance", json!({}))).await.unwrap_err();
    let (_, tool_names) = refusal.message.split_once("Known: ").unwrap();
    tools.sort_unstable();
    assert_eq!(tool_names, tools.join(", "));
}

#[tokio::test]
async fn tool_error_fails_job_with_its_reason() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);

    let id = jobs.submit(tool_job("read_file", json!({"path": "none"}))).await;
    let response = expect_result(jobs.wait(&id).await, JobState::Failed);
    assert_eq!(response.status(), InvokeStatus::Error);
    assert_eq!(response.data, None);

    let error = response.error.unwrap();
    assert_eq!(error.error_type, "file_not_found");
    assert_eq!(error.message, response.text);
    assert!(!error.suggestion.is_empty());

    let details = error.details.unwrap();
    assert_eq!(field(&details, "path"), &Kind::StringValue("none".to_owned()));
}

#[tokio::test]
async fn invalid_jobs_are_rejected_on_submission() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);

    let mut expect_rejection = async |request, reason: &str, fields: &[&str]| {
        let refusal: Refusal = jobs.try_submit(request).await.unwrap_err();
        assert_eq!(refusal.reason, reason, "{refusal:?}");
        assert_eq!(refusal.invalid_fields(), fields, "{refusal:?}");
        refusal.message
    };
    let text = expect_rejection(tool_job("dance", json!({})), "UNKNOWN_TOOL", &[]).await;
    assert!(text.contains("read_file, "), "{text}");

    let params = json!({"comand": "secret-1", "timeout_sec": 0, "env": {"A=B": "secret-2"}});
    let fields = ["params.comand", "params.timeout_sec"];
    let text = expect_rejection(tool_job("run", params), "INVALID_PARAMS", &fields).await;
    assert!(text.contains("command, ") && !text.contains("secret"), "{text}");

    let params = json!({"timeout_sec": 0, "env": {"A=B": "secret-2"}});
    let fields = ["params.command", "params.env[\"A=B\"]", "params.timeout_sec"];
    expect_rejection(tool_job("run", params), "INVALID_PARAMS", &fields).await;
    expect_rejection(tool_job("read_file", json!({})), "INVALID_PARAMS", &["params.path"]).await;

    let mut both = command_job("true");
    both.params = Some(prost_types::Struct::default());
    expect_rejection(both, "INVALID_PARAMS", &["params", "params_json"]).await;

    for json in ["{\"command\": secret}", "[]", "3"] {
        let mut invalid = command_job("true");
        invalid.params_json = json.to_owned();
        let text = expect_rejection(invalid, "INVALID_PARAMS", &["params_json"]).await;
        assert!(!text.contains("secret"), "{text}");
    }

    let mut invalid = command_job("true");
    invalid.dialect = "zulu".to_owned();
    invalid.priority = Some(101);
    invalid.tool = "x".repeat(65);

    expect_rejection(invalid, "INVALID_PARAMS", &["dialect", "priority", "tool"]).await;

    for queue in ["Upper", "a b", "a/b", &"x".repeat(81)] {
        let mut invalid = command_job("true");
        invalid.queue = Some(queue.to_owned());
        expect_rejection(invalid, "INVALID_PARAMS", &["queue"]).await;
    }
    assert_eq!(jobs.list(ListJobsRequest::default()).await, []);
    assert!(!daemon.state_dir().join("jobs").exists());
}

#[tokio::test]
async fn jobs_are_listed_page_by_page() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);

    let mut ids = Vec::new();
    for number in 0..7 {
        let mut request = command_job("true");
        request.queue = Some(format!("q{}", number % 2));
        ids.push(jobs.submit(request).await);
    }

    for id in &ids {
        jobs.wait(id).await;
    }

    ids.reverse();
    let (mut found, mut token) = (Vec::new(), String::new());
    loop {
        let request =
            ListJobsRequest { page_size: Some(3), page_token: token, ..ListJobsRequest::default() };
        let page = jobs.0.list_jobs(request).await.unwrap().into_inner();
        assert!(page.jobs.iter().all(|job| job.result.is_none()));

        found.extend(page.jobs.into_iter().map(|job| job.job_id));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }

    assert_eq!(found, ids);

    let jobs_of_queue =
        jobs.list(ListJobsRequest { queue: "q1".to_owned(), ..ListJobsRequest::default() });
    assert_eq!(jobs_of_queue.await.len(), 3);

    let unfinished = jobs.list(ListJobsRequest {
        states: vec![JobState::Queued.into(), JobState::Running.into()],
        ..ListJobsRequest::default()
    });
    assert_eq!(unfinished.await, []);

    let invalid = jobs.0.list_jobs(ListJobsRequest {
        states: vec![99],
        page_token: "nonsense".to_owned(),
        page_size: Some(0),
        ..ListJobsRequest::default()
    });
    let refusal = Refusal::from_status(&invalid.await.unwrap_err());
    assert!(refusal.invalid_fields().contains(&"page_size"), "{refusal:?}");
}

#[tokio::test]
async fn request_id_submits_job_once() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);

    let request = || with_metadata("jig-request-id", "once", command_job("echo ran >> runs"));
    let first = jobs.submit(request()).await;
    for _ in 0..5 {
        assert_eq!(jobs.submit(request()).await, first);
    }

    jobs.wait(&first).await;
    assert_eq!(fs::read_to_string(daemon.file("runs")).unwrap(), "ran\n");

    let changed = with_metadata("jig-request-id", "once", command_job("true"));
    let refusal = jobs.try_submit(changed).await.unwrap_err();
    assert_eq!(refusal.reason, "REQUEST_ID_REUSED");
    assert_eq!(jobs.list(ListJobsRequest::default()).await.len(), 1);
}

#[tokio::test]
async fn unknown_job_is_reported_as_not_found() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);
    let request = jig::api::v1::GetJobRequest { job_id: "01JZZZZZZZZZZZZZZZZZZZZZZZ".to_owned() };
    let refusal = Refusal::from_status(&jobs.0.get_job(request).await.unwrap_err());
    assert_eq!(refusal.reason, "JOB_NOT_FOUND");
    // Models read this message too, and cannot call RPCs.
    assert!(refusal.message.contains("use the id"), "{refusal:?}");
}

#[tokio::test]
async fn oldest_results_are_evicted_beyond_max_bytes() {
    let setup = Setup::new().workspace_table("[jobs]\nmax_bytes = 300000\n");
    let daemon = setup.start().await;
    let mut jobs = Jobs::of(&daemon);

    let mut ids = Vec::new();
    for _ in 0..10 {
        let id = jobs.submit(command_job("head -c 60000 /dev/zero")).await;
        jobs.wait(&id).await;
        ids.push(id);
    }

    eventually("the oldest result is evicted", async || {
        let listed = jobs.list(ListJobsRequest::default()).await;
        listed.iter().all(|job| job.job_id != ids[0])
    })
    .await;
    let last = jobs.get(&ids[9]).await;
    assert!(expect_result(last, JobState::Succeeded).text.len() > 60_000);
}

#[tokio::test]
async fn non_finite_numbers_are_rejected_by_field() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);
    let value = |kind| prost_types::Value { kind: Some(kind) };

    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let params = [
            ("command", Kind::StringValue("touch ran".to_owned())),
            ("timeout_sec", Kind::NumberValue(number)),
        ];
        let fields = params.map(|(name, kind)| (name.to_owned(), value(kind)));

        let request = SubmitJobRequest {
            tool: "run".to_owned(),
            params: Some(prost_types::Struct { fields: fields.into() }),
            ..SubmitJobRequest::default()
        };
        let refusal = jobs.try_submit(request).await.unwrap_err();
        assert_eq!(refusal.reason, "INVALID_PARAMS");

        let fields = refusal.violations.iter().map(|violation| &*violation.field);
        assert_eq!(fields.collect::<Vec<_>>(), ["params.timeout_sec"]);
    }

    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn rejected_submission_does_not_consume_its_request_id() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("lister", "invoke", &["--for-tool", "list_files"]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let mut jobs = Jobs::of(&daemon);

    let mut submit = async |tool: &str| {
        let mut request = with_key(&key, tool_job(tool, json!({})));
        let id = "corrected".parse().unwrap();
        request.metadata_mut().insert("jig-request-id", id);
        let submitted = jobs.try_submit(request).await;
        submitted.map(|job| job.tool).map_err(|error| error.reason)
    };
    assert_eq!(submit("no_tool").await, Err("UNKNOWN_TOOL".to_owned()));
    assert_eq!(submit("write_file").await, Err("FORBIDDEN".to_owned()));
    assert_eq!(submit("list_files").await, Ok("list_files".to_owned()));
}
