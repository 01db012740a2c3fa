//! What becomes of calls: which tools there are, what is asked about, by rules and by the risk of a tool.
//! Whether the tools and workspaces that it names exist is not known here, nor whether patterns can be
//! parsed.

use std::{
    collections::{BTreeSet, HashSet},
    time::{Duration, SystemTime},
};

use serde::Deserialize;

use super::{
    duration::{age_or_default, parse_timestamp},
    file,
};

/// Most rules of the file: each is compared with each call of its tool.
const MAX_RULES: usize = 1024;
/// Longest name of a rule, in bytes.
const MAX_RULE_NAME_BYTES: usize = 64;
/// Most calls that may wait to be approved at one time: each costs some kibibytes, and a task.
const MAX_PENDING_APPROVALS: usize = 1 << 16;
/// Wait of calls without a deadline: longer than it takes to look at a prompt, shorter than an agent
/// that hangs should go unnoticed.
const DEFAULT_APPROVAL_WAIT: Duration = Duration::from_secs(5 * 60);
/// Calls that may wait at one time: more than anybody can decide about.
const DEFAULT_PENDING_APPROVALS: usize = 256;
/// How long is kept what was decided: a month of looking back.
const DEFAULT_APPROVAL_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PolicyAction {
    /// It is made.
    Allow,
    /// It waits until somebody has decided.
    Ask,
    /// It is refused.
    Deny,
}

/// The `[policy]` and `[approvals]` tables.
#[derive(Debug, Clone)]
pub(crate) struct PolicyConfig {
    /// The only tools there are; without, all.
    pub(crate) allow_tools: Option<BTreeSet<String>>,
    /// Tools that there are not.
    pub(crate) deny_tools: BTreeSet<String>,
    /// What becomes of calls that no rule is about, by the risk of their tool.
    pub(crate) risk_actions: RiskActions,
    /// The rules, in the order of the file.
    pub(crate) rules: Vec<PolicyRuleConfig>,
    /// How calls wait to be approved.
    pub(crate) approvals: ApprovalsConfig,
}

/// What becomes of calls, by the risk of their tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RiskActions {
    /// Of tools that read only.
    pub(crate) read_only: PolicyAction,
    /// Of those that add or change files in ways that are easy to undo.
    pub(crate) safe_write: PolicyAction,
    /// Of all others.
    pub(crate) dangerous: PolicyAction,
}

/// One `[[policy.rules]]` table.
#[derive(Debug, Clone)]
pub(crate) struct PolicyRuleConfig {
    /// What it is called.
    pub(crate) name: String,
    /// The tool that it is about.
    pub(crate) tool: String,
    /// A regular expression on its parameters; without, any.
    pub(crate) pattern: Option<String>,
    /// What becomes of calls that match.
    pub(crate) action: PolicyAction,
    /// The workspaces that it is about; without, all.
    pub(crate) workspaces: Option<BTreeSet<String>>,
    /// When it ends.
    pub(crate) expires: Option<SystemTime>,
    /// Whether it counts.
    pub(crate) enabled: bool,
}

/// How calls wait to be approved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ApprovalsConfig {
    /// How long, without a deadline.
    pub(crate) wait: Duration,
    /// How many at one time, in each workspace.
    pub(crate) max_pending: usize,
    /// How long it is kept how they ended.
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
                wait: DEFAULT_APPROVAL_WAIT,
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
    let mut level = |written: Option<String>, key: &str| match written.as_deref() {
        None | Some("allow") => PolicyAction::Allow,
        Some("ask") => PolicyAction::Ask,
        Some("deny") => PolicyAction::Deny,
        Some(text) => {
            problems.push(format!("policy.{key} {text:?}: give allow, ask or deny"));
            PolicyAction::Deny
        }
    };
    let levels = RiskActions {
        read_only: level(file.read_only, "read_only"),
        safe_write: level(file.safe_write, "safe_write"),
        dangerous: level(file.dangerous, "dangerous"),
    };
    PolicyConfig {
        allow_tools: file.allow_tools.map(|tools| tools.into_iter().collect()),
        deny_tools: file.deny_tools.into_iter().collect(),
        risk_actions: levels,
        rules: parse_rules(file.rules, problems),
        approvals: parse_approvals(approvals, default.approvals, problems),
    }
}

fn parse_rules(
    written: Vec<file::PolicyRuleTable>,
    problems: &mut Vec<String>,
) -> Vec<PolicyRuleConfig> {
    if written.len() > MAX_RULES {
        problems
            .push(format!("policy.rules has {} rules; {MAX_RULES} are the most", written.len()));
    }
    let mut names = HashSet::new();
    let mut rules = Vec::new();
    for rule in written {
        let name = rule.name.clone();
        let mut report =
            |text: String| problems.push(format!("policy.rules: rule {name:?}: {text}"));
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=MAX_RULE_NAME_BYTES).contains(&rule.name.len()) || !rule.name.bytes().all(allowed)
        {
            report("a name has 1 to 64 letters, digits, dots, underscores and hyphens".to_owned());
        }
        if !names.insert(rule.name.clone()) {
            report("two rules have this name".to_owned());
        }
        if rule.workspaces.as_ref().is_some_and(Vec::is_empty) {
            report("workspaces is empty: name some, or leave it out for all".to_owned());
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
            expires: expires.and_then(Result::ok),
            enabled: rule.enabled.unwrap_or(true),
        });
    }
    rules
}

fn parse_approvals(
    file: &file::ApprovalsTable,
    default: ApprovalsConfig,
    problems: &mut Vec<String>,
) -> ApprovalsConfig {
    let (wait, retention) = (file.wait.as_deref(), file.retention.as_deref());
    let approvals = ApprovalsConfig {
        wait: age_or_default(default.wait, wait, "approvals.wait", problems),
        max_pending: file.pending.unwrap_or(default.max_pending),
        retention: age_or_default(default.retention, retention, "approvals.retention", problems),
    };
    if !(1..=MAX_PENDING_APPROVALS).contains(&approvals.max_pending) {
        problems.push(format!("approvals.pending must be from 1 to {MAX_PENDING_APPROVALS}"));
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
            Ok(whole) => {
                let policy = parse_policy(whole.policy, &whole.approvals, &mut problems);
                (Some(policy), problems)
            }
            Err(error) => (None, vec![error.message().to_owned()]),
        }
    }

    #[test]
    fn what_is_written_is_what_is_meant() {
        let (policy, problems) = check(
            "[policy]\nallow_tools = ['run']\ndeny_tools = ['stat']\nsafe_write = 'ask'\ndangerous = 'deny'\n[[policy.rules]]\nname = 'tests'\ntool = 'run'\npattern = '^{\"command\":\"make'\naction = 'allow'\nworkspaces = ['a']\nexpires = '2027-01-31T00:00:00Z'\nenabled = false\n[approvals]\nwait = '2m'\npending = 7\nretention = '7d'",
        );
        assert_eq!(problems, [""; 0]);
        let policy = policy.unwrap();
        let levels = RiskActions {
            read_only: PolicyAction::Allow,
            safe_write: PolicyAction::Ask,
            dangerous: PolicyAction::Deny,
        };
        assert_eq!(policy.risk_actions, levels);
        let rule = &policy.rules[0];
        assert!(!rule.enabled && rule.expires.is_some() && rule.action == PolicyAction::Allow);
        let approvals = ApprovalsConfig {
            wait: Duration::from_secs(120),
            max_pending: 7,
            retention: Duration::from_secs(7 * 24 * 3600),
        };
        assert_eq!(policy.approvals, approvals);
        let (policy, problems) = check("");
        assert!(problems.is_empty() && policy.unwrap().rules.is_empty());
    }

    #[test]
    fn every_problem_is_told() {
        let rule = "[[policy.rules]]\nname = 'a b'\ntool = 'run'\naction = 'maybe'\nworkspaces = []\nexpires = 'soon'\n";
        let text = format!(
            "[policy]\nread_only = 'no'\n{rule}{rule}[approvals]\nwait = '0s'\npending = 0\nretention = 'long'"
        );
        let (_, problems) = check(&text);
        for part in [
            "policy.read_only \"no\"",
            "\"a b\": a name has",
            "\"a b\": two rules",
            "\"a b\": workspaces is empty",
            "\"a b\": action \"maybe\"",
            "\"a b\": expires \"soon\"",
            "approvals.wait",
            "approvals.pending",
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
