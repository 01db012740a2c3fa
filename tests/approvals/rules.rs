//! Rules that are created while the daemon runs.

use std::{sync::Arc, time::SystemTime};

use jig::api::v1::{
    Action, ApprovalState, CreateRuleRequest, Decision, DeleteRuleRequest, ListApprovalsRequest,
    ListRulesRequest, Rule, RuleOrigin, UpdateRuleRequest,
};

use super::{
    ASK_POLICY, approval_client, assert_decided_once, decide, decide_request, find_approval,
    pending_approvals, records_of_type, rule_request, spawn_write, start_with_policy,
    wait_for_pending_approval, wait_for_pending_approvals, write_request,
};
use crate::support::{
    Daemon, KeyFile, Refusal, Setup, eventually, promptly, shell, with_key, with_metadata,
};

pub(super) async fn list_rules(daemon: &Daemon) -> Vec<Rule> {
    let listed = approval_client(daemon).list_rules(ListRulesRequest::default()).await;
    listed.unwrap().into_inner().rules
}

/// Creates as many rules of the maximum size as the rule store holds.
pub(super) async fn fill_rule_store(daemon: &Daemon, lifetime_sec: Option<u32>) {
    for _ in 0..64 {
        let request = CreateRuleRequest {
            lifetime_sec,
            ..rule_request("stat", &"x".repeat(16 << 10), Action::Deny)
        };
        approval_client(daemon).create_rule(request).await.unwrap();
    }
}

async fn set_enabled(daemon: &Daemon, rule_id: &str, enabled: bool) {
    let request = UpdateRuleRequest {
        rule_id: rule_id.to_owned(),
        enabled: Some(enabled),
        ..UpdateRuleRequest::default()
    };
    let response = approval_client(daemon).update_rule(request).await.unwrap();
    assert_eq!(response.into_inner().rule.unwrap().enabled, enabled);
}

/// Lets a rule expire in a second, and waits for that.
async fn expire(daemon: &Daemon, rule_id: &str) {
    let request = UpdateRuleRequest {
        rule_id: rule_id.to_owned(),
        lifetime_sec: Some(1),
        ..UpdateRuleRequest::default()
    };
    let response = approval_client(daemon).update_rule(request).await.unwrap();
    let expire_time = response.into_inner().rule.unwrap().expire_time.unwrap();
    let expire_time = SystemTime::try_from(expire_time).unwrap();
    eventually("the rule expires", async || SystemTime::now() > expire_time).await;
}

#[tokio::test]
async fn expired_rules_make_room() {
    let daemon = start_with_policy("").await;

    // These rules expire, but not during the test.
    fill_rule_store(&daemon, Some(3600)).await;
    let result =
        approval_client(&daemon).create_rule(rule_request("stat", "y", Action::Deny)).await;
    let refusal = Refusal::from_status(&result.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");

    let before = list_rules(&daemon).await;
    for rule in before.iter().take(2).rev() {
        let update = UpdateRuleRequest {
            rule_id: rule.rule_id.clone(),
            lifetime_sec: Some(1),
            ..UpdateRuleRequest::default()
        };
        approval_client(&daemon).update_rule(update).await.unwrap();
    }

    let mut rule_id = String::new();
    eventually("the rule store accepts a rule", async || {
        let request = rule_request("stat", "y", Action::Deny);
        match approval_client(&daemon).create_rule(request).await {
            Ok(response) => rule_id = response.into_inner().rule.unwrap().rule_id,
            Err(status) => assert_eq!(Refusal::from_status(&status).reason, "RESOURCE_EXHAUSTED"),
        }
        !rule_id.is_empty()
    })
    .await;

    // The daemon removes only the rule that expired first, although the second may have expired too.
    // A restart changes nothing.
    let expected: Vec<_> = [rule_id.as_str(), before[0].rule_id.as_str()]
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
    let approval = wait_for_pending_approval(&daemon).await;
    let other_call = spawn_write(&daemon, write_request("f", "x"));
    wait_for_pending_approvals(&daemon, 2).await;

    // Neither rule approves the call: one matches other calls, the other requires approval.
    for rule in [rule_request("run", "two", Action::Allow), rule_request("run", "one", Action::Ask)]
    {
        approval_client(&daemon).create_rule(rule).await.unwrap();
    }

    let response =
        approval_client(&daemon).create_rule(rule_request("run", "one", Action::Allow)).await;
    let rule = response.unwrap().into_inner().rule.unwrap();
    promptly("the command runs", first).await.unwrap().unwrap();
    let decided = find_approval(&daemon, &approval.approval_id).await;
    assert_eq!(decided.state(), ApprovalState::Allowed);
    assert_eq!(decided.rule_id, rule.rule_id);
    assert_eq!(decided.decided_by, format!("rule:{}", rule.rule_id));
    assert_decided_once(&daemon, &approval.approval_id);

    set_enabled(&daemon, &rule.rule_id, false).await;
    let second = daemon.spawn_run(shell("echo one"));
    wait_for_pending_approvals(&daemon, 2).await;
    set_enabled(&daemon, &rule.rule_id, true).await;
    promptly("the command runs", second).await.unwrap().unwrap();
    assert!(!other_call.is_finished());

    other_call.abort();
}

#[tokio::test]
async fn always_creates_a_rule_for_similar_calls() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let writing = spawn_write(&daemon, write_request("hello.py", "print(1)"));
    let approval = wait_for_pending_approval(&daemon).await;
    let decided = decide(&daemon, decide_request(&approval, Decision::Always)).await.unwrap();
    writing.await.unwrap().unwrap();
    let rule = decided.rule.unwrap();
    assert_eq!(rule.pattern, approval.suggested_pattern);
    assert_eq!(rule.tool, "write_file");
    assert_eq!(rule.workspaces, ["workspace"]);
    assert_eq!((rule.origin(), rule.action()), (RuleOrigin::Service, Action::Allow));
    assert_eq!(rule.created_by, "uid:0");
    assert_eq!(rule.approval_id, approval.approval_id);

    let (create_time, expire_time) = (rule.create_time.unwrap(), rule.expire_time.unwrap());
    assert!((expire_time.seconds - create_time.seconds - 30 * 86_400).abs() <= 1);

    let event = assert_decided_once(&daemon, &approval.approval_id);
    assert_eq!(event["rule_id"], rule.rule_id.as_str());

    // After a restart too, the rule matches another content, but not another path.
    let daemon = daemon.restart().await;
    spawn_write(&daemon, write_request("hello.py", "print(2)")).await.unwrap().unwrap();
    let allowed_by = format!("rule:{}", rule.rule_id);
    assert_eq!(
        records_of_type(&daemon, "tool_call_started").last().unwrap()["allowed_by"],
        allowed_by.as_str()
    );

    let other_call = spawn_write(&daemon, write_request("other.py", "print(1)"));
    let approval = wait_for_pending_approval(&daemon).await;
    decide(&daemon, decide_request(&approval, Decision::Deny)).await.unwrap();
    other_call.await.unwrap().unwrap_err();

    // A disabled rule allows nothing until it is enabled again.
    set_enabled(&daemon, &rule.rule_id, false).await;
    let approved = spawn_write(&daemon, write_request("hello.py", "print(3)"));
    let approval = wait_for_pending_approval(&daemon).await;
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    approved.await.unwrap().unwrap();
    set_enabled(&daemon, &rule.rule_id, true).await;
    spawn_write(&daemon, write_request("hello.py", "print(4)")).await.unwrap().unwrap();

    // An expired rule allows nothing.
    expire(&daemon, &rule.rule_id).await;
    let pending = spawn_write(&daemon, write_request("hello.py", "print(5)"));
    wait_for_pending_approval(&daemon).await;
    pending.abort();

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
    let approval = wait_for_pending_approval(&daemon).await;
    let with_pattern = |pattern: &str| {
        let mut request = decide_request(&approval, Decision::Always);
        request.pattern = Some(pattern.to_owned());
        request.rule_lifetime_sec = Some(60);
        request
    };

    for (pattern, reason) in [("(", "INVALID_REGEX"), ("^make", "INVALID_PARAMS")] {
        let status = decide(&daemon, with_pattern(pattern)).await.unwrap_err();
        let refusal = Refusal::from_status(&status);
        assert_eq!((refusal.reason.as_str(), refusal.invalid_fields()), (reason, vec!["pattern"]));
    }

    let mut invalid = decide_request(&approval, Decision::Deny);
    invalid.pattern = Some("x".to_owned());
    invalid.rule_lifetime_sec = Some(1);
    let refusal = Refusal::from_status(&decide(&daemon, invalid).await.unwrap_err());
    assert_eq!(refusal.invalid_fields(), ["pattern", "rule_lifetime_sec"]);

    let unknown = decide_request(&approval, Decision::Unspecified);
    let refusal = Refusal::from_status(&decide(&daemon, unknown).await.unwrap_err());
    assert_eq!(refusal.invalid_fields(), ["decision"]);
    assert_eq!(pending_approvals(&daemon).await.len(), 1, "no decision is stored");

    decide(&daemon, with_pattern(r#"^{"command":"make [a-z]+"}$"#)).await.unwrap();
    run.await.unwrap().unwrap();
    daemon.run(shell("make clean")).await;
    let other_call = daemon.spawn_run(shell("make clean; rm -rf x"));
    wait_for_pending_approval(&daemon).await;
    other_call.abort();
}

#[tokio::test]
async fn list_rules_returns_evaluation_order() {
    let file_rule = "[[policy.rules]]\nname = \"first\"\ntool = \"run\"\naction = \"ask\"";
    let daemon = start_with_policy(file_rule).await;
    let first =
        approval_client(&daemon).create_rule(rule_request("run", "one", Action::Allow)).await;
    let first = first.unwrap().into_inner().rule.unwrap();
    let request =
        || with_metadata("jig-request-id", "two", rule_request("run", "two", Action::Deny));
    let second = approval_client(&daemon).create_rule(request()).await.unwrap().into_inner();
    assert_eq!(approval_client(&daemon).create_rule(request()).await.unwrap().into_inner(), second);

    let second = second.rule.unwrap();
    assert_eq!(
        (second.name.as_str(), second.enabled, second.expire_time),
        ("deny run", true, None)
    );

    let listed = list_rules(&daemon).await;
    let ids: Vec<_> = listed.iter().map(|rule| rule.rule_id.as_str()).collect();
    assert_eq!(ids, [&second.rule_id, &first.rule_id, "file:first"]);
    assert_eq!(listed[2].origin(), RuleOrigin::File);

    daemon.run(shell("echo one")).await;
    daemon.run_failing(shell("echo one two"), "POLICY_DENIED").await;

    for status in [
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
        let refusal = Refusal::from_status(&status);
        assert_eq!(refusal.invalid_fields(), ["rule_id"]);
        assert!(refusal.message.contains("SIGHUP"), "{refusal:?}");
    }

    let empty_update = UpdateRuleRequest { rule_id: first.rule_id, ..UpdateRuleRequest::default() };
    let status = approval_client(&daemon).update_rule(empty_update).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).invalid_fields(), ["enabled"]);

    let invalid = CreateRuleRequest { tool: "dance".to_owned(), ..CreateRuleRequest::default() };
    let status = approval_client(&daemon).create_rule(invalid).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).invalid_fields(), ["action", "tool"]);

    let status = approval_client(&daemon).create_rule(rule_request("run", "[", Action::Deny)).await;
    assert_eq!(Refusal::from_status(&status.unwrap_err()).reason, "INVALID_REGEX");
    assert_eq!(list_rules(&daemon).await.len(), 3);
}

#[tokio::test]
async fn workspace_admin_cannot_see_or_decide_for_other_workspaces() {
    let directory = tempfile::tempdir().unwrap();
    let keys = Arc::new(KeyFile::new());
    let names = ["workspace", "other"];
    let [key, other_key] =
        names.map(|name| keys.add_key(name, "admin", &["--for-workspace", name]));
    let common_key = keys.add_key("both", "admin", &[]);
    let path = keys.path().display().to_string();
    let tables = format!(
        "[[workspaces]]\nname = \"other\"\npath = {:?}\n{ASK_POLICY}\n[[policy.rules]]\nname = \"there\"\ntool = \"stat\"\naction = \"ask\"\nworkspaces = [\"other\"]",
        directory.path()
    );
    let setup = Setup::new().workspace_table(&format!("name = \"workspace\"\n{tables}"));
    let daemon = setup.arguments(&["--keys", &path]).with_resource(keys).start().await;
    let run = daemon.spawn_run(with_key(&key, shell("true")));
    let list = async |key: &str| {
        let request = with_key(key, ListApprovalsRequest::default());
        let listed = approval_client(&daemon).list_approvals(request).await.unwrap();
        listed.into_inner().approvals
    };
    let mut approvals = Vec::new();
    eventually("the call is pending", async || {
        approvals = list(&key).await;
        approvals.len() == 1
    })
    .await;
    assert_eq!(list(&common_key).await.len(), 1);
    assert_eq!(list(&other_key).await, []);

    let request = || decide_request(&approvals[0], Decision::Always);
    let status = decide(&daemon, with_key(&other_key, request())).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "APPROVAL_NOT_FOUND");

    // An admin of both workspaces names the wrong one.
    let mut misdirected = with_key(&common_key, request());
    misdirected.metadata_mut().insert("jig-workspace", "other".parse().unwrap());
    let status = decide(&daemon, misdirected).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "APPROVAL_NOT_FOUND");

    let rule = decide(&daemon, with_key(&key, request())).await.unwrap().rule.unwrap();
    run.await.unwrap().unwrap();
    let status = decide(&daemon, with_key(&other_key, request())).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "APPROVAL_NOT_FOUND");

    let rules = async |key: &str| {
        let listed =
            approval_client(&daemon).list_rules(with_key(key, ListRulesRequest::default())).await;
        let rules = listed.unwrap().into_inner().rules;
        rules.into_iter().map(|rule| rule.rule_id).collect::<Vec<_>>()
    };
    assert_eq!(rules(&key).await, [rule.rule_id.as_str()]);
    assert_eq!(rules(&other_key).await, ["file:there"]);
    assert_eq!(rules(&common_key).await.len(), 2);

    let delete = || DeleteRuleRequest { rule_id: rule.rule_id.clone() };
    let status =
        approval_client(&daemon).delete_rule(with_key(&other_key, delete())).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "RULE_NOT_FOUND");

    // The rule of one workspace allows nothing in the other.
    let other_run = daemon.spawn_run(with_key(&other_key, shell("true")));
    eventually("the call of the other workspace is pending", async || {
        list(&other_key).await.len() == 1
    })
    .await;
    other_run.abort();
    approval_client(&daemon).delete_rule(with_key(&common_key, delete())).await.unwrap();
}
