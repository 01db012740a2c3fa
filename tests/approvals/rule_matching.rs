//! Rule matching: normalized paths, runs and starts, uploads and writes. Also authorization that is
//! checked again after an approval.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use jig::api::v1::{
    Action, Approval, CreateRuleRequest, Decision, DeleteRuleRequest, GetApprovalRequest,
    ListApprovalsRequest, ListRulesRequest, OnDisconnect, Rule, RunRequest, StartRequest,
    UploadRequest, UploadStart, transfer_service_client::TransferServiceClient,
    upload_request::Part,
};
use sha2::{Digest as _, Sha256};
use tokio::task::JoinHandle;
use tonic::Status;

use super::{
    ASK_POLICY, approval_client, assert_decided_once, decide, decide_request, find_approval,
    pending_approvals, records_of_type, rule_request, spawn_write, start_with_policy,
    wait_for_pending_approval, wait_for_pending_approvals, write_request,
};
use crate::support::{
    Daemon, KeyFile, Refusal, Setup, eventually, promptly, shell, start_request, with_key,
    with_metadata,
};

async fn create_rule(daemon: &Daemon, request: CreateRuleRequest) -> String {
    let response = approval_client(daemon).create_rule(request).await.unwrap();
    response.into_inner().rule.unwrap().rule_id
}

fn reason(status: &Status) -> String {
    Refusal::from_status(status).reason
}

fn parameter_value<'a>(approval: &'a Approval, name: &str) -> Option<&'a str> {
    let mut parameters = approval.parameters.iter();
    let parameter = parameters.find(|parameter| parameter.name == name);
    parameter.map(|parameter| parameter.value.as_str())
}

fn spawn_upload(
    daemon: &Daemon,
    path: &str,
    create_directories: Option<bool>,
) -> JoinHandle<Result<(), Status>> {
    let digest = Sha256::digest(b"");
    let start = UploadStart {
        path: path.to_owned(),
        sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        create_directories,
        ..UploadStart::default()
    };
    let part = UploadRequest { part: Some(Part::Start(start)) };
    let mut transfers = TransferServiceClient::new(daemon.channel());
    tokio::spawn(async move { transfers.upload(tokio_stream::iter([part])).await.map(drop) })
}

#[tokio::test]
async fn rules_match_normalized_paths() {
    let daemon = start_with_policy(
        "[policy]\nsafe_write = \"deny\"\n[[policy.rules]]\nname = \"prod\"\ntool = \"write_file\"\npattern = '\"path\":\"prod/'\naction = \"deny\"\n[[policy.rules]]\nname = \"src\"\ntool = \"write_file\"\npattern = '\"path\":\"src/'\naction = \"allow\"",
    )
    .await;

    for (path, rule) in [
        ("prod/x", Some("file:prod")),
        ("./prod/x", Some("file:prod")),
        ("/workspace/prod/x", Some("file:prod")),
        ("src/../prod/x", Some("file:prod")),
        ("src/../other", None),
    ] {
        let status = spawn_write(&daemon, write_request(path, "x")).await.unwrap().unwrap_err();
        let refusal = Refusal::from_status(&status);
        assert_eq!(refusal.reason, "POLICY_DENIED", "{path}");
        let rule_id = refusal.metadata.get("rule_id").map(String::as_str);
        assert_eq!(rule_id, rule, "{path}");
    }

    for path in ["src/a", "/workspace/src/b", "./src/c"] {
        spawn_write(&daemon, write_request(path, "x")).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn rule_created_from_a_run_allows_no_start() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let run = daemon.spawn_run(shell("cat"));
    let approval = wait_for_pending_approval(&daemon).await;
    decide(&daemon, decide_request(&approval, Decision::Always)).await.unwrap();
    run.await.unwrap().unwrap();
    daemon.run(shell("cat")).await;
    let mut processes =
        jig::api::v1::process_service_client::ProcessServiceClient::new(daemon.channel());
    // The zero value of an enum stands for no value: the approval shows the default.
    let request = StartRequest {
        on_disconnect: Some(OnDisconnect::Unspecified.into()),
        ..start_request(shell("cat"))
    };
    let start = tokio::spawn(async move { processes.start(request).await.map(drop) });
    let approval = wait_for_pending_approval(&daemon).await;
    assert_eq!(parameter_value(&approval, "on_disconnect"), Some("ON_DISCONNECT_KILL"));

    decide(&daemon, decide_request(&approval, Decision::Deny)).await.unwrap();
    assert_eq!(reason(&start.await.unwrap().unwrap_err()), "APPROVAL_DENIED");

    // A deny rule applies to runs and starts.
    create_rule(&daemon, rule_request("run", r#"^{"command":"true"}$"#, Action::Deny)).await;
    daemon.run_failing(shell("true"), "POLICY_DENIED").await;
    let mut processes =
        jig::api::v1::process_service_client::ProcessServiceClient::new(daemon.channel());
    let status = processes.start(start_request(shell("true"))).await.unwrap_err();
    assert_eq!(reason(&status), "POLICY_DENIED");
}

#[tokio::test]
async fn always_creates_no_rule_for_hidden_input() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let request = RunRequest { stdin: "rm -rf x".into(), ..shell("sh") };
    let run = daemon.spawn_run(request);
    let approval = wait_for_pending_approval(&daemon).await;
    assert_eq!(approval.suggested_pattern, "");

    let result = decide(&daemon, decide_request(&approval, Decision::Always)).await;
    let refusal = Refusal::from_status(&result.unwrap_err());
    assert_eq!(
        (refusal.reason.as_str(), refusal.invalid_fields()),
        ("INVALID_PARAMS", vec!["pattern"])
    );

    let mut request = decide_request(&approval, Decision::Always);
    request.pattern = Some(String::new());
    let result = decide(&daemon, request).await;
    assert_eq!(Refusal::from_status(&result.unwrap_err()).invalid_fields(), ["pattern"]);

    let result = approval_client(&daemon).create_rule(rule_request("run", "", Action::Allow)).await;
    assert_eq!(Refusal::from_status(&result.unwrap_err()).invalid_fields(), ["pattern"]);
    assert_eq!(pending_approvals(&daemon).await.len(), 1, "no decision is stored");

    run.abort();
}

#[tokio::test]
async fn get_approval_returns_the_whole_command() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let command = format!("true first {}; rm -rf last", "x".repeat(120_000));
    let run = daemon.spawn_run(shell(&command));
    let approval = wait_for_pending_approval(&daemon).await;
    let parameter = &approval.parameters[0];
    assert!(parameter.value.starts_with("true first x"));
    assert!(parameter.ending.ends_with("x; rm -rf last"));

    let bytes = parameter.value.len() + parameter.omitted_bytes as usize + parameter.ending.len();
    assert_eq!(bytes, command.len());

    let get_approval = async || {
        let request = GetApprovalRequest { approval_id: approval.approval_id.clone() };
        let response = approval_client(&daemon).get_approval(request).await.unwrap();
        response.into_inner().approval.unwrap()
    };
    let approval_with_command = get_approval().await;
    assert_eq!(parameter_value(&approval_with_command, "command"), Some(command.as_str()));
    assert_eq!(approval_with_command.parameters[0].omitted_bytes, 0);

    decide(&daemon, decide_request(&approval, Decision::Deny)).await.unwrap();
    run.await.unwrap().unwrap_err();

    // After the decision, the daemon stores a part of the command only.
    assert_eq!(&get_approval().await.parameters[0], parameter);

    let unknown = GetApprovalRequest { approval_id: "none".to_owned() };
    let status = approval_client(&daemon).get_approval(unknown).await.unwrap_err();
    assert_eq!(reason(&status), "APPROVAL_NOT_FOUND");

    let patch: String = (0..250)
        .map(|number| format!("--- /dev/null\n+++ b/file-{number}\n@@ -0,0 +1 @@\n+x\n"))
        .collect();
    let request = jig::api::v1::ApplyPatchRequest { unified_diff: patch, ..Default::default() };
    let mut tools = daemon.tools();
    let applying = tokio::spawn(async move { tools.apply_patch(request).await });
    let approval = wait_for_pending_approval(&daemon).await;
    assert_eq!((approval.files_affected.len(), approval.more_files), (100, 150));

    applying.abort();
}

#[tokio::test]
async fn upload_rule_matches_given_fields_and_any_content() {
    let daemon = start_with_policy(
        "[policy]\nsafe_write = \"ask\"\n[[policy.rules]]\nname = \"no\"\ntool = \"write_file\"\npattern = 'create_directories'\naction = \"deny\"",
    )
    .await;
    let result = spawn_upload(&daemon, "f", Some(true)).await.unwrap();
    assert_eq!(reason(&result.unwrap_err()), "POLICY_DENIED");

    let uploading = spawn_upload(&daemon, "f", None);
    let approval = wait_for_pending_approval(&daemon).await;
    let names: Vec<_> =
        approval.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    assert_eq!(names, ["path", "sha256"]);
    assert_eq!(parameter_value(&approval, "sha256").map(str::len), Some(64));
    assert!(!approval.suggested_pattern.contains("e3b0c442"));

    decide(&daemon, decide_request(&approval, Decision::Always)).await.unwrap();
    uploading.await.unwrap().unwrap();
    spawn_upload(&daemon, "f", None).await.unwrap().unwrap();
}

#[tokio::test]
async fn unrelated_rule_changes_deny_no_calls() {
    let daemon = start_with_policy("").await;
    let is_done = Arc::new(AtomicBool::new(false));

    let calls: Vec<_> = (0..4)
        .map(|caller| {
            let (mut tools, is_done) = (daemon.tools(), Arc::clone(&is_done));
            tokio::spawn(async move {
                let mut count = 0;
                while !is_done.load(Ordering::Relaxed) {
                    let path = format!("f{caller}");
                    let id = format!("{caller}-{count}");
                    tools
                        .write_file(with_metadata("jig-request-id", &id, write_request(&path, "x")))
                        .await?;
                    count += 1;
                }
                Ok::<_, Status>(count)
            })
        })
        .collect();
    for _ in 0..40 {
        let rule_id = create_rule(&daemon, rule_request("write_file", "x", Action::Allow)).await;
        let request = DeleteRuleRequest { rule_id };
        approval_client(&daemon).delete_rule(request).await.unwrap();
    }

    is_done.store(true, Ordering::Relaxed);
    for call in calls {
        assert!(call.await.unwrap().unwrap() > 0);
    }
}

#[tokio::test]
async fn new_rule_or_revoked_key_denies_an_approved_call() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("caller", "invoke", &[]);
    let admin = keys.add_key("admin", "admin", &[]);
    let path = keys.path().display().to_string();
    let setup = Setup::new().workspace_table(ASK_POLICY).arguments(&["--keys", &path]);
    let daemon = setup.with_resource(Arc::clone(&keys) as Arc<KeyFile>).start().await;

    let await_approval = async || {
        let mut approvals = Vec::new();
        eventually("a call is pending", async || {
            let request = with_key(&admin, ListApprovalsRequest::default());
            let listed = approval_client(&daemon).list_approvals(request).await.unwrap();
            approvals = listed.into_inner().approvals;
            approvals.len() == 1
        })
        .await;
        approvals.remove(0)
    };

    // A deny rule is created before the decision.
    let run = daemon.spawn_run(with_key(&key, shell("touch denied")));
    let approval = await_approval().await;
    let request = with_key(&admin, rule_request("run", "denied", Action::Deny));
    approval_client(&daemon).create_rule(request).await.unwrap();
    let allow = with_key(&admin, decide_request(&approval, Decision::Allow));
    decide(&daemon, allow).await.unwrap();
    let status = promptly("the call is denied", run).await.unwrap().unwrap_err();
    assert_eq!(reason(&status), "POLICY_DENIED");

    // The caller's key is revoked before the decision.
    let run = daemon.spawn_run(with_key(&key, shell("touch revoked")));
    let approval = await_approval().await;
    assert!(keys.run_jig_key(&["revoke", "caller"]).status.success());

    daemon.reload_config(Daemon::RELOADED).await;
    let allow = with_key(&admin, decide_request(&approval, Decision::Allow));
    let _ended = decide(&daemon, allow).await;
    let status = promptly("the call is denied", run).await.unwrap().unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unauthenticated);
    assert!(!daemon.file("denied").exists() && !daemon.file("revoked").exists());
}

#[tokio::test]
async fn always_approves_similar_pending_calls() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let first = spawn_write(&daemon, write_request("a", "1"));
    let approval = wait_for_pending_approval(&daemon).await;
    let similar = spawn_write(&daemon, write_request("a", "2"));
    let pending = wait_for_pending_approvals(&daemon, 2).await;
    let other_call = spawn_write(&daemon, write_request("b", "1"));
    wait_for_pending_approvals(&daemon, 3).await;
    let decided = decide(&daemon, decide_request(&approval, Decision::Always)).await;
    let rule_id = decided.unwrap().rule.unwrap().rule_id;
    for call in [first, similar] {
        promptly("the file is written", call).await.unwrap().unwrap();
    }

    let decided_by = format!("rule:{rule_id}");
    let approval_of_similar = find_approval(&daemon, &pending[1].approval_id).await;
    assert_eq!(
        (&approval_of_similar.decided_by, &approval_of_similar.rule_id),
        (&decided_by, &rule_id)
    );
    assert_decided_once(&daemon, &approval_of_similar.approval_id);

    let started = records_of_type(&daemon, "tool_call_started");
    let call =
        started.iter().find(|record| record["call_id"] == approval_of_similar.call_id.as_str());
    assert_eq!(call.unwrap()["allowed_by"], decided_by.as_str());
    assert!(!other_call.is_finished());

    other_call.abort();
}

#[tokio::test]
async fn admin_key_for_some_tools_decides_only_their_calls() {
    let keys = Arc::new(KeyFile::new());
    let all_key = keys.add_key("all", "admin", &[]);
    let some_key = keys.add_key("some", "admin", &["--for-tool", "write_file"]);
    let path = keys.path().display().to_string();
    let setup = Setup::new().workspace_table(ASK_POLICY).arguments(&["--keys", &path]);
    let daemon = setup.with_resource(keys).start().await;

    let list = async |key: &str| {
        let request = with_key(key, ListApprovalsRequest::default());
        let listed = approval_client(&daemon).list_approvals(request).await.unwrap();
        listed.into_inner().approvals
    };
    let run = daemon.spawn_run(with_key(&all_key, shell("true")));
    let writing = spawn_write(&daemon, with_key(&some_key, write_request("f", "x")));
    eventually("both calls are pending", async || list(&all_key).await.len() == 2).await;
    let visible = list(&some_key).await;
    assert_eq!(visible.len(), 1);
    assert_eq!(visible[0].tool, "write_file");

    let mut of_run = list(&all_key).await;
    of_run.retain(|approval| approval.tool == "run");
    let request = with_key(&some_key, decide_request(&of_run[0], Decision::Allow));
    let status = decide(&daemon, request).await.unwrap_err();
    assert_eq!(reason(&status), "APPROVAL_NOT_FOUND");

    let request = with_key(&some_key, rule_request("run", "x", Action::Allow));
    let status = approval_client(&daemon).create_rule(request).await.unwrap_err();
    assert_eq!(reason(&status), "FORBIDDEN");

    let request = with_key(&all_key, rule_request("run", "x", Action::Allow));
    let response = approval_client(&daemon).create_rule(request).await.unwrap();
    let rule_id = response.into_inner().rule.unwrap().rule_id;
    let request = with_key(&some_key, ListRulesRequest::default());
    let listed = approval_client(&daemon).list_rules(request).await.unwrap();
    assert_eq!(listed.into_inner().rules, []);

    let request = with_key(&some_key, DeleteRuleRequest { rule_id });
    let status = approval_client(&daemon).delete_rule(request).await.unwrap_err();
    assert_eq!(reason(&status), "RULE_NOT_FOUND");

    // An admin may decide its own calls.
    let request = with_key(&some_key, decide_request(&visible[0], Decision::Allow));
    decide(&daemon, request).await.unwrap();
    writing.await.unwrap().unwrap();
    run.abort();
}

#[tokio::test]
async fn list_rules_returns_pages() {
    let daemon = start_with_policy("").await;

    // Patterns near their maximum size.
    let padding = "x".repeat(16_000);
    for number in 0..5 {
        create_rule(&daemon, rule_request("stat", &format!("{number}{padding}"), Action::Deny))
            .await;
    }

    let list = async |page_size, page_token: &str| {
        let request =
            ListRulesRequest { page_size: Some(page_size), page_token: page_token.to_owned() };
        let listed = approval_client(&daemon).list_rules(request).await;
        listed.map(tonic::Response::into_inner)
    };
    let all = list(100, "").await.unwrap();
    assert_eq!((all.rules.len(), all.next_page_token.as_str()), (5, ""));

    let (mut rules, mut token) = (Vec::new(), String::new());
    loop {
        let page = list(2, &token).await.unwrap();
        assert!(page.rules.len() <= 2);
        rules.extend(page.rules);
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }

    assert_eq!(rules, all.rules);

    let status = list(2, "none").await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).invalid_fields(), ["page_token"]);

    // A restart keeps the order.
    let daemon = daemon.restart().await;
    let listed = approval_client(&daemon).list_rules(ListRulesRequest::default()).await.unwrap();
    let ids =
        |rules: &[Rule]| -> Vec<String> { rules.iter().map(|rule| rule.rule_id.clone()).collect() };
    assert_eq!(ids(&listed.into_inner().rules), ids(&all.rules));
}

#[tokio::test]
async fn approved_call_waits_for_a_permit() {
    let daemon = start_with_policy(
        "[limits]\nconcurrent_calls = 1\nqueue_timeout = \"1s\"\n[[policy.rules]]\nname = \"ask\"\ntool = \"run\"\npattern = \"asked\"\naction = \"ask\"",
    )
    .await;
    let pending_call = daemon.spawn_run(shell("echo asked"));
    let approval = wait_for_pending_approval(&daemon).await;
    let blocker = daemon.spawn_run(shell("touch begun; until [ -e go ]; do sleep 0.01; done"));
    eventually("the command runs", async || daemon.file("begun").exists()).await;
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();

    // The queue timeout applies to other calls, but not to the approved one.
    daemon.run_failing(shell("true"), "RESOURCE_EXHAUSTED").await;
    daemon.run_failing(shell("true"), "RESOURCE_EXHAUSTED").await;
    assert!(!pending_call.is_finished());

    fs::write(daemon.file("go"), "").unwrap();
    blocker.await.unwrap().unwrap();
    let response = promptly("the approved command runs", pending_call).await.unwrap().unwrap();
    assert_eq!(response.stdout, "asked\n");
}

#[tokio::test]
async fn pending_calls_are_limited_in_bytes() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let content = "x".repeat(9_900_000);
    let mut calls = Vec::new();

    let mut rejected = None;
    for number in 0..8 {
        let call = spawn_write(&daemon, write_request(&format!("f{number}"), &content));
        eventually("the call is pending or rejected", async || {
            call.is_finished() || pending_approvals(&daemon).await.len() > calls.len()
        })
        .await;

        if call.is_finished() {
            rejected = Some(call.await.unwrap().unwrap_err());
            break;
        }

        calls.push(call);
    }

    let refusal = Refusal::from_status(&rejected.unwrap());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.message.contains("bytes while it is pending approval"), "{refusal:?}");
    assert!((2..=5).contains(&calls.len()), "{}", calls.len());

    for call in calls {
        call.abort();
    }
}
