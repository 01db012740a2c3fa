//! What rules go by: paths in all their spellings, starts and runs, uploads and files that are written; and
//! what is decided again.

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
    ASK_POLICY, approval_client, assert_decided_once, await_pending, await_pending_approval,
    decide, decide_request, events_named, find_approval, pending_approvals, spawn_write,
    start_with_policy, write_request,
};
use crate::support::{
    Daemon, KeyFile, Refusal, Setup, promptly, shell, start_request, with_key, with_metadata,
};

fn new_rule(tool: &str, pattern: &str, action: Action) -> CreateRuleRequest {
    CreateRuleRequest {
        tool: tool.to_owned(),
        pattern: Some(pattern.to_owned()),
        action: action.into(),
        ..CreateRuleRequest::default()
    }
}

async fn create_rule(daemon: &Daemon, request: CreateRuleRequest) -> String {
    let made = approval_client(daemon).create_rule(request).await.unwrap();
    made.into_inner().rule.unwrap().rule_id
}

fn reason(status: &Status) -> String {
    Refusal::from_status(status).reason
}

fn parameter_value<'a>(approval: &'a Approval, name: &str) -> Option<&'a str> {
    let mut parameters = approval.parameters.iter();
    let found = parameters.find(|parameter| parameter.name == name);
    found.map(|parameter| parameter.value.as_str())
}

fn spawn_upload(
    daemon: &Daemon,
    path: &str,
    create_directories: Option<bool>,
) -> JoinHandle<Result<(), Status>> {
    let sum = Sha256::digest(b"");
    let start = UploadStart {
        path: path.to_owned(),
        sha256: sum.iter().map(|byte| format!("{byte:02x}")).collect(),
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
        let refused = spawn_write(&daemon, write_request(path, "x")).await.unwrap().unwrap_err();
        let refusal = Refusal::from_status(&refused);
        assert_eq!(refusal.reason, "POLICY_DENIED", "{path}");
        let by = refusal.metadata.get("rule_id").map(String::as_str);
        assert_eq!(by, rule, "{path}");
    }
    for path in ["src/a", "/workspace/src/b", "./src/c"] {
        spawn_write(&daemon, write_request(path, "x")).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn rule_created_from_a_run_allows_no_start() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let run = daemon.spawn_run(shell("cat"));
    let approval = await_pending_approval(&daemon).await;
    decide(&daemon, decide_request(&approval, Decision::Always)).await.unwrap();
    run.await.unwrap().unwrap();
    daemon.run(shell("cat")).await;
    let mut processes =
        jig::api::v1::process_service_client::ProcessServiceClient::new(daemon.channel());
    // The first value of an enum stands for none: it is told what counts then.
    let request = StartRequest {
        on_disconnect: Some(OnDisconnect::Unspecified.into()),
        ..start_request(shell("cat"))
    };
    let starting = tokio::spawn(async move { processes.start(request).await.map(drop) });
    let approval = await_pending_approval(&daemon).await;
    assert_eq!(parameter_value(&approval, "on_disconnect"), Some("ON_DISCONNECT_KILL"));
    decide(&daemon, decide_request(&approval, Decision::Deny)).await.unwrap();
    assert_eq!(reason(&starting.await.unwrap().unwrap_err()), "APPROVAL_DENIED");
    // One that denies is for both.
    create_rule(&daemon, new_rule("run", r#"^{"command":"true"}$"#, Action::Deny)).await;
    daemon.run_failing(shell("true"), "POLICY_DENIED").await;
    let mut processes =
        jig::api::v1::process_service_client::ProcessServiceClient::new(daemon.channel());
    let refused = processes.start(start_request(shell("true"))).await.unwrap_err();
    assert_eq!(reason(&refused), "POLICY_DENIED");
}

#[tokio::test]
async fn always_creates_no_rule_for_hidden_input() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let request = RunRequest { stdin: "rm -rf x".into(), ..shell("sh") };
    let run = daemon.spawn_run(request);
    let approval = await_pending_approval(&daemon).await;
    assert_eq!(approval.suggested_pattern, "");
    let refused = decide(&daemon, decide_request(&approval, Decision::Always)).await;
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(
        (refusal.reason.as_str(), refusal.invalid_fields()),
        ("INVALID_PARAMS", vec!["pattern"])
    );
    let mut request = decide_request(&approval, Decision::Always);
    request.pattern = Some(String::new());
    let refused = decide(&daemon, request).await;
    assert_eq!(Refusal::from_status(&refused.unwrap_err()).invalid_fields(), ["pattern"]);
    let refused = approval_client(&daemon).create_rule(new_rule("run", "", Action::Allow)).await;
    assert_eq!(Refusal::from_status(&refused.unwrap_err()).invalid_fields(), ["pattern"]);
    assert_eq!(pending_approvals(&daemon).await.len(), 1, "nothing is decided");
    run.abort();
}

#[tokio::test]
async fn get_approval_returns_the_whole_command() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let command = format!("true first {}; rm -rf last", "x".repeat(120_000));
    let run = daemon.spawn_run(shell(&command));
    let approval = await_pending_approval(&daemon).await;
    let shown = &approval.parameters[0];
    assert!(shown.value.starts_with("true first x"));
    assert!(shown.ending.ends_with("x; rm -rf last"));
    let bytes = shown.value.len() + shown.omitted_bytes as usize + shown.ending.len();
    assert_eq!(bytes, command.len());
    let get = async || {
        let request = GetApprovalRequest { approval_id: approval.approval_id.clone() };
        let found = approval_client(&daemon).get_approval(request).await.unwrap();
        found.into_inner().approval.unwrap()
    };
    let whole = get().await;
    assert_eq!(parameter_value(&whole, "command"), Some(command.as_str()));
    assert_eq!(whole.parameters[0].omitted_bytes, 0);
    decide(&daemon, decide_request(&approval, Decision::Deny)).await.unwrap();
    run.await.unwrap().unwrap_err();
    // Not all of it is kept.
    assert_eq!(&get().await.parameters[0], shown);
    let unknown = GetApprovalRequest { approval_id: "none".to_owned() };
    let refused = approval_client(&daemon).get_approval(unknown).await.unwrap_err();
    assert_eq!(reason(&refused), "APPROVAL_NOT_FOUND");
    let patch: String = (0..250)
        .map(|number| format!("--- /dev/null\n+++ b/file-{number}\n@@ -0,0 +1 @@\n+x\n"))
        .collect();
    let request = jig::api::v1::ApplyPatchRequest { unified_diff: patch, ..Default::default() };
    let mut tools = daemon.tools();
    let applying = tokio::spawn(async move { tools.apply_patch(request).await });
    let approval = await_pending_approval(&daemon).await;
    assert_eq!((approval.files_affected.len(), approval.more_files), (100, 150));
    applying.abort();
}

#[tokio::test]
async fn upload_rule_matches_given_fields_and_any_content() {
    let daemon = start_with_policy(
        "[policy]\nsafe_write = \"ask\"\n[[policy.rules]]\nname = \"no\"\ntool = \"write_file\"\npattern = 'create_directories'\naction = \"deny\"",
    )
    .await;
    let refused = spawn_upload(&daemon, "f", Some(true)).await.unwrap();
    assert_eq!(reason(&refused.unwrap_err()), "POLICY_DENIED");
    let uploading = spawn_upload(&daemon, "f", None);
    let approval = await_pending_approval(&daemon).await;
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
    let is_over = Arc::new(AtomicBool::new(false));
    let calls: Vec<_> = (0..4)
        .map(|caller| {
            let (mut tools, is_over) = (daemon.tools(), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
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
        let rule_id = create_rule(&daemon, new_rule("write_file", "x", Action::Allow)).await;
        let request = DeleteRuleRequest { rule_id };
        approval_client(&daemon).delete_rule(request).await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
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
    let waiting = async || {
        let mut found = Vec::new();
        crate::support::eventually("a call waits", async || {
            let request = with_key(&admin, ListApprovalsRequest::default());
            let listed = approval_client(&daemon).list_approvals(request).await.unwrap();
            found = listed.into_inner().approvals;
            found.len() == 1
        })
        .await;
        found.remove(0)
    };
    // A rule that denies it was made meanwhile.
    let run = daemon.spawn_run(with_key(&key, shell("touch denied")));
    let approval = waiting().await;
    let request = with_key(&admin, new_rule("run", "denied", Action::Deny));
    approval_client(&daemon).create_rule(request).await.unwrap();
    let allow = with_key(&admin, decide_request(&approval, Decision::Allow));
    decide(&daemon, allow).await.unwrap();
    let refused = promptly("it is told", run).await.unwrap().unwrap_err();
    assert_eq!(reason(&refused), "POLICY_DENIED");
    // The key of its caller was taken away meanwhile.
    let run = daemon.spawn_run(with_key(&key, shell("touch revoked")));
    let approval = waiting().await;
    assert!(keys.run_jig_key(&["revoke", "caller"]).status.success());
    daemon.reload_config(Daemon::RELOADED).await;
    let allow = with_key(&admin, decide_request(&approval, Decision::Allow));
    let _ended = decide(&daemon, allow).await;
    let refused = promptly("it is told", run).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    assert!(!daemon.file("denied").exists() && !daemon.file("revoked").exists());
}

#[tokio::test]
async fn always_approves_similar_pending_calls() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let first = spawn_write(&daemon, write_request("a", "1"));
    let approval = await_pending_approval(&daemon).await;
    let alike = spawn_write(&daemon, write_request("a", "2"));
    let waiting = await_pending(&daemon, 2).await;
    let other = spawn_write(&daemon, write_request("b", "1"));
    await_pending(&daemon, 3).await;
    let decided = decide(&daemon, decide_request(&approval, Decision::Always)).await;
    let rule_id = decided.unwrap().rule.unwrap().rule_id;
    for call in [first, alike] {
        promptly("it is written", call).await.unwrap().unwrap();
    }
    let by = format!("rule:{rule_id}");
    let ended = find_approval(&daemon, &waiting[1].approval_id).await;
    assert_eq!((&ended.decided_by, &ended.rule_id), (&by, &rule_id));
    assert_decided_once(&daemon, &ended.approval_id);
    let begun = events_named(&daemon, "tool_call_started");
    let call = begun.iter().find(|record| record["call_id"] == ended.call_id.as_str());
    assert_eq!(call.unwrap()["allowed_by"], by.as_str());
    assert!(!other.is_finished());
    other.abort();
}

#[tokio::test]
async fn admin_key_for_some_tools_decides_only_their_calls() {
    let keys = Arc::new(KeyFile::new());
    let all = keys.add_key("all", "admin", &[]);
    let some = keys.add_key("some", "admin", &["--for-tool", "write_file"]);
    let path = keys.path().display().to_string();
    let setup = Setup::new().workspace_table(ASK_POLICY).arguments(&["--keys", &path]);
    let daemon = setup.with_resource(keys).start().await;
    let list = async |key: &str| {
        let request = with_key(key, ListApprovalsRequest::default());
        let listed = approval_client(&daemon).list_approvals(request).await.unwrap();
        listed.into_inner().approvals
    };
    let run = daemon.spawn_run(with_key(&all, shell("true")));
    let writing = spawn_write(&daemon, with_key(&some, write_request("f", "x")));
    crate::support::eventually("both wait", async || list(&all).await.len() == 2).await;
    let seen = list(&some).await;
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].tool, "write_file");
    let mut both = list(&all).await;
    both.retain(|approval| approval.tool == "run");
    let request = with_key(&some, decide_request(&both[0], Decision::Allow));
    let refused = decide(&daemon, request).await.unwrap_err();
    assert_eq!(reason(&refused), "APPROVAL_NOT_FOUND");
    let request = with_key(&some, new_rule("run", "x", Action::Allow));
    let refused = approval_client(&daemon).create_rule(request).await.unwrap_err();
    assert_eq!(reason(&refused), "FORBIDDEN");
    let request = with_key(&all, new_rule("run", "x", Action::Allow));
    let made = approval_client(&daemon).create_rule(request).await.unwrap();
    let rule_id = made.into_inner().rule.unwrap().rule_id;
    let request = with_key(&some, ListRulesRequest::default());
    let listed = approval_client(&daemon).list_rules(request).await.unwrap();
    assert_eq!(listed.into_inner().rules, []);
    let request = with_key(&some, DeleteRuleRequest { rule_id });
    let refused = approval_client(&daemon).delete_rule(request).await.unwrap_err();
    assert_eq!(reason(&refused), "RULE_NOT_FOUND");
    // Of his own calls, too.
    let request = with_key(&some, decide_request(&seen[0], Decision::Allow));
    decide(&daemon, request).await.unwrap();
    writing.await.unwrap().unwrap();
    run.abort();
}

#[tokio::test]
async fn list_rules_returns_pages() {
    let daemon = start_with_policy("").await;
    // Together they have more bytes than a client takes in one message.
    let long = "x".repeat(16_000);
    for number in 0..5 {
        create_rule(&daemon, new_rule("stat", &format!("{number}{long}"), Action::Deny)).await;
    }
    let list = async |page_size, page_token: &str| {
        let request =
            ListRulesRequest { page_size: Some(page_size), page_token: page_token.to_owned() };
        let listed = approval_client(&daemon).list_rules(request).await;
        listed.map(tonic::Response::into_inner)
    };
    let all = list(100, "").await.unwrap();
    assert_eq!((all.rules.len(), all.next_page_token.as_str()), (5, ""));
    let (mut found, mut token) = (Vec::new(), String::new());
    loop {
        let page = list(2, &token).await.unwrap();
        assert!(page.rules.len() <= 2);
        found.extend(page.rules);
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(found, all.rules);
    let refused = list(2, "none").await.unwrap_err();
    assert_eq!(Refusal::from_status(&refused).invalid_fields(), ["page_token"]);
    // In the same order after a restart.
    let daemon = daemon.restart().await;
    let again = approval_client(&daemon).list_rules(ListRulesRequest::default()).await.unwrap();
    let ids =
        |rules: &[Rule]| -> Vec<String> { rules.iter().map(|rule| rule.rule_id.clone()).collect() };
    assert_eq!(ids(&again.into_inner().rules), ids(&all.rules));
}

#[tokio::test]
async fn approved_call_waits_for_a_permit() {
    let daemon = start_with_policy(
        "[limits]\nconcurrent_calls = 1\nqueue_timeout = \"1s\"\n[[policy.rules]]\nname = \"ask\"\ntool = \"run\"\npattern = \"asked\"\naction = \"ask\"",
    )
    .await;
    let pending_call = daemon.spawn_run(shell("echo asked"));
    let approval = await_pending_approval(&daemon).await;
    let busy = daemon.spawn_run(shell("touch begun; until [ -e go ]; do sleep 0.01; done"));
    crate::support::eventually("it runs", async || daemon.file("begun").exists()).await;
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    // Others are refused after a while; this one is not.
    daemon.run_failing(shell("true"), "RESOURCE_EXHAUSTED").await;
    daemon.run_failing(shell("true"), "RESOURCE_EXHAUSTED").await;
    assert!(!pending_call.is_finished());
    fs::write(daemon.file("go"), "").unwrap();
    busy.await.unwrap().unwrap();
    let answer = promptly("it runs", pending_call).await.unwrap().unwrap();
    assert_eq!(answer.stdout, "asked\n");
}

#[tokio::test]
async fn pending_calls_are_limited_in_bytes() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let content = "x".repeat(9_900_000);
    let mut calls = Vec::new();
    let mut refused = None;
    for number in 0..8 {
        let call = spawn_write(&daemon, write_request(&format!("f{number}"), &content));
        crate::support::eventually("it waits or is refused", async || {
            call.is_finished() || pending_approvals(&daemon).await.len() > calls.len()
        })
        .await;
        if call.is_finished() {
            refused = Some(call.await.unwrap().unwrap_err());
            break;
        }
        calls.push(call);
    }
    let refusal = Refusal::from_status(&refused.unwrap());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.message.contains("bytes while it is pending approval"), "{refusal:?}");
    assert!((2..=5).contains(&calls.len()), "{}", calls.len());
    for call in calls {
        call.abort();
    }
}
