//! The rules that are made while the daemon runs.

use std::sync::Arc;

use jig::api::v1::{
    Action, ApprovalState, CreateRuleRequest, Decision, DeleteRuleRequest, ListApprovalsRequest,
    ListRulesRequest, Rule, RuleOrigin, UpdateRuleRequest,
};

use super::{
    ASK_POLICY, approval_client, assert_decided_once, await_pending, await_pending_approval,
    decide, decide_request, events_named, find_approval, pending_approvals, spawn_write,
    start_with_policy, write_request,
};
use crate::support::{
    Daemon, KeyFile, Refusal, Setup, eventually, promptly, shell, with_key, with_metadata,
};

/// The rules.
pub(super) async fn list_rules(daemon: &Daemon) -> Vec<Rule> {
    let listed = approval_client(daemon).list_rules(ListRulesRequest::default()).await;
    listed.unwrap().into_inner().rules
}

fn new_rule(tool: &str, pattern: &str, action: Action) -> CreateRuleRequest {
    CreateRuleRequest {
        tool: tool.to_owned(),
        pattern: (!pattern.is_empty()).then(|| pattern.to_owned()),
        action: action.into(),
        ..CreateRuleRequest::default()
    }
}

/// Makes rules as large as they can be, as many as there is room for.
pub(super) async fn fill_rule_store(daemon: &Daemon, lifetime_sec: Option<u32>) {
    for _ in 0..64 {
        let request = CreateRuleRequest {
            lifetime_sec,
            ..new_rule("stat", &"x".repeat(16 << 10), Action::Deny)
        };
        approval_client(daemon).create_rule(request).await.unwrap();
    }
}

#[tokio::test]
async fn expired_rules_make_room() {
    let daemon = start_with_policy("").await;
    // They end, but not yet.
    fill_rule_store(&daemon, Some(3600)).await;
    let full = approval_client(&daemon).create_rule(new_rule("stat", "y", Action::Deny)).await;
    let refusal = Refusal::from_status(&full.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    let before = list_rules(&daemon).await;
    for rule in before.iter().take(2).rev() {
        let ends = UpdateRuleRequest {
            rule_id: rule.rule_id.clone(),
            lifetime_sec: Some(1),
            ..UpdateRuleRequest::default()
        };
        approval_client(&daemon).update_rule(ends).await.unwrap();
    }
    let mut made = String::new();
    eventually("there is room", async || {
        let request = new_rule("stat", "y", Action::Deny);
        match approval_client(&daemon).create_rule(request).await {
            Ok(answer) => made = answer.into_inner().rule.unwrap().rule_id,
            Err(refused) => assert_eq!(Refusal::from_status(&refused).reason, "RESOURCE_EXHAUSTED"),
        }
        !made.is_empty()
    })
    .await;
    // The one that ended first is gone; the other may have ended, too, and is kept. So after a restart.
    let expected: Vec<_> = [made.as_str(), before[0].rule_id.as_str()]
        .into_iter()
        .chain(before[2..].iter().map(|rule| rule.rule_id.as_str()))
        .map(str::to_owned)
        .collect();
    let ids = async |daemon: &Daemon| -> Vec<String> {
        let listed = list_rules(daemon).await.into_iter();
        listed.map(|rule| rule.rule_id).collect()
    };
    assert_eq!(ids(&daemon).await, expected);
    let daemon = daemon.restart().await;
    assert_eq!(ids(&daemon).await, expected);
}

#[tokio::test]
async fn new_or_enabled_rule_approves_pending_calls() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let first = daemon.spawn_run(shell("echo one"));
    let asked = await_pending_approval(&daemon).await;
    let other = spawn_write(&daemon, write_request("f", "x"));
    await_pending(&daemon, 2).await;
    // These are for others, or say nothing else than what is so.
    for rule in [new_rule("run", "two", Action::Allow), new_rule("run", "one", Action::Ask)] {
        approval_client(&daemon).create_rule(rule).await.unwrap();
    }
    let made = approval_client(&daemon).create_rule(new_rule("run", "one", Action::Allow)).await;
    let rule = made.unwrap().into_inner().rule.unwrap();
    promptly("it runs", first).await.unwrap().unwrap();
    let ended = find_approval(&daemon, &asked.approval_id).await;
    assert_eq!(ended.state(), ApprovalState::Allowed);
    assert_eq!(ended.rule_id, rule.rule_id);
    assert_eq!(ended.decided_by, format!("rule:{}", rule.rule_id));
    assert_decided_once(&daemon, &asked.approval_id);
    let switch = async |enabled| {
        let request = UpdateRuleRequest {
            rule_id: rule.rule_id.clone(),
            enabled: Some(enabled),
            ..UpdateRuleRequest::default()
        };
        approval_client(&daemon).update_rule(request).await.unwrap();
    };
    switch(false).await;
    let second = daemon.spawn_run(shell("echo one"));
    await_pending(&daemon, 2).await;
    switch(true).await;
    promptly("it runs", second).await.unwrap().unwrap();
    assert!(!other.is_finished());
    other.abort();
}

#[tokio::test]
async fn always_creates_a_rule_for_similar_calls() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let writing = spawn_write(&daemon, write_request("hello.py", "print(1)"));
    let approval = await_pending_approval(&daemon).await;
    let decided = decide(&daemon, decide_request(&approval, Decision::Always)).await.unwrap();
    writing.await.unwrap().unwrap();
    let rule = decided.rule.unwrap();
    assert_eq!(rule.pattern, approval.suggested_pattern);
    assert_eq!(rule.tool, "write_file");
    assert_eq!(rule.workspaces, ["workspace"]);
    assert_eq!((rule.origin(), rule.action()), (RuleOrigin::Service, Action::Allow));
    assert_eq!(rule.created_by, "uid:0");
    assert_eq!(rule.approval_id, approval.approval_id);
    let (made, ends) = (rule.create_time.unwrap(), rule.expire_time.unwrap());
    assert!((ends.seconds - made.seconds - 30 * 86_400).abs() <= 1);
    let end = assert_decided_once(&daemon, &approval.approval_id);
    assert_eq!(end["rule_id"], rule.rule_id.as_str());
    // Another content is alike, another path is not; also after a restart.
    let daemon = daemon.restart().await;
    spawn_write(&daemon, write_request("hello.py", "print(2)")).await.unwrap().unwrap();
    let by = format!("rule:{}", rule.rule_id);
    assert_eq!(
        events_named(&daemon, "tool_call_started").last().unwrap()["allowed_by"],
        by.as_str()
    );
    let other = spawn_write(&daemon, write_request("other.py", "print(1)"));
    let approval = await_pending_approval(&daemon).await;
    decide(&daemon, decide_request(&approval, Decision::Deny)).await.unwrap();
    other.await.unwrap().unwrap_err();
    // Switched off, it lets nothing in; switched on, it does again.
    let switch = async |enabled| {
        let request = UpdateRuleRequest {
            rule_id: rule.rule_id.clone(),
            enabled: Some(enabled),
            ..UpdateRuleRequest::default()
        };
        let changed = approval_client(&daemon).update_rule(request).await.unwrap();
        assert_eq!(changed.into_inner().rule.unwrap().enabled, enabled);
    };
    switch(false).await;
    let again = spawn_write(&daemon, write_request("hello.py", "print(3)"));
    let approval = await_pending_approval(&daemon).await;
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    again.await.unwrap().unwrap();
    switch(true).await;
    spawn_write(&daemon, write_request("hello.py", "print(4)")).await.unwrap().unwrap();
    // It ends.
    let soon = UpdateRuleRequest {
        rule_id: rule.rule_id.clone(),
        lifetime_sec: Some(1),
        ..UpdateRuleRequest::default()
    };
    let changed = approval_client(&daemon).update_rule(soon).await.unwrap();
    let ends = changed.into_inner().rule.unwrap().expire_time.unwrap();
    let ends = std::time::SystemTime::try_from(ends).unwrap();
    eventually("the rule ends", async || std::time::SystemTime::now() > ends).await;
    let late = spawn_write(&daemon, write_request("hello.py", "print(5)"));
    await_pending_approval(&daemon).await;
    late.abort();
    let request = DeleteRuleRequest { rule_id: rule.rule_id.clone() };
    approval_client(&daemon).delete_rule(request.clone()).await.unwrap();
    let missing = approval_client(&daemon).delete_rule(request).await.unwrap_err();
    assert_eq!(Refusal::from_status(&missing).reason, "RULE_NOT_FOUND");
    assert_eq!(list_rules(&daemon).await, []);
}

#[tokio::test]
async fn always_accepts_only_patterns_that_match_the_call() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let run = daemon.spawn_run(shell("make test"));
    let approval = await_pending_approval(&daemon).await;
    let with_pattern = |pattern: &str| {
        let mut request = decide_request(&approval, Decision::Always);
        request.pattern = Some(pattern.to_owned());
        request.rule_lifetime_sec = Some(60);
        request
    };
    for (pattern, reason) in [("(", "INVALID_REGEX"), ("^make", "INVALID_PARAMS")] {
        let refused = decide(&daemon, with_pattern(pattern)).await.unwrap_err();
        let refusal = Refusal::from_status(&refused);
        assert_eq!((refusal.reason.as_str(), refusal.invalid_fields()), (reason, vec!["pattern"]));
    }
    let mut wrong = decide_request(&approval, Decision::Deny);
    wrong.pattern = Some("x".to_owned());
    wrong.rule_lifetime_sec = Some(1);
    let refusal = Refusal::from_status(&decide(&daemon, wrong).await.unwrap_err());
    assert_eq!(refusal.invalid_fields(), ["pattern", "rule_lifetime_sec"]);
    let unknown = decide_request(&approval, Decision::Unspecified);
    let refusal = Refusal::from_status(&decide(&daemon, unknown).await.unwrap_err());
    assert_eq!(refusal.invalid_fields(), ["decision"]);
    assert_eq!(pending_approvals(&daemon).await.len(), 1, "nothing is decided");
    decide(&daemon, with_pattern(r#"^{"command":"make [a-z]+"}$"#)).await.unwrap();
    run.await.unwrap().unwrap();
    daemon.run(shell("make clean")).await;
    let other = daemon.spawn_run(shell("make clean; rm -rf x"));
    await_pending_approval(&daemon).await;
    other.abort();
}

#[tokio::test]
async fn list_rules_returns_evaluation_order() {
    let file_rule = "[[policy.rules]]\nname = \"first\"\ntool = \"run\"\naction = \"ask\"";
    let daemon = start_with_policy(file_rule).await;
    let one = approval_client(&daemon).create_rule(new_rule("run", "one", Action::Allow)).await;
    let one = one.unwrap().into_inner().rule.unwrap();
    let request = || with_metadata("jig-request-id", "two", new_rule("run", "two", Action::Deny));
    let two = approval_client(&daemon).create_rule(request()).await.unwrap().into_inner();
    assert_eq!(approval_client(&daemon).create_rule(request()).await.unwrap().into_inner(), two);
    let two = two.rule.unwrap();
    assert_eq!((two.name.as_str(), two.enabled, two.expire_time), ("deny run", true, None));
    let listed = list_rules(&daemon).await;
    let ids: Vec<_> = listed.iter().map(|rule| rule.rule_id.as_str()).collect();
    assert_eq!(ids, [&two.rule_id, &one.rule_id, "file:first"]);
    assert_eq!(listed[2].origin(), RuleOrigin::File);
    daemon.run(shell("echo one")).await;
    daemon.run_failing(shell("echo one two"), "POLICY_DENIED").await;
    for refused in [
        approval_client(&daemon)
            .delete_rule(DeleteRuleRequest { rule_id: "file:first".to_owned() })
            .await
            .unwrap_err(),
        approval_client(&daemon)
            .update_rule(UpdateRuleRequest {
                rule_id: "file:first".to_owned(),
                enabled: Some(false),
                ..UpdateRuleRequest::default()
            })
            .await
            .unwrap_err(),
    ] {
        let refusal = Refusal::from_status(&refused);
        assert_eq!(refusal.invalid_fields(), ["rule_id"]);
        assert!(refusal.message.contains("SIGHUP"), "{refusal:?}");
    }
    let nothing = UpdateRuleRequest { rule_id: one.rule_id, ..UpdateRuleRequest::default() };
    let refused = approval_client(&daemon).update_rule(nothing).await.unwrap_err();
    assert_eq!(Refusal::from_status(&refused).invalid_fields(), ["enabled"]);
    let wrong = CreateRuleRequest { tool: "dance".to_owned(), ..CreateRuleRequest::default() };
    let refused = approval_client(&daemon).create_rule(wrong).await.unwrap_err();
    assert_eq!(Refusal::from_status(&refused).invalid_fields(), ["action", "tool"]);
    let refused = approval_client(&daemon).create_rule(new_rule("run", "[", Action::Deny)).await;
    assert_eq!(Refusal::from_status(&refused.unwrap_err()).reason, "INVALID_REGEX");
    assert_eq!(list_rules(&daemon).await.len(), 3);
}

#[tokio::test]
async fn workspace_admin_cannot_see_or_decide_for_other_workspaces() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Arc::new(KeyFile::new());
    let names = ["workspace", "other"];
    let [one, other] = names.map(|name| keys.add_key(name, "admin", &["--for-workspace", name]));
    let both = keys.add_key("both", "admin", &[]);
    let path = keys.path().display().to_string();
    let tables = format!(
        "[[workspaces]]\nname = \"other\"\npath = {:?}\n{ASK_POLICY}\n[[policy.rules]]\nname = \"there\"\ntool = \"stat\"\naction = \"ask\"\nworkspaces = [\"other\"]",
        folder.path()
    );
    let setup = Setup::new().workspace_table(&format!("name = \"workspace\"\n{tables}"));
    let daemon = setup.arguments(&["--keys", &path]).with_resource(keys).start().await;
    let run = daemon.spawn_run(with_key(&one, shell("true")));
    let list = async |key: &str| {
        let request = with_key(key, ListApprovalsRequest::default());
        let listed = approval_client(&daemon).list_approvals(request).await.unwrap();
        listed.into_inner().approvals
    };
    let mut found = Vec::new();
    eventually("the call waits", async || {
        found = list(&one).await;
        found.len() == 1
    })
    .await;
    assert_eq!(list(&both).await.len(), 1);
    assert_eq!(list(&other).await, []);
    let request = || decide_request(&found[0], Decision::Always);
    let refused = decide(&daemon, with_key(&other, request())).await.unwrap_err();
    assert_eq!(Refusal::from_status(&refused).reason, "APPROVAL_NOT_FOUND");
    // The one that is for both says which it means.
    let mut elsewhere = with_key(&both, request());
    elsewhere.metadata_mut().insert("jig-workspace", "other".parse().unwrap());
    let refused = decide(&daemon, elsewhere).await.unwrap_err();
    assert_eq!(Refusal::from_status(&refused).reason, "APPROVAL_NOT_FOUND");
    let rule = decide(&daemon, with_key(&one, request())).await.unwrap().rule.unwrap();
    run.await.unwrap().unwrap();
    let refused = decide(&daemon, with_key(&other, request())).await.unwrap_err();
    assert_eq!(Refusal::from_status(&refused).reason, "APPROVAL_NOT_FOUND");
    let rules = async |key: &str| {
        let listed =
            approval_client(&daemon).list_rules(with_key(key, ListRulesRequest::default())).await;
        let rules = listed.unwrap().into_inner().rules;
        rules.into_iter().map(|rule| rule.rule_id).collect::<Vec<_>>()
    };
    assert_eq!(rules(&one).await, [rule.rule_id.as_str()]);
    assert_eq!(rules(&other).await, ["file:there"]);
    assert_eq!(rules(&both).await.len(), 2);
    let delete = || DeleteRuleRequest { rule_id: rule.rule_id.clone() };
    let refused =
        approval_client(&daemon).delete_rule(with_key(&other, delete())).await.unwrap_err();
    assert_eq!(Refusal::from_status(&refused).reason, "RULE_NOT_FOUND");
    // What is allowed in one is not in the other.
    let there = daemon.spawn_run(with_key(&other, shell("true")));
    eventually("the other's waits", async || list(&other).await.len() == 1).await;
    there.abort();
    approval_client(&daemon).delete_rule(with_key(&both, delete())).await.unwrap();
}
