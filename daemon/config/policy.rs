//! The `[policy]` and `[approvals]` tables: enabled tools, rules, and decisions by risk.
//!
//! This module does not check whether the named tools and workspaces exist, or whether patterns
//! compile. [`CompiledPolicy`](crate::daemon::pipeline::policy::decision::CompiledPolicy) does.

use std::{
    collections::{BTreeSet, HashSet},
    time::{Duration, SystemTime},
};

use serde::Deserialize;

use super::{
    duration::{age_or_default, parse_timestamp},
    file,
};

/// Each rule is compared with each call of its tool.
const MAX_RULES: usize = 1024;
const MAX_RULE_NAME_BYTES: usize = 64;
/// Largest value of `approvals.max_pending`. A pending call costs some kibibytes, and a task.
const MAX_PENDING_APPROVALS: usize = 1 << 16;
/// Longest time that a call without a deadline is pending. Long enough for a person to read a
/// prompt, and short enough that a hanging agent is noticed.
const DEFAULT_APPROVAL_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Pending calls of one workspace: more than a person can decide about.
const DEFAULT_PENDING_APPROVALS: usize = 256;
/// Time that decided approvals are stored.
const DEFAULT_APPROVAL_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

/// A decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PolicyAction {
    Allow,
    /// The call is pending until an administrator decides.
    Ask,
    Deny,
}

/// The checked `[policy]` and `[approvals]` tables.
#[derive(Debug, Clone)]
pub(crate) struct PolicyConfig {
    /// The only tools that exist. `None`: all tools exist.
    pub(crate) allow_tools: Option<BTreeSet<String>>,
    /// Tools that do not exist.
    pub(crate) deny_tools: BTreeSet<String>,
    /// Decisions about calls without a matching rule.
    pub(crate) risk_actions: RiskActions,
    /// In the order of the file.
    pub(crate) rules: Vec<PolicyRuleConfig>,
    pub(crate) approvals: ApprovalsConfig,
}

/// Decisions about calls by the risk of their tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RiskActions {
    /// Tools that only read.
    pub(crate) read_only: PolicyAction,
    /// Tools whose changes are easy to undo.
    pub(crate) safe_write: PolicyAction,
    /// All other tools.
    pub(crate) dangerous: PolicyAction,
}

/// One `[[policy.rules]]` table.
#[derive(Debug, Clone)]
pub(crate) struct PolicyRuleConfig {
    pub(crate) name: String,
    pub(crate) tool: String,
    /// Regular expression on the parameters. `None`: the rule matches every call of the tool.
    pub(crate) pattern: Option<String>,
    pub(crate) action: PolicyAction,
    /// Workspaces of the configuration. `None`: all workspaces, or those of `created_workspaces`.
    pub(crate) workspaces: Option<BTreeSet<String>>,
    /// Names of created workspaces, with `*` for any characters. `None`: as `workspaces`.
    pub(crate) created_workspaces: Option<BTreeSet<String>>,
    pub(crate) expires: Option<SystemTime>,
    pub(crate) enabled: bool,
}

/// Limits of pending approvals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ApprovalsConfig {
    /// Longest time that a call without a deadline is pending.
    pub(crate) timeout: Duration,
    /// Pending calls of one workspace.
    pub(crate) max_pending: usize,
    /// Time that decided approvals are stored.
    pub(crate) retention: Duration,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            allow_tools: None,
            deny_tools: BTreeSet::new(),
            risk_actions: RiskActions {
                read_only: PolicyAction::Allow,
                safe_write: PolicyAction::Allow,
                dangerous: PolicyAction::Allow,
            },
            rules: Vec::new(),
            approvals: ApprovalsConfig {
                timeout: DEFAULT_APPROVAL_TIMEOUT,
                max_pending: DEFAULT_PENDING_APPROVALS,
                retention: DEFAULT_APPROVAL_RETENTION,
            },
        }
    }
}

/// Checks the tables.
pub(super) fn parse_policy(
    file: file::PolicyTable,
    approvals: &file::ApprovalsTable,
    problems: &mut Vec<String>,
) -> PolicyConfig {
    let default = PolicyConfig::default();
    let mut action = |text: Option<String>, key: &str| match text.as_deref() {
        None | Some("allow") => PolicyAction::Allow,
        Some("ask") => PolicyAction::Ask,
        Some("deny") => PolicyAction::Deny,
        Some(text) => {
            problems.push(format!("policy.{key} {text:?}: give allow, ask or deny"));
            PolicyAction::Deny
        }
    };
    let risk_actions = RiskActions {
        read_only: action(file.read_only, "read_only"),
        safe_write: action(file.safe_write, "safe_write"),
        dangerous: action(file.dangerous, "dangerous"),
    };

    PolicyConfig {
        allow_tools: file.allow_tools.map(|tools| tools.into_iter().collect()),
        deny_tools: file.deny_tools.into_iter().collect(),
        risk_actions,
        rules: parse_rules(file.rules, problems),
        approvals: parse_approvals(approvals, default.approvals, problems),
    }
}

fn parse_rules(
    tables: Vec<file::PolicyRuleTable>,
    problems: &mut Vec<String>,
) -> Vec<PolicyRuleConfig> {
    if tables.len() > MAX_RULES {
        problems.push(format!(
            "policy.rules has {} rules; at most {MAX_RULES} are allowed",
            tables.len()
        ));
    }

    let mut names = HashSet::new();
    let mut rules = Vec::new();
    for rule in tables {
        let name = rule.name.clone();
        let mut report =
            |text: String| problems.push(format!("policy.rules: rule {name:?}: {text}"));
        if !is_rule_name(&rule.name) {
            report("a name has 1 to 64 letters, digits, dots, underscores and hyphens".to_owned());
        }
        if !names.insert(rule.name.clone()) {
            report("two rules have this name".to_owned());
        }
        if rule.workspaces.as_ref().is_some_and(Vec::is_empty) {
            report("workspaces is empty: name at least one, or remove it for all".to_owned());
        }
        if rule.created_workspaces.as_ref().is_some_and(Vec::is_empty) {
            report("created_workspaces is empty: name at least one, or remove it".to_owned());
        }
        for name in rule.created_workspaces.iter().flatten().filter(|name| !is_name_pattern(name)) {
            report(format!(
                "created_workspaces {name:?}: give 1 to 63 lower-case letters, digits and hyphens, with * for any of them"
            ));
        }

        let action = match rule.action.as_str() {
            "allow" => PolicyAction::Allow,
            "ask" => PolicyAction::Ask,
            "deny" => PolicyAction::Deny,
            text => {
                report(format!("action {text:?}: give allow, ask or deny"));
                PolicyAction::Deny
            }
        };
        let expires = rule.expires.as_deref().map(|text| {
            parse_timestamp(text).ok_or_else(|| {
                format!("expires {text:?}: give a time such as \"2027-01-31T00:00:00Z\"")
            })
        });
        if let Some(Err(problem)) = &expires {
            report(problem.clone());
        }

        rules.push(PolicyRuleConfig {
            name: rule.name,
            tool: rule.tool,
            pattern: rule.pattern,
            action,
            workspaces: rule.workspaces.map(|names| names.into_iter().collect()),
            created_workspaces: rule.created_workspaces.map(|names| names.into_iter().collect()),
            expires: expires.and_then(Result::ok),
            enabled: rule.enabled.unwrap_or(true),
        });
    }
    rules
}

/// Whether a created workspace can have a name that this pattern matches.
fn is_name_pattern(text: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'*');
    (1..=63).contains(&text.len()) && text.bytes().all(is_allowed)
}

fn is_rule_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_RULE_NAME_BYTES).contains(&name.len()) && name.bytes().all(allowed)
}

fn parse_approvals(
    file: &file::ApprovalsTable,
    default: ApprovalsConfig,
    problems: &mut Vec<String>,
) -> ApprovalsConfig {
    let (timeout, retention) = (file.timeout.as_deref(), file.retention.as_deref());
    let approvals = ApprovalsConfig {
        timeout: age_or_default(default.timeout, timeout, "approvals.timeout", problems),
        max_pending: file.max_pending.unwrap_or(default.max_pending),
        retention: age_or_default(default.retention, retention, "approvals.retention", problems),
    };

    if !(1..=MAX_PENDING_APPROVALS).contains(&approvals.max_pending) {
        problems.push(format!("approvals.max_pending must be from 1 to {MAX_PENDING_APPROVALS}"));
    }
    approvals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> (Option<PolicyConfig>, Vec<String>) {
        #[derive(Deserialize)]
        struct PolicyTestFile {
            #[serde(default)]
            policy: file::PolicyTable,
            #[serde(default)]
            approvals: file::ApprovalsTable,
        }
        let mut problems = Vec::new();
        match toml::from_str::<PolicyTestFile>(text) {
            Ok(file) => {
                let policy = parse_policy(file.policy, &file.approvals, &mut problems);
                (Some(policy), problems)
            }
            Err(error) => (None, vec![error.message().to_owned()]),
        }
    }

    #[test]
    fn all_keys_are_read() {
        let (policy, problems) = check(
            "[policy]\nallow_tools = ['run']\ndeny_tools = ['stat']\nsafe_write = 'ask'\ndangerous = 'deny'\n[[policy.rules]]\nname = 'tests'\ntool = 'run'\npattern = '^{\"command\":\"make'\naction = 'allow'\nworkspaces = ['a']\nexpires = '2027-01-31T00:00:00Z'\nenabled = false\n[approvals]\ntimeout = '2m'\nmax_pending = 7\nretention = '7d'",
        );
        assert_eq!(problems, [""; 0]);
        let policy = policy.unwrap();
        let risk_actions = RiskActions {
            read_only: PolicyAction::Allow,
            safe_write: PolicyAction::Ask,
            dangerous: PolicyAction::Deny,
        };
        assert_eq!(policy.risk_actions, risk_actions);
        let rule = &policy.rules[0];
        assert!(!rule.enabled && rule.expires.is_some() && rule.action == PolicyAction::Allow);
        let approvals = ApprovalsConfig {
            timeout: Duration::from_secs(120),
            max_pending: 7,
            retention: Duration::from_secs(7 * 24 * 3600),
        };
        assert_eq!(policy.approvals, approvals);

        let (policy, problems) = check("");
        assert!(problems.is_empty() && policy.unwrap().rules.is_empty());
    }

    #[test]
    fn every_problem_is_reported() {
        let rule = "[[policy.rules]]\nname = 'a b'\ntool = 'run'\naction = 'maybe'\nworkspaces = []\ncreated_workspaces = []\nexpires = 'soon'\n";
        let text = format!(
            "[policy]\nread_only = 'no'\n{rule}{rule}[approvals]\ntimeout = '0s'\nmax_pending = 0\nretention = 'long'"
        );
        let (_, problems) = check(&text);
        for part in [
            "policy.read_only \"no\"",
            "\"a b\": a name has",
            "\"a b\": two rules",
            "\"a b\": workspaces is empty",
            "\"a b\": created_workspaces is empty",
            "\"a b\": action \"maybe\"",
            "\"a b\": expires \"soon\"",
            "approvals.timeout",
            "approvals.max_pending",
            "approvals.retention",
        ] {
            assert!(
                problems.iter().any(|problem| problem.contains(part)),
                "{part} in {problems:#?}"
            );
        }
        let (_, problems) = check("[policy]\nallow_tool = []");
        assert!(problems[0].contains("unknown field"), "{problems:?}");
    }
}
