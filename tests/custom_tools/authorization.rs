//! Authorization of custom tools: keys, policy and approvals use their names and risks.

use jig::api::v1::{
    DecideApprovalRequest, Decision, GetJobRequest, InvokeStatus, JobState, ListArtifactsRequest,
    ListJobsRequest, ReadArtifactRequest, Risk, SubmitJobRequest,
    approval_service_client::ApprovalServiceClient, artifact_service_client::ArtifactServiceClient,
    invoke_service_client::InvokeServiceClient, job_service_client::JobServiceClient,
};
use serde_json::json;
use tempfile::TempDir;

use super::{TOOLS, invoke_stdout, read_note, start_with_config, start_with_tools};
use crate::{
    approvals::wait_for_pending_approval,
    events::records,
    invoke::{call, invoke, try_invoke},
    jobs::Jobs,
    support::{Daemon, KeyFile, Refusal, Setup, with_key},
};

const NOT_FOUND: Result<&str, &str> = Err("ARTIFACT_NOT_FOUND");

/// Writes a configuration file with the tools, for `jig key new`.
fn write_config() -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("jigd.toml");
    std::fs::write(&config, TOOLS).unwrap();
    (directory, config.display().to_string())
}

async fn start_with_keys(keys: &KeyFile) -> Daemon {
    Setup::new()
        .workspace_table(TOOLS)
        .arguments(&["--keys", keys.path().to_str().unwrap()])
        .start()
        .await
}

#[tokio::test]
async fn b9_record_names_the_tool_and_omits_secrets() {
    let daemon = start_with_tools().await;
    invoke_stdout(&daemon, "leave_note", json!({"note": "n", "key": "s3cret"})).await;
    let records = records(&daemon, "default");
    let started = &records[0];
    assert_eq!(
        (&started["event"], &started["tool"]),
        (&json!("tool_call_started"), &json!("leave_note"))
    );
    assert_eq!(started["params"], json!({"note": "n", "key": "<6 bytes>"}));

    let finished = records.iter().find(|record| record["event"] == "tool_call_finished");
    assert_eq!(finished.unwrap()["tool"], "leave_note");
}

#[tokio::test]
async fn b9_tool_stays_enabled_when_run_is_disabled() {
    let daemon = start_with_config("[policy]\ndeny_tools = ['run', 'take_long']").await;
    assert_eq!(
        invoke_stdout(&daemon, "say_arguments", json!({"word": "a"})).await.lines().count(),
        5
    );

    for (tool, params) in [("run", json!({"command": "true"})), ("take_long", json!({}))] {
        let response = invoke(&daemon, call("", tool, params)).await;
        assert_eq!(response.error.unwrap().error_type, "tool_disabled", "{tool}");
    }
}

#[tokio::test]
async fn b9_rules_match_tool_parameters() {
    let daemon = start_with_config(
        "[[policy.rules]]\nname = 'no_notes'\ntool = 'leave_note'\npattern = '\"note\":\"bad'\naction = 'deny'",
    )
    .await;
    invoke_stdout(&daemon, "leave_note", json!({"note": "good"})).await;

    for note in ["bad", "./bad", "/workspace/x/../bad.txt"] {
        let response = invoke(&daemon, call("", "leave_note", json!({ "note": note }))).await;
        assert_eq!(response.error.unwrap().error_type, "policy_denied", "{note}");
    }

    assert_eq!(read_note(&daemon), "good");
}

#[tokio::test]
async fn b9_tool_risk_decides_whether_approval_is_required() {
    let daemon = start_with_config("[policy]\nsafe_write = 'ask'\ndangerous = 'deny'").await;

    // A read-only tool needs no approval.
    invoke_stdout(&daemon, "say_arguments", json!({"word": "a"})).await;
    let response = invoke(&daemon, call("", "take_long", json!({}))).await;
    assert_eq!(response.error.unwrap().error_type, "policy_denied");

    let channel = daemon.channel();
    let invocation = tokio::spawn(async move {
        let params = json!({"note": "asked", "key": "s3cret"});
        let mut client = InvokeServiceClient::new(channel);
        client.invoke(call("", "leave_note", params)).await
    });
    let approval = wait_for_pending_approval(&daemon).await;
    assert_eq!((approval.tool.as_str(), approval.risk()), ("leave_note", Risk::SafeWrite));

    let parameters: Vec<_> = approval
        .parameters
        .iter()
        .map(|parameter| (parameter.name.as_str(), parameter.value.as_str()))
        .collect();
    assert_eq!(parameters, [("key", "<6 bytes>"), ("note", "asked")]);
    let decision = DecideApprovalRequest {
        approval_id: approval.approval_id,
        decision: Decision::Allow.into(),
        ..DecideApprovalRequest::default()
    };
    let mut approvals = ApprovalServiceClient::new(daemon.channel());
    approvals.decide_approval(decision).await.unwrap();
    let response = invocation.await.unwrap().unwrap().into_inner();
    assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");
    assert_eq!(read_note(&daemon), "asked");
}

#[tokio::test]
async fn b9_keys_grant_the_tool_by_name() {
    let keys = KeyFile::new();
    let (_directory, config) = write_config();
    let output = keys.run_jig_key(&["new", "x", "--for-tool", "say_arguments"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("--config"), "{stderr}");

    let flags = ["--for-tool", "say_arguments", "--config", &config];
    let key = keys.add_key("few", "invoke", &flags);
    let reader = keys.add_key("reader", "read", &[]);
    let daemon = start_with_keys(&keys).await;
    let word = || call("", "say_arguments", json!({"word": "a"}));
    let response = invoke(&daemon, with_key(&key, word())).await;
    assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");

    for request in [
        with_key(&key, call("", "grep_word", json!({"word": "a", "file": "b"}))),
        with_key(&key, call("", "run", json!({"command": "true"}))),
        // The response does not reveal the parameters of the tool.
        with_key(&key, call("", "grep_word", json!({"nothing": 1}))),
        with_key(&reader, word()),
    ] {
        let refusal = try_invoke(&daemon, request).await.unwrap_err();
        assert_eq!(refusal.reason, "FORBIDDEN", "{refusal:?}");
    }
}

#[tokio::test]
async fn b13_dracode_job_is_visible_only_to_keys_for_its_tool() {
    let keys = KeyFile::new();
    let (_directory, config) = write_config();
    let key_for = |name: &str, tool: &str| {
        let flags = ["--for-tool", tool, "--config", &config];
        keys.add_key(name, "invoke", &flags)
    };
    let (key, other_key) = (key_for("few", "say_arguments"), key_for("other", "grep_word"));

    let daemon = start_with_keys(&keys).await;
    let submission = SubmitJobRequest {
        tool: "say_arguments".to_owned(),
        dialect: "dracode".to_owned(),
        params_json: json!({"word": "a"}).to_string(),
        ..SubmitJobRequest::default()
    };

    let id = Jobs::of(&daemon).submit(with_key(&key, submission)).await;
    let mut jobs = JobServiceClient::new(daemon.channel());
    for (key, is_visible) in [(&key, true), (&other_key, false)] {
        let request = GetJobRequest { job_id: id.clone() };
        let response = jobs.get_job(with_key(key, request)).await;
        assert_eq!(response.is_ok(), is_visible, "{response:?}");
        let request = with_key(key, ListJobsRequest::default());
        let listed = jobs.list_jobs(request).await.unwrap().into_inner();
        assert_eq!(listed.jobs.len(), usize::from(is_visible), "{listed:?}");
    }
}

#[tokio::test]
async fn b9_tool_runs_as_a_job() {
    let daemon = start_with_tools().await;
    let mut jobs = Jobs::of(&daemon);
    let submission = |params: serde_json::Value| SubmitJobRequest {
        tool: "leave_note".to_owned(),
        params_json: params.to_string(),
        ..SubmitJobRequest::default()
    };
    let id = jobs.submit(submission(json!({"note": "job"}))).await;
    let job = jobs.wait(&id).await;
    assert_eq!((job.state(), job.tool.as_str()), (JobState::Succeeded, "leave_note"));
    assert_eq!(job.result.unwrap().exit_code, Some(0));
    assert_eq!(read_note(&daemon), "job");

    let refusal = jobs.try_submit(submission(json!({"nose": 1}))).await;
    let refusal = refusal.unwrap_err();
    let mut fields = refusal.invalid_fields();
    fields.sort_unstable();
    assert_eq!(fields, ["params.nose", "params.note"]);
}

#[tokio::test]
async fn b9_artifacts_require_a_key_for_their_tool() {
    let keys = KeyFile::new();
    let (_directory, config) = write_config();
    let key = |name: &str, tool: &str| {
        let flags = ["--for-tool", tool, "--config", &config];
        keys.add_key(name, "invoke", &flags)
    };
    let (say_key, run_key) = (key("sayer", "say_arguments"), key("runner", "run"));
    let (note_key, unrestricted_key) =
        (key("noter", "leave_note"), keys.add_key("all", "invoke", &[]));

    let daemon = start_with_keys(&keys).await;
    for (key, tool, params) in [
        (&say_key, "say_arguments", json!({"word": "a"})),
        (&run_key, "run", json!({"command": "echo b"})),
        (&run_key, "run", json!({"command": "true"})),
    ] {
        let response = invoke(&daemon, with_key(key, call("", tool, params))).await;
        assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");
    }

    let say_arguments_stdout = "<first=a>\n<-->\n<a>\n<n7>\n<{word}>\n";
    let expected = [
        (&say_key, [Ok(say_arguments_stdout), NOT_FOUND, NOT_FOUND], 1),
        (&run_key, [NOT_FOUND, Ok("b\n"), Ok("")], 1),
        (&note_key, [NOT_FOUND; 3], 0),
        (&unrestricted_key, [Ok(say_arguments_stdout), Ok("b\n"), Ok("")], 2),
    ];

    let mut artifacts = ArtifactServiceClient::new(daemon.channel());
    for (key, contents, count) in expected {
        for (step, content) in (1..).zip(contents) {
            let path = format!("logs/tool_step_{step:04}_stdout.txt");
            let request = ReadArtifactRequest { path, ..ReadArtifactRequest::default() };
            let result = artifacts.read_artifact(with_key(key, request)).await;

            let result = match result {
                Ok(response) => {
                    let first = response.into_inner().message().await.unwrap();
                    Ok(String::from_utf8(first.unwrap().data.into()).unwrap())
                }
                Err(status) => Err(Refusal::from_status(&status).reason),
            };
            assert_eq!(result.as_deref().map_err(|reason| &**reason), content);
        }

        let request = with_key(key, ListArtifactsRequest::default());
        let listed = artifacts.list_artifacts(request).await.unwrap();
        assert_eq!(listed.into_inner().artifacts.len(), count);
    }

    // The tool wrote nothing to standard error, whose artifact is empty.
    let request = ReadArtifactRequest {
        path: "logs/tool_step_0001_stderr.txt".to_owned(),
        ..ReadArtifactRequest::default()
    };
    let result = artifacts.read_artifact(with_key(&say_key, request)).await;
    let first = result.unwrap().into_inner().message().await.unwrap();
    assert!(first.unwrap().data.is_empty());
}
