//! Each row a call, and what becomes of it.

use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::daemon::{catalog::PolicyText, config::policy::PolicyRuleConfig};

/// When everything is decided here.
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
        let rule = Rule::from_config(written).unwrap();
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
    let texts: Vec<_> = texts.iter().map(|text| told(text, true)).collect();
    let asked = PolicyRequestRef { tool, risk, workspace: "a", texts: &texts, dialect_call: None };
    let decision = snapshot.decide(asked, at(NOW));
    (decision.action, decision.decided_by.label())
}

fn told(text: &str, may_allow: bool) -> PolicyText {
    PolicyText { text: text.to_owned(), may_allow }
}

#[test]
fn a_rule_that_allows_goes_by_fewer_texts_than_others() {
    let texts = [told("plain", true), told("detour", false)];
    for action in [PolicyAction::Allow, PolicyAction::Ask, PolicyAction::Deny] {
        for (pattern, expected) in
            [("plain", true), ("detour", action != PolicyAction::Allow), ("other", false)]
        {
            let rule = Rule::from_config(rule("one", "run", pattern, action)).unwrap();
            let asked = PolicyRequestRef {
                tool: "run",
                risk: Risk::Dangerous,
                workspace: "a",
                texts: &texts,
                dialect_call: None,
            };
            assert_eq!(rule.matches(asked), expected, "{action:?} {pattern}");
        }
    }
}

#[test]
fn lists_of_tools_come_before_everything() {
    for (allow, deny, tool, is_there) in [
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
        assert_eq!(action == PolicyAction::Allow, is_there, "{case}");
        assert_eq!(by == "tools that are switched off", !is_there, "{case}");
    }
}

#[test]
fn without_a_rule_the_risk_decides() {
    use PolicyAction::{Allow, Ask, Deny};
    let snapshot = snapshot(Vec::new(), Vec::new(), levels(Allow, Ask, Deny));
    for (risk, expected, by) in [
        (Risk::ReadOnly, Allow, "risk read_only"),
        (Risk::SafeWrite, Ask, "risk safe_write"),
        (Risk::Dangerous, Deny, "risk dangerous"),
        (Risk::Unspecified, Deny, "risk dangerous"),
    ] {
        let decided = decide(&snapshot, "run", risk, &["{}"]);
        assert_eq!(decided, (expected, by.to_owned()));
        assert_eq!(snapshot.needs_params("run", None, risk, "a"), expected == Ask);
    }
}

#[test]
fn the_first_rule_that_matches_decides_but_one_that_denies_comes_first() {
    use PolicyAction::{Allow, Ask, Deny};
    const MAKE: &str = r#"{"command":"make test"}"#;
    let all = levels(Ask, Ask, Ask);
    // Rules of the file, those stored (newest first), the text, what becomes of it, and by which.
    type RuleOrderCase<'a> =
        (Vec<PolicyRuleConfig>, Vec<PolicyRuleConfig>, &'a [&'a str], PolicyAction, &'a str);
    let rows: Vec<RuleOrderCase<'_>> = vec![
        (vec![], vec![], &[MAKE], Ask, "risk dangerous"),
        (vec![rule("one", "run", "make", Allow)], vec![], &[MAKE], Allow, "rule file:one"),
        // In the order of the file.
        (
            vec![
                rule("one", "run", "^{\"command\":\"make", Ask),
                rule("two", "run", "make", Allow),
            ],
            vec![],
            &[MAKE],
            Ask,
            "rule file:one",
        ),
        // What was stored comes before, newest first.
        (
            vec![rule("one", "run", "", Ask)],
            vec![rule("new", "run", "make", Allow), rule("old", "run", "", Ask)],
            &[MAKE],
            Allow,
            "rule new",
        ),
        // One that denies comes before all, wherever it stands.
        (
            vec![rule("one", "run", "", Allow), rule("no", "run", "make", Deny)],
            vec![rule("new", "run", "", Allow)],
            &[MAKE],
            Deny,
            "rule file:no",
        ),
        (
            vec![rule("one", "run", "", Allow)],
            vec![rule("new", "run", "", Allow), rule("no", "run", "test\"}$", Deny)],
            &[MAKE],
            Deny,
            "rule no",
        ),
        // Another tool, another text.
        (
            vec![rule("one", "stat", "", Deny), rule("two", "run", "^make", Deny)],
            vec![],
            &[MAKE],
            Ask,
            "risk dangerous",
        ),
        // The text of another vocabulary counts as well.
        (
            vec![rule("one", "run", "^{\"cmd\":", Allow)],
            vec![],
            &[MAKE, r#"{"cmd":"make test"}"#],
            Allow,
            "rule file:one",
        ),
        // Nothing matches what is not known.
        (vec![rule("one", "run", "make", Allow)], vec![], &[], Ask, "risk dangerous"),
    ];
    for (number, (file, stored, texts, action, by)) in rows.into_iter().enumerate() {
        let snapshot = snapshot(file, stored, all);
        let decided = decide(&snapshot, "run", Risk::Dangerous, texts);
        assert_eq!(decided, (action, by.to_owned()), "row {number}");
    }
}

#[test]
fn rules_that_are_off_over_or_for_others_count_for_nothing() {
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
    for (number, (change, counts)) in changes.into_iter().enumerate() {
        for is_stored in [true, false] {
            let mut denies = rule("no", "run", "x", PolicyAction::Deny);
            change(&mut denies);
            let rules = (vec![denies], Vec::new());
            let (file, stored) = match is_stored {
                true => (rules.1, rules.0),
                false => rules,
            };
            let snapshot = snapshot(file, stored, all);
            let (action, _) = decide(&snapshot, "run", Risk::Dangerous, &["x"]);
            assert_eq!(action == PolicyAction::Deny, counts, "{number} {is_stored}");
        }
    }
}

#[test]
fn parameters_are_looked_at_only_where_they_can_matter() {
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
fn what_there_is_not_is_refused_with_all_that_is_wrong() {
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
fn work_is_counted_once_for_each_pattern() {
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
    let texts = [told("12345", true), told("123", false)];
    for (tool, texts, expected) in [
        ("run", &texts[..], 16),
        ("run", &texts[..1], 10),
        ("stat", &texts[..1], 5),
        ("read_file", &texts[..], 0),
    ] {
        let asked = PolicyRequestRef {
            tool,
            risk: Risk::Dangerous,
            workspace: "a",
            texts,
            dialect_call: None,
        };
        assert_eq!(snapshot.match_cost_bytes(asked, at(NOW)), expected, "{tool}");
    }
}

#[test]
fn a_call_of_a_dialect_goes_by_both_its_names() {
    let rule = |tool: &str, pattern: &str, action: PolicyAction| rule("r", tool, pattern, action);
    let (allow, deny) = (PolicyAction::Allow, PolicyAction::Deny);
    let texts = [told(r#"{"content":"x","path":"a.txt"}"#, true)];
    let own = [told(r#"{"path":"a.txt"}"#, true)];
    let back = [told(r#"{"path":"b/../a.txt"}"#, false)];
    for (rules, said, expected) in [
        // D14: the document's own rule, under its own name.
        (vec![rule("create_file", r#"^{"path":".*\.txt"}$"#, allow)], &own, allow),
        (vec![rule("create_file", r#"^{"path":".*\.txt"}$"#, allow)], &back, deny),
        (vec![rule("create_file", r#"^{"path":".*\.md"}$"#, allow)], &own, deny),
        (vec![rule("write_file", "a.txt", allow)], &own, allow),
        // What one name is allowed, the other is denied.
        (vec![rule("write_file", "", allow), rule("create_file", "", deny)], &own, deny),
        (vec![rule("create_file", "", allow), rule("write_file", "content", deny)], &own, deny),
        // A pattern for one is not for the other.
        (vec![rule("create_file", "content", allow)], &own, deny),
        (vec![rule("delete_path", "", allow)], &own, deny),
    ] {
        let snapshot = snapshot(rules, Vec::new(), levels(deny, deny, deny));
        let asked = PolicyRequestRef {
            tool: "write_file",
            risk: Risk::SafeWrite,
            workspace: "a",
            texts: &texts,
            dialect_call: Some(("create_file", said)),
        };
        assert_eq!(snapshot.decide(asked, at(NOW)).action, expected);
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
    for (listed, by_name, said) in [
        (lists(Some("Read"), None), false, true),
        (lists(Some("read_file"), None), true, true),
        (lists(Some("Write"), None), false, false),
        (lists(None, Some("Read")), true, false),
        (lists(None, Some("read_file")), false, false),
    ] {
        assert_eq!(listed.is_tool_enabled("read_file", None), by_name);
        assert_eq!(listed.is_tool_enabled("read_file", Some("Read")), said);
    }
}
