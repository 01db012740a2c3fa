//! The policy decision: a pure function of the policy, the call and the time.

use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

use super::{request::PolicyRequestRef, rule::Rule};
use crate::{
    api::v1::Risk,
    daemon::{
        catalog::{Catalog, definition::risk_name},
        config::policy::{ApprovalsConfig, PolicyAction, PolicyConfig, RiskActions},
        dialect,
    },
};

/// The policy of the configuration file, checked and with its patterns compiled.
#[derive(Debug)]
pub(crate) struct CompiledPolicy {
    allow_tools: Option<BTreeSet<String>>,
    deny_tools: BTreeSet<String>,
    /// Tools that the rest of the configuration makes useless. They count as disabled.
    unusable_tools: &'static [&'static str],
    risk_actions: RiskActions,
    rules: Vec<Arc<Rule>>,
    /// Limits on pending approvals.
    pub(crate) approvals: ApprovalsConfig,
}

/// The policy and the rules at one time.
#[derive(Debug, Clone)]
pub(crate) struct PolicySnapshot {
    pub(crate) policy: Arc<CompiledPolicy>,
    /// Rules that `ApprovalService` created, newest first.
    runtime_rules: Arc<[Arc<Rule>]>,
}

/// The action for a call, and what decided it.
#[derive(Debug, Clone)]
pub(crate) struct PolicyDecision {
    pub(crate) action: PolicyAction,
    pub(crate) decided_by: DecidedBy,
}

#[derive(Debug, Clone)]
pub(crate) enum DecidedBy {
    /// `allow_tools` or `deny_tools`: the tool is disabled.
    ToolLists,
    Rule(Arc<Rule>),
    /// The default action for the risk of the tool.
    Risk(Risk),
}

impl CompiledPolicy {
    /// Compiles the policy of a configuration file. `unusable_tools` are the tools that the rest of
    /// the configuration makes useless.
    ///
    /// Returns every problem: unknown tools, unknown workspaces and invalid patterns.
    pub(crate) fn new(
        policy: PolicyConfig,
        catalog: &Catalog,
        workspaces: &[&str],
        unusable_tools: &'static [&'static str],
    ) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        for (key, names) in
            [("allow_tools", policy.allow_tools.as_ref()), ("deny_tools", Some(&policy.deny_tools))]
        {
            for name in names.into_iter().flatten() {
                if !is_known_tool(catalog, name) {
                    problems.push(format!("policy.{key}: {}", catalog.unknown_tool_message(name)));
                }
            }
        }

        let configured = Arc::new(workspaces.iter().map(|name| (*name).to_owned()).collect());
        let mut rules = Vec::new();
        for rule in policy.rules {
            let name = rule.name.clone();
            let mut report =
                |text: &str| problems.push(format!("policy.rules: rule {name:?}: {text}"));
            if !is_known_tool(catalog, &rule.tool) {
                report(&catalog.unknown_tool_message(&rule.tool));
            }

            for workspace in rule.workspaces.iter().flatten() {
                if !workspaces.contains(&workspace.as_str()) {
                    report(&format!("unknown workspace {workspace:?}"));
                }
            }

            match Rule::from_config(rule, &configured) {
                Ok(rule) => rules.push(Arc::new(rule)),
                Err(problem) => report(&format!("pattern {problem}")),
            }
        }

        if !problems.is_empty() {
            return Err(problems);
        }

        Ok(Self {
            allow_tools: policy.allow_tools,
            deny_tools: policy.deny_tools,
            unusable_tools,
            risk_actions: policy.risk_actions,
            rules,
            approvals: policy.approvals,
        })
    }

    /// Returns the rules of the configuration file, in its order.
    pub(crate) fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// Whether a tool is enabled, by its own name and by its name in a dialect.
    pub(crate) fn is_tool_enabled(&self, tool: &str, dialect_tool: Option<&str>) -> bool {
        let is_in = |tools: &BTreeSet<String>| {
            tools.contains(tool) || dialect_tool.is_some_and(|name| tools.contains(name))
        };
        self.allow_tools.as_ref().is_none_or(is_in)
            && !is_in(&self.deny_tools)
            && !self.unusable_tools.contains(&tool)
    }

    /// Returns the action for calls that no rule matches.
    pub(crate) fn action_for_risk(&self, risk: Risk) -> PolicyAction {
        match risk {
            Risk::ReadOnly => self.risk_actions.read_only,
            Risk::SafeWrite => self.risk_actions.safe_write,
            Risk::Dangerous | Risk::Unspecified => self.risk_actions.dangerous,
        }
    }
}

impl PolicySnapshot {
    pub(crate) fn new(policy: Arc<CompiledPolicy>, runtime_rules: Arc<[Arc<Rule>]>) -> Self {
        Self { policy, runtime_rules }
    }

    /// Returns the rules that `ApprovalService` created, newest first.
    pub(crate) fn runtime_rules(&self) -> &[Arc<Rule>] {
        &self.runtime_rules
    }

    /// Whether a decision needs the parameters of a call: to match rules, or to show them to an
    /// approver.
    pub(crate) fn needs_params(
        &self,
        tool: &str,
        dialect_tool: Option<&str>,
        risk: Risk,
        workspace: &str,
    ) -> bool {
        self.policy.action_for_risk(risk) == PolicyAction::Ask
            || self.rules().any(|rule| {
                (rule.pattern.is_some() || rule.action == PolicyAction::Ask)
                    && rule.applies_to(tool, dialect_tool, workspace)
            })
    }

    /// Whether a rule may match the parameters of a call as the dialect has them.
    pub(crate) fn needs_dialect_params(&self, dialect_tool: &str, workspace: &str) -> bool {
        self.rules()
            .any(|rule| rule.pattern.is_some() && rule.applies_to(dialect_tool, None, workspace))
    }

    /// Returns the bytes that a decision matches, counted once for each pattern.
    pub(super) fn match_cost_bytes(&self, request: PolicyRequestRef<'_>, now: SystemTime) -> usize {
        let patterns = self.rules().filter(|rule| {
            rule.pattern.is_some()
                && rule.applies_to(request.tool, request.dialect_tool(), request.workspace)
                && rule.is_active(now)
        });
        let dialect_texts = request.dialect_call.map_or(&[][..], |(_, texts)| texts);
        let texts = request.texts.iter().chain(dialect_texts);
        let bytes: usize = texts.map(|text| text.text.len()).sum();

        bytes.saturating_mul(patterns.count())
    }

    pub(crate) fn decide(&self, request: PolicyRequestRef<'_>, now: SystemTime) -> PolicyDecision {
        if !self.policy.is_tool_enabled(request.tool, request.dialect_tool()) {
            return PolicyDecision { action: PolicyAction::Deny, decided_by: DecidedBy::ToolLists };
        }

        let mut deciding = None;
        let active_rules = self.rules().filter(|rule| {
            rule.applies_to(request.tool, request.dialect_tool(), request.workspace)
                && rule.is_active(now)
        });
        for rule in active_rules {
            // A deny rule wins from any position. Otherwise the first matching rule decides.
            let may_decide = rule.action == PolicyAction::Deny || deciding.is_none();
            if may_decide && rule.matches(request) {
                deciding = Some(rule);
                if rule.action == PolicyAction::Deny {
                    break;
                }
            }
        }

        match deciding {
            Some(rule) => PolicyDecision {
                action: rule.action,
                decided_by: DecidedBy::Rule(Arc::clone(rule)),
            },
            None => PolicyDecision {
                action: self.policy.action_for_risk(request.risk),
                decided_by: DecidedBy::Risk(request.risk),
            },
        }
    }

    /// Returns all rules, in the order in which they are matched.
    fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.runtime_rules.iter().chain(&self.policy.rules)
    }
}

/// Whether the contract, the configuration or a dialect has a tool of this name.
pub(crate) fn is_known_tool(catalog: &Catalog, name: &str) -> bool {
    catalog.has_tool(name) || dialect::is_dialect_tool(name)
}

impl DecidedBy {
    /// Returns the value for records.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::ToolLists => "policy:tool_disabled".to_owned(),
            Self::Rule(rule) => format!("rule:{}", rule.id),
            Self::Risk(risk) => format!("risk:{}", risk_name(*risk)),
        }
    }
}

#[cfg(test)]
mod tests;
