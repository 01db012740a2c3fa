//! Who may call tools of the configuration, and who decides: by their own names and risks.

use jig::api::v1::{
    DecideApprovalRequest, Decision, GetJobRequest, InvokeStatus, JobState, ListArtifactsRequest,
    ListJobsRequest, ReadArtifactRequest, Risk, SubmitJobRequest,
    approval_service_client::ApprovalServiceClient, artifact_service_client::ArtifactServiceClient,
    invoke_service_client::InvokeServiceClient, job_service_client::JobServiceClient,
};
use serde_json::json;

use super::{TOOLS, invoke_stdout, read_note, start_with_config, start_with_tools};
use crate::{
    approvals::await_pending_approval,
    events::records,
    invoke::{call, invoke, try_invoke},
    jobs::Jobs,
    support::{KeyFile, Refusal, Setup, with_key},
};

const NOT_FOUND: Result<&str, &str> = Err("ARTIFACT_NOT_FOUND");

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
    let ended = records.iter().find(|record| record["event"] == "tool_call_finished");
    assert_eq!(ended.unwrap()["tool"], "leave_note");
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
    // What only reads is not asked about.
    invoke_stdout(&daemon, "say_arguments", json!({"word": "a"})).await;
    let response = invoke(&daemon, call("", "take_long", json!({}))).await;
    assert_eq!(response.error.unwrap().error_type, "policy_denied");
    let channel = daemon.channel();
    let invocation = tokio::spawn(async move {
        let params = json!({"note": "asked", "key": "s3cret"});
        let mut client = InvokeServiceClient::new(channel);
        client.invoke(call("", "leave_note", params)).await
    });
    let approval = await_pending_approval(&daemon).await;
    assert_eq!((approval.tool.as_str(), approval.risk()), ("leave_note", Risk::SafeWrite));
    let shown: Vec<_> = approval
        .parameters
        .iter()
        .map(|parameter| (parameter.name.as_str(), parameter.value.as_str()))
        .collect();
    assert_eq!(shown, [("key", "<6 bytes>"), ("note", "asked")]);
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
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("jigd.toml");
    std::fs::write(&config, TOOLS).unwrap();
    let config = config.to_str().unwrap();
    let refused = keys.run_jig_key(&["new", "x", "--for-tool", "say_arguments"]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && stderr.contains("--config"), "{stderr}");
    let flags = ["--for-tool", "say_arguments", "--config", config];
    let key = keys.add_key("few", "invoke", &flags);
    let reader = keys.add_key("reader", "read", &[]);
    let daemon = Setup::new()
        .workspace_table(TOOLS)
        .arguments(&["--keys", keys.path().to_str().unwrap()])
        .start()
        .await;
    let word = || call("", "say_arguments", json!({"word": "a"}));
    let response = invoke(&daemon, with_key(&key, word())).await;
    assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");
    for request in [
        with_key(&key, call("", "grep_word", json!({"word": "a", "file": "b"}))),
        with_key(&key, call("", "run", json!({"command": "true"}))),
        // Not even what it takes.
        with_key(&key, call("", "grep_word", json!({"nothing": 1}))),
        with_key(&reader, word()),
    ] {
        let refused = try_invoke(&daemon, request).await.unwrap_err();
        assert_eq!(refused.reason, "FORBIDDEN", "{refused:?}");
    }
}

#[tokio::test]
async fn b13_dracode_job_is_visible_only_to_keys_for_its_tool() {
    let keys = KeyFile::new();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("jigd.toml");
    std::fs::write(&config, TOOLS).unwrap();
    let config = config.to_str().unwrap();
    let key_for = |name: &str, tool: &str| {
        let flags = ["--for-tool", tool, "--config", config];
        keys.add_key(name, "invoke", &flags)
    };
    let (key, other) = (key_for("few", "say_arguments"), key_for("other", "grep_word"));
    let daemon = Setup::new()
        .workspace_table(TOOLS)
        .arguments(&["--keys", keys.path().to_str().unwrap()])
        .start()
        .await;
    let submission = SubmitJobRequest {
        tool: "say_arguments".to_owned(),
        dialect: "dracode".to_owned(),
        params_json: json!({"word": "a"}).to_string(),
        ..SubmitJobRequest::default()
    };
    let id = Jobs::of(&daemon).submit(with_key(&key, submission)).await;
    let mut jobs = JobServiceClient::new(daemon.channel());
    for (key, is_there) in [(&key, true), (&other, false)] {
        let request = GetJobRequest { job_id: id.clone() };
        let got = jobs.get_job(with_key(key, request)).await;
        assert_eq!(got.is_ok(), is_there, "{got:?}");
        let request = with_key(key, ListJobsRequest::default());
        let listed = jobs.list_jobs(request).await.unwrap().into_inner();
        assert_eq!(listed.jobs.len(), usize::from(is_there), "{listed:?}");
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
    let refused = jobs.try_submit(submission(json!({"nose": 1}))).await;
    let refused = refused.unwrap_err();
    let mut fields = refused.invalid_fields();
    fields.sort_unstable();
    assert_eq!(fields, ["params.nose", "params.note"]);
}

#[tokio::test]
async fn b9_artifacts_require_a_key_for_their_tool() {
    let keys = KeyFile::new();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("jigd.toml");
    std::fs::write(&config, TOOLS).unwrap();
    let key = |name: &str, tool: &str| {
        let flags = ["--for-tool", tool, "--config", config.to_str().unwrap()];
        keys.add_key(name, "invoke", &flags)
    };
    let (sayer, runner) = (key("sayer", "say_arguments"), key("runner", "run"));
    let (noter, all) = (key("noter", "leave_note"), keys.add_key("all", "invoke", &[]));
    let daemon = Setup::new()
        .workspace_table(TOOLS)
        .arguments(&["--keys", keys.path().to_str().unwrap()])
        .start()
        .await;
    for (key, tool, params) in [
        (&sayer, "say_arguments", json!({"word": "a"})),
        (&runner, "run", json!({"command": "echo b"})),
        (&runner, "run", json!({"command": "true"})),
    ] {
        let response = invoke(&daemon, with_key(key, call("", tool, params))).await;
        assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");
    }
    let say_arguments_stdout = "<first=a>\n<-->\n<a>\n<n7>\n<{word}>\n";
    let expected = [
        (&sayer, [Ok(say_arguments_stdout), NOT_FOUND, NOT_FOUND], 1),
        (&runner, [NOT_FOUND, Ok("b\n"), Ok("")], 1),
        (&noter, [NOT_FOUND; 3], 0),
        (&all, [Ok(say_arguments_stdout), Ok("b\n"), Ok("")], 2),
    ];
    let mut artifacts = ArtifactServiceClient::new(daemon.channel());
    for (key, contents, count) in expected {
        for (step, content) in (1..).zip(contents) {
            let path = format!("logs/tool_step_{step:04}_stdout.txt");
            let request = ReadArtifactRequest { path, ..ReadArtifactRequest::default() };
            let read = artifacts.read_artifact(with_key(key, request)).await;
            let read = match read {
                Ok(answer) => {
                    let first = answer.into_inner().message().await.unwrap();
                    Ok(String::from_utf8(first.unwrap().data.into()).unwrap())
                }
                Err(status) => Err(Refusal::from_status(&status).reason),
            };
            assert_eq!(read.as_deref().map_err(|reason| &**reason), content);
        }
        let request = with_key(key, ListArtifactsRequest::default());
        let listed = artifacts.list_artifacts(request).await.unwrap();
        assert_eq!(listed.into_inner().artifacts.len(), count);
    }
    // Nothing was written to standard error, of which there is no file.
    let request = ReadArtifactRequest {
        path: "logs/tool_step_0001_stderr.txt".to_owned(),
        ..ReadArtifactRequest::default()
    };
    let read = artifacts.read_artifact(with_key(&sayer, request)).await;
    let first = read.unwrap().into_inner().message().await.unwrap();
    assert!(first.unwrap().data.is_empty());
}
