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
    ASK, approvals, decide, decision, ended_once, events, file, find, pending, wait_for,
    wait_for_one, with_policy, write,
};
use crate::support::{Daemon, KeyFile, Refusal, Setup, promptly, shell, started, with, with_key};

fn rule(tool: &str, pattern: &str, action: Action) -> CreateRuleRequest {
    CreateRuleRequest {
        tool: tool.to_owned(),
        pattern: Some(pattern.to_owned()),
        action: action.into(),
        ..CreateRuleRequest::default()
    }
}

async fn make(daemon: &Daemon, request: CreateRuleRequest) -> String {
    let made = approvals(daemon).create_rule(request).await.unwrap();
    made.into_inner().rule.unwrap().rule_id
}

fn reason(status: &Status) -> String {
    Refusal::of(status).reason
}

fn value<'a>(approval: &'a Approval, name: &str) -> Option<&'a str> {
    let mut parameters = approval.parameters.iter();
    let found = parameters.find(|parameter| parameter.name == name);
    found.map(|parameter| parameter.value.as_str())
}

fn upload(
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
async fn a_path_by_a_detour_is_denied_and_allows_nothing() {
    let daemon = with_policy(
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
        let refused = write(&daemon, file(path, "x")).await.unwrap().unwrap_err();
        let refusal = Refusal::of(&refused);
        assert_eq!(refusal.reason, "POLICY_DENIED", "{path}");
        let by = refusal.metadata.get("rule_id").map(String::as_str);
        assert_eq!(by, rule, "{path}");
    }
    for path in ["src/a", "/workspace/src/b", "./src/c"] {
        write(&daemon, file(path, "x")).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_rule_made_of_a_run_lets_no_start_in() {
    let daemon = with_policy(ASK).await;
    let run = daemon.begin(shell("cat"));
    let approval = wait_for_one(&daemon).await;
    decide(&daemon, decision(&approval, Decision::Always)).await.unwrap();
    run.await.unwrap().unwrap();
    daemon.run(shell("cat")).await;
    let mut processes =
        jig::api::v1::process_service_client::ProcessServiceClient::new(daemon.channel());
    // The first value of an enum stands for none: it is told what counts then.
    let request = StartRequest {
        on_disconnect: Some(OnDisconnect::Unspecified.into()),
        ..started(shell("cat"))
    };
    let starting = tokio::spawn(async move { processes.start(request).await.map(drop) });
    let approval = wait_for_one(&daemon).await;
    assert_eq!(value(&approval, "on_disconnect"), Some("ON_DISCONNECT_KILL"));
    decide(&daemon, decision(&approval, Decision::Deny)).await.unwrap();
    assert_eq!(reason(&starting.await.unwrap().unwrap_err()), "APPROVAL_DENIED");
    // One that denies is for both.
    make(&daemon, rule("run", r#"^{"command":"true"}$"#, Action::Deny)).await;
    daemon.refuses(shell("true"), "POLICY_DENIED").await;
    let mut processes =
        jig::api::v1::process_service_client::ProcessServiceClient::new(daemon.channel());
    let refused = processes.start(started(shell("true"))).await.unwrap_err();
    assert_eq!(reason(&refused), "POLICY_DENIED");
}

#[tokio::test]
async fn no_rule_is_made_of_what_nobody_has_seen() {
    let daemon = with_policy(ASK).await;
    let request = RunRequest { stdin: "rm -rf x".into(), ..shell("sh") };
    let run = daemon.begin(request);
    let approval = wait_for_one(&daemon).await;
    assert_eq!(approval.suggested_pattern, "");
    let refused = decide(&daemon, decision(&approval, Decision::Always)).await;
    let refusal = Refusal::of(&refused.unwrap_err());
    assert_eq!((refusal.reason.as_str(), refusal.fields()), ("INVALID_PARAMS", vec!["pattern"]));
    let mut request = decision(&approval, Decision::Always);
    request.pattern = Some(String::new());
    let refused = decide(&daemon, request).await;
    assert_eq!(Refusal::of(&refused.unwrap_err()).fields(), ["pattern"]);
    let refused = approvals(&daemon).create_rule(rule("run", "", Action::Allow)).await;
    assert_eq!(Refusal::of(&refused.unwrap_err()).fields(), ["pattern"]);
    assert_eq!(pending(&daemon).await.len(), 1, "nothing is decided");
    run.abort();
}

#[tokio::test]
async fn a_command_is_shown_whole_to_who_asks_for_it() {
    let daemon = with_policy(ASK).await;
    let command = format!("true first {}; rm -rf last", "x".repeat(120_000));
    let run = daemon.begin(shell(&command));
    let approval = wait_for_one(&daemon).await;
    let shown = &approval.parameters[0];
    assert!(shown.value.starts_with("true first x"));
    assert!(shown.ending.ends_with("x; rm -rf last"));
    let bytes = shown.value.len() + shown.omitted_bytes as usize + shown.ending.len();
    assert_eq!(bytes, command.len());
    let get = async || {
        let request = GetApprovalRequest { approval_id: approval.approval_id.clone() };
        let found = approvals(&daemon).get_approval(request).await.unwrap();
        found.into_inner().approval.unwrap()
    };
    let whole = get().await;
    assert_eq!(value(&whole, "command"), Some(command.as_str()));
    assert_eq!(whole.parameters[0].omitted_bytes, 0);
    decide(&daemon, decision(&approval, Decision::Deny)).await.unwrap();
    run.await.unwrap().unwrap_err();
    // Not all of it is kept.
    assert_eq!(&get().await.parameters[0], shown);
    let unknown = GetApprovalRequest { approval_id: "none".to_owned() };
    let refused = approvals(&daemon).get_approval(unknown).await.unwrap_err();
    assert_eq!(reason(&refused), "APPROVAL_NOT_FOUND");
    let patch: String = (0..250)
        .map(|number| format!("--- /dev/null\n+++ b/file-{number}\n@@ -0,0 +1 @@\n+x\n"))
        .collect();
    let request = jig::api::v1::ApplyPatchRequest { unified_diff: patch, ..Default::default() };
    let mut tools = daemon.tools();
    let applying = tokio::spawn(async move { tools.apply_patch(request).await });
    let approval = wait_for_one(&daemon).await;
    assert_eq!((approval.files_affected.len(), approval.more_files), (100, 150));
    applying.abort();
}

#[tokio::test]
async fn an_upload_is_told_as_it_was_given_and_its_like_has_another_content() {
    let daemon = with_policy(
        "[policy]\nsafe_write = \"ask\"\n[[policy.rules]]\nname = \"no\"\ntool = \"write_file\"\npattern = 'create_directories'\naction = \"deny\"",
    )
    .await;
    let refused = upload(&daemon, "f", Some(true)).await.unwrap();
    assert_eq!(reason(&refused.unwrap_err()), "POLICY_DENIED");
    let uploading = upload(&daemon, "f", None);
    let approval = wait_for_one(&daemon).await;
    let names: Vec<_> =
        approval.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    assert_eq!(names, ["path", "sha256"]);
    assert_eq!(value(&approval, "sha256").map(str::len), Some(64));
    assert!(!approval.suggested_pattern.contains("e3b0c442"));
    decide(&daemon, decision(&approval, Decision::Always)).await.unwrap();
    uploading.await.unwrap().unwrap();
    upload(&daemon, "f", None).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_rule_that_comes_and_goes_refuses_no_call_that_none_denies() {
    let daemon = with_policy("").await;
    let is_over = Arc::new(AtomicBool::new(false));
    let calls: Vec<_> = (0..4)
        .map(|caller| {
            let (mut tools, is_over) = (daemon.tools(), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let path = format!("f{caller}");
                    let id = format!("{caller}-{count}");
                    tools.write_file(with("jig-request-id", &id, file(&path, "x"))).await?;
                    count += 1;
                }
                Ok::<_, Status>(count)
            })
        })
        .collect();
    for _ in 0..40 {
        let rule_id = make(&daemon, rule("write_file", "x", Action::Allow)).await;
        let request = DeleteRuleRequest { rule_id };
        approvals(&daemon).delete_rule(request).await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    for call in calls {
        assert!(call.await.unwrap().unwrap() > 0);
    }
}

#[tokio::test]
async fn what_was_approved_is_denied_where_it_may_not_be_made_any_more() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add("caller", "invoke", &[]);
    let admin = keys.add("admin", "admin", &[]);
    let path = keys.path().display().to_string();
    let setup = Setup::new().workspace_table(ASK).arguments(&["--keys", &path]);
    let daemon = setup.keeping(Arc::clone(&keys) as Arc<KeyFile>).start().await;
    let waiting = async || {
        let mut found = Vec::new();
        crate::support::eventually("a call waits", async || {
            let request = with_key(&admin, ListApprovalsRequest::default());
            let listed = approvals(&daemon).list_approvals(request).await.unwrap();
            found = listed.into_inner().approvals;
            found.len() == 1
        })
        .await;
        found.remove(0)
    };
    // A rule that denies it was made meanwhile.
    let run = daemon.begin(with_key(&key, shell("touch denied")));
    let approval = waiting().await;
    let request = with_key(&admin, rule("run", "denied", Action::Deny));
    approvals(&daemon).create_rule(request).await.unwrap();
    let allow = with_key(&admin, decision(&approval, Decision::Allow));
    decide(&daemon, allow).await.unwrap();
    let refused = promptly("it is told", run).await.unwrap().unwrap_err();
    assert_eq!(reason(&refused), "POLICY_DENIED");
    // The key of its caller was taken away meanwhile.
    let run = daemon.begin(with_key(&key, shell("touch revoked")));
    let approval = waiting().await;
    assert!(keys.jig(&["revoke", "caller"]).status.success());
    daemon.reload(Daemon::READ_AGAIN).await;
    let allow = with_key(&admin, decision(&approval, Decision::Allow));
    let _ended = decide(&daemon, allow).await;
    let refused = promptly("it is told", run).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    assert!(!daemon.file("denied").exists() && !daemon.file("revoked").exists());
}

#[tokio::test]
async fn always_lets_in_those_that_wait_and_are_alike() {
    let daemon = with_policy(ASK).await;
    let first = write(&daemon, file("a", "1"));
    let approval = wait_for_one(&daemon).await;
    let alike = write(&daemon, file("a", "2"));
    let waiting = wait_for(&daemon, 2).await;
    let other = write(&daemon, file("b", "1"));
    wait_for(&daemon, 3).await;
    let decided = decide(&daemon, decision(&approval, Decision::Always)).await;
    let rule_id = decided.unwrap().rule.unwrap().rule_id;
    for call in [first, alike] {
        promptly("it is written", call).await.unwrap().unwrap();
    }
    let by = format!("rule:{rule_id}");
    let ended = find(&daemon, &waiting[1].approval_id).await;
    assert_eq!((&ended.decided_by, &ended.rule_id), (&by, &rule_id));
    ended_once(&daemon, &ended.approval_id);
    let begun = events(&daemon, "tool_call_started");
    let call = begun.iter().find(|record| record["call_id"] == ended.call_id.as_str());
    assert_eq!(call.unwrap()["allowed_by"], by.as_str());
    assert!(!other.is_finished());
    other.abort();
}

#[tokio::test]
async fn who_is_for_some_tools_decides_about_calls_of_these() {
    let keys = Arc::new(KeyFile::new());
    let all = keys.add("all", "admin", &[]);
    let some = keys.add("some", "admin", &["--for-tool", "write_file"]);
    let path = keys.path().display().to_string();
    let setup = Setup::new().workspace_table(ASK).arguments(&["--keys", &path]);
    let daemon = setup.keeping(keys).start().await;
    let list = async |key: &str| {
        let request = with_key(key, ListApprovalsRequest::default());
        let listed = approvals(&daemon).list_approvals(request).await.unwrap();
        listed.into_inner().approvals
    };
    let run = daemon.begin(with_key(&all, shell("true")));
    let writing = write(&daemon, with_key(&some, file("f", "x")));
    crate::support::eventually("both wait", async || list(&all).await.len() == 2).await;
    let seen = list(&some).await;
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].tool, "write_file");
    let mut both = list(&all).await;
    both.retain(|approval| approval.tool == "run");
    let request = with_key(&some, decision(&both[0], Decision::Allow));
    let refused = decide(&daemon, request).await.unwrap_err();
    assert_eq!(reason(&refused), "APPROVAL_NOT_FOUND");
    let request = with_key(&some, rule("run", "x", Action::Allow));
    let refused = approvals(&daemon).create_rule(request).await.unwrap_err();
    assert_eq!(reason(&refused), "FORBIDDEN");
    let request = with_key(&all, rule("run", "x", Action::Allow));
    let made = approvals(&daemon).create_rule(request).await.unwrap();
    let rule_id = made.into_inner().rule.unwrap().rule_id;
    let request = with_key(&some, ListRulesRequest::default());
    let listed = approvals(&daemon).list_rules(request).await.unwrap();
    assert_eq!(listed.into_inner().rules, []);
    let request = with_key(&some, DeleteRuleRequest { rule_id });
    let refused = approvals(&daemon).delete_rule(request).await.unwrap_err();
    assert_eq!(reason(&refused), "RULE_NOT_FOUND");
    // Of his own calls, too.
    let request = with_key(&some, decision(&seen[0], Decision::Allow));
    decide(&daemon, request).await.unwrap();
    writing.await.unwrap().unwrap();
    run.abort();
}

#[tokio::test]
async fn rules_are_listed_in_pages() {
    let daemon = with_policy("").await;
    // Together they have more bytes than a client takes in one message.
    let long = "x".repeat(16_000);
    for number in 0..5 {
        make(&daemon, rule("stat", &format!("{number}{long}"), Action::Deny)).await;
    }
    let list = async |page_size, page_token: &str| {
        let request =
            ListRulesRequest { page_size: Some(page_size), page_token: page_token.to_owned() };
        let listed = approvals(&daemon).list_rules(request).await;
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
    assert_eq!(Refusal::of(&refused).fields(), ["page_token"]);
    // In the same order after a restart.
    let daemon = daemon.restart().await;
    let again = approvals(&daemon).list_rules(ListRulesRequest::default()).await.unwrap();
    let ids =
        |rules: &[Rule]| -> Vec<String> { rules.iter().map(|rule| rule.rule_id.clone()).collect() };
    assert_eq!(ids(&again.into_inner().rules), ids(&all.rules));
}

#[tokio::test]
async fn what_was_approved_waits_for_a_place() {
    let daemon = with_policy(
        "[limits]\nconcurrent_calls = 1\nqueue_timeout = \"1s\"\n[[policy.rules]]\nname = \"ask\"\ntool = \"run\"\npattern = \"asked\"\naction = \"ask\"",
    )
    .await;
    let asked = daemon.begin(shell("echo asked"));
    let approval = wait_for_one(&daemon).await;
    let busy = daemon.begin(shell("touch begun; until [ -e go ]; do sleep 0.01; done"));
    crate::support::eventually("it runs", async || daemon.file("begun").exists()).await;
    decide(&daemon, decision(&approval, Decision::Allow)).await.unwrap();
    // Others are refused after a while; this one is not.
    daemon.refuses(shell("true"), "RESOURCE_EXHAUSTED").await;
    daemon.refuses(shell("true"), "RESOURCE_EXHAUSTED").await;
    assert!(!asked.is_finished());
    fs::write(daemon.file("go"), "").unwrap();
    busy.await.unwrap().unwrap();
    let answer = promptly("it runs", asked).await.unwrap().unwrap();
    assert_eq!(answer.stdout, "asked\n");
}

#[tokio::test]
async fn what_waits_is_bounded_in_bytes() {
    let daemon = with_policy(ASK).await;
    let content = "x".repeat(9_900_000);
    let mut calls = Vec::new();
    let mut refused = None;
    for number in 0..8 {
        let call = write(&daemon, file(&format!("f{number}"), &content));
        crate::support::eventually("it waits or is refused", async || {
            call.is_finished() || pending(&daemon).await.len() > calls.len()
        })
        .await;
        if call.is_finished() {
            refused = Some(call.await.unwrap().unwrap_err());
            break;
        }
        calls.push(call);
    }
    let refusal = Refusal::of(&refused.unwrap());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.message.contains("bytes while it is pending approval"), "{refusal:?}");
    assert!((2..=5).contains(&calls.len()), "{}", calls.len());
    for call in calls {
        call.abort();
    }
}
