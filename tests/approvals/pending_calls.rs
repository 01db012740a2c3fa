//! Calls that wait for approval and continue when it is given.

use jig::api::v1::{
    ApprovalState, Decision, DownloadRequest, GetJobRequest, JobState, Risk, RunRequest,
    StartRequest, SubmitJobRequest, UploadRequest, UploadStart, WaitJobRequest,
    invoke_service_client::InvokeServiceClient, job_service_client::JobServiceClient,
    transfer_service_client::TransferServiceClient, upload_request::Part,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{
    ASK_POLICY, assert_decided_once, decide, decide_request, records_of_type, spawn_write,
    start_with_policy, wait_for_pending_approval, wait_for_pending_approvals, write_request,
};
use crate::invoke::call;
use crate::support::{Refusal, describe_status, promptly, shell, start_request, with_metadata};

#[tokio::test]
async fn call_waits_until_an_approver_allows_it() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let run = daemon.spawn_run(shell("echo hello"));
    let approval = wait_for_pending_approval(&daemon).await;
    assert_eq!(approval.state(), ApprovalState::Pending);
    assert_eq!((approval.tool.as_str(), approval.risk()), ("run", Risk::Dangerous));
    assert_eq!(approval.title, "Run a command");
    assert_eq!(approval.workspace, "workspace");
    assert_eq!(approval.session, "default");
    assert_eq!(approval.principal, "uid:0");
    assert_eq!(approval.required_by, "risk:dangerous");

    let parameters: Vec<_> = approval
        .parameters
        .iter()
        .map(|parameter| (parameter.name.as_str(), parameter.value.as_str()))
        .collect();
    assert_eq!(parameters, [("command", "echo hello")]);
    assert!(!run.is_finished());

    let decided = decide(&daemon, decide_request(&approval, Decision::Allow)).await;
    let decided = decided.unwrap().approval.unwrap();
    assert_eq!(decided.state(), ApprovalState::Allowed);
    assert_eq!(decided.decided_by, "uid:0");

    let response = promptly("the command runs", run).await.unwrap().unwrap();
    assert_eq!(response.stdout, "hello\n");

    let event = assert_decided_once(&daemon, &approval.approval_id);
    assert_eq!(event["decided_by"], "uid:0");
    assert_eq!(event["call_id"], approval.call_id.as_str());

    let started = &records_of_type(&daemon, "tool_call_started")[0];
    let allowed_by = format!("approval:{}", approval.approval_id);
    assert_eq!(started["allowed_by"], allowed_by.as_str());
    assert_eq!(started["call_id"], approval.call_id.as_str());

    // Its artifact is stored, although other steps may have started while it waited.
    assert_eq!(daemon.artifact(&response.stderr_path).await.0, b"");
}

#[tokio::test]
async fn denied_caller_gets_the_approver_and_comment() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let run = daemon.spawn_run(shell("touch ran"));
    let approval = wait_for_pending_approval(&daemon).await;
    let mut request = decide_request(&approval, Decision::Deny);
    request.comment = "not on a Friday".to_owned();
    decide(&daemon, request).await.unwrap();
    let status = promptly("the call is denied", run).await.unwrap().unwrap_err();
    let refusal = Refusal::from_status(&status);
    assert_eq!(refusal.reason, "APPROVAL_DENIED");
    assert!(refusal.message.contains("not on a Friday"), "{refusal:?}");
    assert_eq!(refusal.metadata["state"], "DENIED");
    assert_eq!(refusal.metadata["decided_by"], "uid:0");
    assert!(!daemon.file("ran").exists());

    let event = assert_decided_once(&daemon, &approval.approval_id);
    assert_eq!(event["comment"], "not on a Friday");
    assert_eq!(records_of_type(&daemon, "tool_call_started").len(), 0);
}

#[tokio::test]
async fn every_kind_of_call_requires_approval() {
    let daemon = start_with_policy(
        "[policy]\nsafe_write = \"ask\"\n[[policy.rules]]\nname = \"commands\"\ntool = \"run\"\npattern = \"^{\\\"command\\\":\\\"echo\"\naction = \"ask\"\n[[policy.rules]]\nname = \"reading\"\ntool = \"read_file\"\naction = \"ask\"",
    )
    .await;

    // A command that no rule matches needs no approval.
    daemon.run(shell("true")).await;
    let allow_next = async |tool: &str, required_by: &str, files: &[&str]| {
        let approval = wait_for_pending_approval(&daemon).await;
        assert_eq!((approval.tool.as_str(), approval.required_by.as_str()), (tool, required_by));
        assert_eq!(approval.files_affected, files);
        decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    };
    let run = daemon.spawn_run(shell("echo hello"));
    allow_next("run", "rule:file:commands", &[]).await;
    assert_eq!(run.await.unwrap().unwrap().stdout, "hello\n");

    let process = daemon.start_process(start_request(shell("echo hello")));
    let decision = allow_next("run", "rule:file:commands", &[]);
    let (mut process, ()) = tokio::join!(process, decision);
    assert_eq!(process.wait_for_exit().await.exit_code, Some(0));

    let write = spawn_write(&daemon, write_request("./a/../f", "text"));
    allow_next("write_file", "risk:safe_write", &["f"]).await;
    write.await.unwrap().unwrap();

    let start = UploadStart {
        path: "g".to_owned(),
        size_bytes: 0,
        sha256: Sha256::digest(b"").iter().map(|byte| format!("{byte:02x}")).collect(),
        ..UploadStart::default()
    };
    let mut transfers = TransferServiceClient::new(daemon.channel());
    let upload = UploadRequest { part: Some(Part::Start(start)) };
    let mut uploader = transfers.clone();
    let uploaded = tokio::spawn(async move { uploader.upload(tokio_stream::iter([upload])).await });
    allow_next("write_file", "risk:safe_write", &["g"]).await;
    uploaded.await.unwrap().unwrap();
    assert!(daemon.file("g").exists());

    let request = DownloadRequest { path: "f".to_owned(), ..DownloadRequest::default() };
    let download = tokio::spawn(async move {
        let mut parts = transfers.download(request).await?.into_inner();
        parts.message().await
    });
    allow_next("read_file", "rule:file:reading", &["f"]).await;
    let part = download.await.unwrap().unwrap().unwrap();
    assert_eq!(part.data, "text");

    let started = records_of_type(&daemon, "tool_call_started");
    let upload = started.iter().find(|record| record["tool"] == "upload").unwrap();
    assert!(upload["allowed_by"].as_str().unwrap().starts_with("approval:"));
}

#[tokio::test]
async fn approval_lists_normalized_paths_of_the_call() {
    let rules = ["stat", "read_notebook"].map(|tool| {
        format!("[[policy.rules]]\nname = \"{tool}\"\ntool = \"{tool}\"\naction = \"ask\"\n")
    });
    let daemon = start_with_policy(&format!("{ASK_POLICY}\n{}", rules.concat())).await;
    for (tool, params, files) in [
        ("stat", json!({"path": "./a/../f"}), &["f"] as &[&str]),
        ("delete_path", json!({"path": "a//f"}), &["a/f"]),
        ("create_directory", json!({"path": "/workspace/d"}), &["d"]),
        ("move_path", json!({"source": "./f", "destination": "d/../g"}), &["f", "g"]),
        (
            "edit_file",
            json!({"path": "./f", "edits": [{"old_string": "a", "new_string": "b"}]}),
            &["f"],
        ),
        ("read_notebook", json!({"path": "./n.ipynb"}), &["n.ipynb"]),
        (
            "edit_notebook",
            json!({"path": "./n.ipynb", "cell_index": 0, "mode": "CELL_EDIT_DELETE"}),
            &["n.ipynb"],
        ),
    ] {
        let channel = daemon.channel();
        let invocation = tokio::spawn(async move {
            InvokeServiceClient::new(channel).invoke(call("", tool, params)).await
        });
        let approval = wait_for_pending_approval(&daemon).await;
        assert_eq!(approval.tool, tool);
        assert_eq!(approval.files_affected, files, "{tool}");

        decide(&daemon, decide_request(&approval, Decision::Deny)).await.unwrap();
        let response =
            promptly("the call is denied", invocation).await.unwrap().unwrap().into_inner();
        assert_eq!(response.error.unwrap().error_type, "approval_denied", "{tool}");
    }
}

#[tokio::test]
async fn approval_lists_files_that_a_patch_changes() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let patch =
        "--- a/one\n+++ b/one\n@@ -1 +1 @@\n-1\n+2\n--- /dev/null\n+++ b/two\n@@ -0,0 +1 @@\n+x\n";
    std::fs::write(daemon.file("one"), "1\n").unwrap();
    let mut tools = daemon.tools();
    let request =
        jig::api::v1::ApplyPatchRequest { unified_diff: patch.to_owned(), ..Default::default() };
    let applying = tokio::spawn(async move { tools.apply_patch(request).await });
    let approval = wait_for_pending_approval(&daemon).await;
    assert_eq!(approval.files_affected, ["one", "two"]);
    assert_eq!(approval.parameters[0].value, patch);

    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    applying.await.unwrap().unwrap();
    assert_eq!(std::fs::read_to_string(daemon.file("two")).unwrap(), "x\n");
}

#[tokio::test]
async fn approval_wait_does_not_count_toward_the_timeout() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let request = RunRequest { timeout_sec: Some(1), ..shell("echo hello") };
    let run = daemon.spawn_run(request);
    let approval = wait_for_pending_approval(&daemon).await;
    let pending_since = std::time::Instant::now();
    crate::support::eventually("more time passes than the command's timeout", async || {
        pending_since.elapsed().as_millis() > 1200
    })
    .await;
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    assert_eq!(run.await.unwrap().unwrap().stdout, "hello\n");
}

#[tokio::test]
async fn repeated_call_waits_for_the_same_decision() {
    let daemon =
        start_with_policy(&format!("{ASK_POLICY}\n[requests]\ndetached_timeout = \"10s\"")).await;
    let request = || with_metadata("jig-request-id", "one", shell("echo ran >> runs; cat runs"));
    let first = daemon.spawn_run(request());
    let approval = wait_for_pending_approval(&daemon).await;
    let second = daemon.spawn_run(request());

    // The first caller disconnects; the call stays pending for the second.
    first.abort();
    assert!(first.await.is_err());

    let third = daemon.spawn_run(request());
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();

    for call in [second, third] {
        let response = promptly("the call returns", call).await.unwrap().unwrap();
        assert_eq!(response.stdout, "ran\n");
    }

    assert_eq!(daemon.run(request()).await.stdout, "ran\n");
    assert_decided_once(&daemon, &approval.approval_id);

    // A denied call stays denied under its id and asks for no other approval.
    let request = || with_metadata("jig-request-id", "two", shell("touch denied"));
    let denied = daemon.spawn_run(request());
    let repeated = daemon.spawn_run(request());
    let approval = wait_for_pending_approval(&daemon).await;
    decide(&daemon, decide_request(&approval, Decision::Deny)).await.unwrap();
    let third = daemon.spawn_run(request());

    for call in [denied, repeated, third] {
        let status = promptly("the call is denied", call).await.unwrap().unwrap_err();
        assert_eq!(
            Refusal::from_status(&status).reason,
            "APPROVAL_DENIED",
            "{}",
            describe_status(&status)
        );
    }

    assert!(!daemon.file("denied").exists());

    wait_for_pending_approvals(&daemon, 0).await;
}

#[tokio::test]
async fn repeated_start_waits_for_the_same_decision() {
    let daemon =
        start_with_policy(&format!("{ASK_POLICY}\n[requests]\ndetached_timeout = \"10s\"")).await;
    let request = || -> tonic::Request<StartRequest> {
        with_metadata("jig-request-id", "one", start_request(shell("echo ran >> runs; cat runs")))
    };
    let mut processes =
        jig::api::v1::process_service_client::ProcessServiceClient::new(daemon.channel());
    let mut client = processes.clone();
    let first = tokio::spawn(async move { client.start(request()).await.map(drop) });
    let approval = wait_for_pending_approval(&daemon).await;
    first.abort();
    assert!(first.await.is_err());

    let second = tokio::spawn(async move {
        let mut events = processes.start(request()).await?.into_inner();
        let mut count = 0;
        while events.message().await?.is_some() {
            count += 1;
        }
        Ok::<_, tonic::Status>(count)
    });

    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    assert!(promptly("the process exits", second).await.unwrap().unwrap() >= 3);
    assert_eq!(std::fs::read_to_string(daemon.file("runs")).unwrap(), "ran\n");
    assert_decided_once(&daemon, &approval.approval_id);
}

#[tokio::test]
async fn job_waits_for_approval() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let mut jobs = JobServiceClient::new(daemon.channel());
    let submit = SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: r#"{"command":"echo hello > f"}"#.to_owned(),
        ..SubmitJobRequest::default()
    };

    for (decision, expected) in
        [(Decision::Deny, JobState::Failed), (Decision::Allow, JobState::Succeeded)]
    {
        let job = jobs.submit_job(submit.clone()).await.unwrap().into_inner();
        let approval = wait_for_pending_approval(&daemon).await;
        assert_eq!(approval.tool, "run");

        decide(&daemon, decide_request(&approval, decision)).await.unwrap();
        let wait = WaitJobRequest { job_id: job.job.unwrap().job_id, ..WaitJobRequest::default() };
        let response = promptly("the job ends", jobs.wait_job(wait)).await.unwrap();
        assert_eq!(response.into_inner().job.unwrap().state(), expected);
        assert_eq!(daemon.file("f").exists(), expected == JobState::Succeeded);
    }
}

#[tokio::test]
async fn unapproved_job_asks_again_after_a_daemon_restart() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let submit = SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: r#"{"command":"echo ran >> runs"}"#.to_owned(),
        ..SubmitJobRequest::default()
    };
    let mut jobs = JobServiceClient::new(daemon.channel());
    let submitted = jobs.submit_job(submit).await.unwrap().into_inner();
    let job_id = submitted.job.unwrap().job_id;
    let first = wait_for_pending_approval(&daemon).await;
    let daemon = daemon.restart().await;
    let mut jobs = JobServiceClient::new(daemon.channel());
    let second = wait_for_pending_approval(&daemon).await;
    assert_ne!(first.approval_id, second.approval_id);

    let job = GetJobRequest { job_id: job_id.clone() };
    let job = jobs.get_job(job).await.unwrap().into_inner().job.unwrap();
    assert_eq!((job.state(), job.start_time), (JobState::Queued, None));

    decide(&daemon, decide_request(&second, Decision::Allow)).await.unwrap();
    let wait = WaitJobRequest { job_id, ..WaitJobRequest::default() };
    let response = promptly("the job ends", jobs.wait_job(wait)).await.unwrap();
    let job = response.into_inner().job.unwrap();
    assert_eq!(job.state(), JobState::Succeeded);

    let runs = std::fs::read_to_string(daemon.file("runs")).unwrap();
    assert_eq!(runs, "ran\n");
    assert_decided_once(&daemon, &second.approval_id);
}
