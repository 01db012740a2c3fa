//! Table tests: each row is a call and its expected decision.

use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::daemon::{catalog::PolicyText, config::policy::PolicyRuleConfig};

/// The time of all decisions, in seconds since the epoch.
const NOW: u64 = 1_000_000;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn rule(name: &str, tool: &str, pattern: &str, action: PolicyAction) -> PolicyRuleConfig {
    PolicyRuleConfig {
        name: name.to_owned(),
        tool: tool.to_owned(),
        pattern: (!pattern.is_empty()).then(|| pattern.to_owned()),
        action,
        workspaces: None,
        created_workspaces: None,
        expires: None,
        enabled: true,
    }
}

fn settings(policy: PolicyConfig) -> Arc<CompiledPolicy> {
    Arc::new(CompiledPolicy::new(policy, &Catalog::load().unwrap(), &["a", "b"], &[]).unwrap())
}

fn snapshot(
    file: Vec<PolicyRuleConfig>,
    stored: Vec<PolicyRuleConfig>,
    levels: RiskActions,
) -> PolicySnapshot {
    let policy = PolicyConfig { rules: file, risk_actions: levels, ..PolicyConfig::default() };
    let stored = stored.into_iter().map(|written| {
        let rule = Rule::from_config(written, &Arc::default()).unwrap();
        Arc::new(Rule { id: rule.name.clone(), ..rule })
    });
    PolicySnapshot::new(settings(policy), stored.collect())
}

fn levels(
    read_only: PolicyAction,
    safe_write: PolicyAction,
    dangerous: PolicyAction,
) -> RiskActions {
    RiskActions { read_only, safe_write, dangerous }
}

fn decide(
    snapshot: &PolicySnapshot,
    tool: &str,
    risk: Risk,
    texts: &[&str],
) -> (PolicyAction, String) {
    let texts: Vec<_> = texts.iter().map(|text| policy_text(text, true)).collect();
    let request =
        PolicyRequestRef { tool, risk, workspace: "a", texts: &texts, dialect_call: None };
    let decision = snapshot.decide(request, at(NOW));
    (decision.action, decision.decided_by.label())
}

fn policy_text(text: &str, may_allow: bool) -> PolicyText {
    PolicyText { text: text.to_owned(), may_allow }
}

#[test]
fn allow_rules_ignore_texts_that_may_not_allow() {
    let texts = [policy_text("plain", true), policy_text("detour", false)];
    for action in [PolicyAction::Allow, PolicyAction::Ask, PolicyAction::Deny] {
        for (pattern, expected) in
            [("plain", true), ("detour", action != PolicyAction::Allow), ("other", false)]
        {
            let rule =
                Rule::from_config(rule("one", "run", pattern, action), &Arc::default()).unwrap();
            let request = PolicyRequestRef {
                tool: "run",
                risk: Risk::Dangerous,
                workspace: "a",
                texts: &texts,
                dialect_call: None,
            };
            assert_eq!(rule.matches(request), expected, "{action:?} {pattern}");
        }
    }
}

#[test]
fn tool_lists_override_rules() {
    for (allow, deny, tool, is_enabled) in [
        (None, &[][..], "run", true),
        (None, &["run"][..], "run", false),
        (None, &["run"][..], "stat", true),
        (Some(&["run"][..]), &[][..], "run", true),
        (Some(&["run"][..]), &[][..], "stat", false),
        (Some(&["run"][..]), &["run"][..], "run", false),
        (Some(&[][..]), &[][..], "run", false),
    ] {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let policy = PolicyConfig {
            allow_tools: allow.map(names),
            deny_tools: names(deny),
            rules: vec![rule("all", tool, "", PolicyAction::Allow)],
            ..PolicyConfig::default()
        };
        let snapshot = PolicySnapshot::new(settings(policy), [].into());
        let (action, by) = decide(&snapshot, tool, Risk::Dangerous, &[]);
        let case = format!("{allow:?} {deny:?} {tool}");
        assert_eq!(action == PolicyAction::Allow, is_enabled, "{case}");
        assert_eq!(by == "policy:tool_disabled", !is_enabled, "{case}");
    }
}

#[test]
fn risk_decides_without_a_matching_rule() {
    use PolicyAction::{Allow, Ask, Deny};
    let snapshot = snapshot(Vec::new(), Vec::new(), levels(Allow, Ask, Deny));
    for (risk, expected, by) in [
        (Risk::ReadOnly, Allow, "risk:read_only"),
        (Risk::SafeWrite, Ask, "risk:safe_write"),
        (Risk::Dangerous, Deny, "risk:dangerous"),
        (Risk::Unspecified, Deny, "risk:dangerous"),
    ] {
        let decided = decide(&snapshot, "run", risk, &["{}"]);
        assert_eq!(decided, (expected, by.to_owned()));
        assert_eq!(snapshot.needs_params("run", None, risk, "a"), expected == Ask);
    }
}

#[test]
fn first_matching_rule_decides_unless_a_rule_denies() {
    use PolicyAction::{Allow, Ask, Deny};
    const MAKE: &str = r#"{"command":"make test"}"#;
    let all = levels(Ask, Ask, Ask);

    // Rules of the file, stored rules (newest first), texts, expected action, expected decider.
    type RuleOrderCase<'a> =
        (Vec<PolicyRuleConfig>, Vec<PolicyRuleConfig>, &'a [&'a str], PolicyAction, &'a str);
    let rows: Vec<RuleOrderCase<'_>> = vec![
        (vec![], vec![], &[MAKE], Ask, "risk:dangerous"),
        (vec![rule("one", "run", "make", Allow)], vec![], &[MAKE], Allow, "rule:file:one"),
        // In the order of the file.
        (
            vec![
                rule("one", "run", "^{\"command\":\"make", Ask),
                rule("two", "run", "make", Allow),
            ],
            vec![],
            &[MAKE],
            Ask,
            "rule:file:one",
        ),
        // Stored rules come before those of the file, newest first.
        (
            vec![rule("one", "run", "", Ask)],
            vec![rule("new", "run", "make", Allow), rule("old", "run", "", Ask)],
            &[MAKE],
            Allow,
            "rule:new",
        ),
        // A deny rule wins from any position.
        (
            vec![rule("one", "run", "", Allow), rule("no", "run", "make", Deny)],
            vec![rule("new", "run", "", Allow)],
            &[MAKE],
            Deny,
            "rule:file:no",
        ),
        (
            vec![rule("one", "run", "", Allow)],
            vec![rule("new", "run", "", Allow), rule("no", "run", "test\"}$", Deny)],
            &[MAKE],
            Deny,
            "rule:no",
        ),
        // Another tool, another text.
        (
            vec![rule("one", "stat", "", Deny), rule("two", "run", "^make", Deny)],
            vec![],
            &[MAKE],
            Ask,
            "risk:dangerous",
        ),
        // The text of the dialect is matched too.
        (
            vec![rule("one", "run", "^{\"cmd\":", Allow)],
            vec![],
            &[MAKE, r#"{"cmd":"make test"}"#],
            Allow,
            "rule:file:one",
        ),
        // A pattern does not match a call without texts.
        (vec![rule("one", "run", "make", Allow)], vec![], &[], Ask, "risk:dangerous"),
    ];

    for (number, (file, stored, texts, action, by)) in rows.into_iter().enumerate() {
        let snapshot = snapshot(file, stored, all);
        let decided = decide(&snapshot, "run", Risk::Dangerous, texts);
        assert_eq!(decided, (action, by.to_owned()), "row {number}");
    }
}

#[test]
fn disabled_expired_and_other_workspaces_rules_are_ignored() {
    type RuleChange = fn(&mut PolicyRuleConfig);
    let changes: [(RuleChange, bool); 7] = [
        (|_| {}, true),
        (|rule| rule.enabled = false, false),
        (|rule| rule.expires = Some(at(NOW)), false),
        (|rule| rule.expires = Some(at(NOW - 1)), false),
        (|rule| rule.expires = Some(at(NOW + 1)), true),
        (|rule| rule.workspaces = Some(["a".to_owned()].into()), true),
        (|rule| rule.workspaces = Some(["b".to_owned()].into()), false),
    ];

    let all = PolicyConfig::default().risk_actions;
    for (number, (change, is_effective)) in changes.into_iter().enumerate() {
        for is_stored in [true, false] {
            let mut denies = rule("no", "run", "x", PolicyAction::Deny);
            change(&mut denies);
            let rules = (vec![denies], Vec::new());
            let (file, stored) = if is_stored { (rules.1, rules.0) } else { rules };
            let snapshot = snapshot(file, stored, all);
            let (action, _) = decide(&snapshot, "run", Risk::Dangerous, &["x"]);
            assert_eq!(action == PolicyAction::Deny, is_effective, "{number} {is_stored}");
        }
    }
}

#[test]
fn rules_name_created_workspaces_by_patterns() {
    let mut denies = rule("no", "run", "x", PolicyAction::Deny);
    denies.created_workspaces = Some(["sample-*".to_owned(), "*".to_owned()].into());
    let [all, mut some] = [denies.clone(), denies];
    some.created_workspaces = Some(["sample-*".to_owned(), "one".to_owned()].into());
    let mut both = some.clone();
    both.workspaces = Some(["a".to_owned()].into());

    let applies = |written: &PolicyRuleConfig, workspace: &str| {
        let policy = PolicyConfig { rules: vec![written.clone()], ..PolicyConfig::default() };
        let compiled =
            CompiledPolicy::new(policy, &Catalog::load().unwrap(), &["a", "sample-0"], &[]);
        compiled.unwrap().rules()[0].applies_in_workspace(workspace)
    };
    // Workspaces of the configuration are named by `workspaces` alone: `a` and `sample-0`.
    for (workspace, expected) in [
        ("a", [false, false, true]),
        ("sample-0", [false, false, false]),
        ("sample-1", [true, true, true]),
        ("sample-", [true, true, true]),
        ("one", [true, true, true]),
        ("one-1", [true, false, false]),
        ("a-sample-1", [true, false, false]),
    ] {
        let applied = [&all, &some, &both].map(|rule| applies(rule, workspace));
        assert_eq!(applied, expected, "{workspace}");
    }
}

#[test]
fn parameters_are_needed_only_where_they_can_matter() {
    let allow = PolicyConfig::default().risk_actions;
    for (written, expected) in [
        (rule("one", "run", "", PolicyAction::Allow), false),
        (rule("one", "run", "", PolicyAction::Deny), false),
        (rule("one", "run", "", PolicyAction::Ask), true),
        (rule("one", "run", "x", PolicyAction::Allow), true),
        (rule("one", "stat", "x", PolicyAction::Ask), false),
    ] {
        let snapshot = snapshot(vec![written], Vec::new(), allow);
        assert_eq!(snapshot.needs_params("run", None, Risk::Dangerous, "a"), expected);
    }
}

#[test]
fn unknown_names_are_rejected_with_every_problem() {
    let mut wrong = rule("one", "dance", "(", PolicyAction::Allow);
    wrong.workspaces = Some(["c".to_owned()].into());
    let policy = PolicyConfig {
        allow_tools: Some(["run".to_owned(), "sing".to_owned()].into()),
        deny_tools: ["jump".to_owned()].into(),
        rules: vec![wrong],
        ..PolicyConfig::default()
    };
    let problems = CompiledPolicy::new(policy, &Catalog::load().unwrap(), &["a"], &[]).unwrap_err();
    assert_eq!(problems.len(), 5, "{problems:#?}");
}

#[test]
fn match_cost_counts_each_pattern() {
    let mut off = rule("off", "run", "x", PolicyAction::Deny);
    off.enabled = false;
    let mut elsewhere = rule("elsewhere", "run", "x", PolicyAction::Deny);
    elsewhere.workspaces = Some(["b".to_owned()].into());
    let file = vec![
        rule("one", "run", "x", PolicyAction::Deny),
        rule("any", "run", "", PolicyAction::Ask),
        rule("other", "stat", "x", PolicyAction::Deny),
        off,
        elsewhere,
    ];

    let stored = vec![rule("two", "run", "y", PolicyAction::Allow)];
    let snapshot =
        snapshot(file, stored, levels(PolicyAction::Allow, PolicyAction::Allow, PolicyAction::Ask));
    let texts = [policy_text("12345", true), policy_text("123", false)];

    for (tool, texts, expected) in [
        ("run", &texts[..], 16),
        ("run", &texts[..1], 10),
        ("stat", &texts[..1], 5),
        ("read_file", &texts[..], 0),
    ] {
        let request = PolicyRequestRef {
            tool,
            risk: Risk::Dangerous,
            workspace: "a",
            texts,
            dialect_call: None,
        };
        assert_eq!(snapshot.match_cost_bytes(request, at(NOW)), expected, "{tool}");
    }
}

#[test]
fn dialect_call_matches_by_both_names() {
    let rule = |tool: &str, pattern: &str, action: PolicyAction| rule("r", tool, pattern, action);
    let (allow, deny) = (PolicyAction::Allow, PolicyAction::Deny);
    let texts = [policy_text(r#"{"content":"x","path":"a.txt"}"#, true)];
    let own = [policy_text(r#"{"path":"a.txt"}"#, true)];
    let back = [policy_text(r#"{"path":"b/../a.txt"}"#, false)];
    for (rules, dialect_texts, expected) in [
        // D14: the specification's own rule, under the tool's dialect name.
        (vec![rule("create_file", r#"^{"path":".*\.txt"}$"#, allow)], &own, allow),
        (vec![rule("create_file", r#"^{"path":".*\.txt"}$"#, allow)], &back, deny),
        (vec![rule("create_file", r#"^{"path":".*\.md"}$"#, allow)], &own, deny),
        (vec![rule("write_file", "a.txt", allow)], &own, allow),
        // A deny under one name overrides an allow under the other.
        (vec![rule("write_file", "", allow), rule("create_file", "", deny)], &own, deny),
        (vec![rule("create_file", "", allow), rule("write_file", "content", deny)], &own, deny),
        // A pattern applies only to the texts of its own tool name.
        (vec![rule("create_file", "content", allow)], &own, deny),
        (vec![rule("delete_path", "", allow)], &own, deny),
    ] {
        let snapshot = snapshot(rules, Vec::new(), levels(deny, deny, deny));
        let request = PolicyRequestRef {
            tool: "write_file",
            risk: Risk::SafeWrite,
            workspace: "a",
            texts: &texts,
            dialect_call: Some(("create_file", dialect_texts)),
        };
        assert_eq!(snapshot.decide(request, at(NOW)).action, expected);
    }

    let lists = |allow: Option<&str>, deny: Option<&str>| {
        let set = |name: &str| BTreeSet::from([name.to_owned()]);
        let policy = PolicyConfig {
            allow_tools: allow.map(set),
            deny_tools: deny.map(set).unwrap_or_default(),
            ..PolicyConfig::default()
        };
        settings(policy)
    };

    for (policy, by_name, by_dialect_name) in [
        (lists(Some("Read"), None), false, true),
        (lists(Some("read_file"), None), true, true),
        (lists(Some("Write"), None), false, false),
        (lists(None, Some("Read")), true, false),
        (lists(None, Some("read_file")), false, false),
    ] {
        assert_eq!(policy.is_tool_enabled("read_file", None), by_name);
        assert_eq!(policy.is_tool_enabled("read_file", Some("Read")), by_dialect_name);
    }
}
