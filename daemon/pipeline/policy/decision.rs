//! The decision about a call: a pure function of what the operator wants, the call, and the time.

use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

use super::{request_ref::PolicyRequestRef, rule::Rule};
use crate::{
    api::v1::Risk,
    daemon::{
        catalog::{Catalog, definition::risk_name},
        config::policy::{ApprovalsConfig, PolicyAction, PolicyConfig, RiskActions},
        dialect,
    },
};

/// What the configuration file says.
#[derive(Debug)]
pub(crate) struct CompiledPolicy {
    allow_tools: Option<BTreeSet<String>>,
    deny_tools: BTreeSet<String>,
    /// Those that the rest of the configuration leaves nothing to do: they are not there either.
    unusable_tools: &'static [&'static str],
    risk_levels: RiskActions,
    rules: Vec<Arc<Rule>>,
    /// How calls wait to be approved.
    pub(crate) approvals: ApprovalsConfig,
}

/// All that decides at one time.
#[derive(Debug, Clone)]
pub(crate) struct PolicySnapshot {
    /// What the configuration file says.
    pub(crate) policy: Arc<CompiledPolicy>,
    /// The rules that were made by ApprovalService, newest first.
    stored_rules: Arc<[Arc<Rule>]>,
}

/// What was decided, and by what.
#[derive(Debug, Clone)]
pub(crate) struct PolicyDecision {
    /// What becomes of the call.
    pub(crate) action: PolicyAction,
    /// What decided.
    pub(crate) decided_by: DecidedBy,
}

/// What decided.
#[derive(Debug, Clone)]
pub(crate) enum DecidedBy {
    /// The lists of tools: it is switched off.
    ToolLists,
    /// A rule.
    Rule(Arc<Rule>),
    /// The risk of the tool.
    Risk(Risk),
}

impl CompiledPolicy {
    /// What a configuration file says. Refuses tools and workspaces that there are not, and patterns that
    /// cannot be read; tells every problem. `idle_tools` are those that the rest of the configuration leaves
    /// nothing to do.
    pub(crate) fn new(
        policy: PolicyConfig,
        catalog: &Catalog,
        workspaces: &[&str],
        idle_tools: &'static [&'static str],
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
        let mut rules = Vec::new();
        for written in policy.rules {
            let name = written.name.clone();
            let mut report =
                |text: &str| problems.push(format!("policy.rules: rule {name:?}: {text}"));
            if !is_known_tool(catalog, &written.tool) {
                report(&catalog.unknown_tool_message(&written.tool));
            }
            for workspace in written.workspaces.iter().flatten() {
                if !workspaces.contains(&workspace.as_str()) {
                    report(&format!("there is no workspace {workspace:?}"));
                }
            }
            match Rule::from_config(written) {
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
            unusable_tools: idle_tools,
            risk_levels: policy.risk_actions,
            rules,
            approvals: policy.approvals,
        })
    }

    /// The rules of the file, in its order.
    pub(crate) fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// Whether the tool is there at all, for a call that was made by its name or, in a dialect, by another.
    pub(crate) fn is_tool_enabled(&self, tool: &str, dialect_tool: Option<&str>) -> bool {
        let is_in = |tools: &BTreeSet<String>| {
            tools.contains(tool) || dialect_tool.is_some_and(|said| tools.contains(said))
        };
        self.allow_tools.as_ref().is_none_or(is_in)
            && !is_in(&self.deny_tools)
            && !self.unusable_tools.contains(&tool)
    }

    /// What becomes of calls that no rule is about, by the risk of their tool.
    pub(crate) fn action_for_risk(&self, risk: Risk) -> PolicyAction {
        match risk {
            Risk::ReadOnly => self.risk_levels.read_only,
            Risk::SafeWrite => self.risk_levels.safe_write,
            Risk::Dangerous | Risk::Unspecified => self.risk_levels.dangerous,
        }
    }
}

impl PolicySnapshot {
    /// What a file says, and the rules that were made beside it, newest first.
    pub(crate) fn new(settings: Arc<CompiledPolicy>, stored: Arc<[Arc<Rule>]>) -> Self {
        Self { policy: settings, stored_rules: stored }
    }

    /// The rules that were made by ApprovalService, newest first.
    pub(crate) fn stored_rules(&self) -> &[Arc<Rule>] {
        &self.stored_rules
    }

    /// Whether the parameters of a call can matter: to be compared with rules, or to be shown to who is
    /// asked.
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

    /// Whether the parameters of a call of a dialect can matter as they were given.
    pub(crate) fn needs_dialect_params(&self, said: &str, workspace: &str) -> bool {
        self.rules().any(|rule| rule.pattern.is_some() && rule.applies_to(said, None, workspace))
    }

    /// Bytes that are compared to decide about a call, counted once for each pattern.
    pub(super) fn match_cost_bytes(&self, request: PolicyRequestRef<'_>, now: SystemTime) -> usize {
        let compared = self.rules().filter(|rule| {
            rule.pattern.is_some()
                && rule.applies_to(request.tool, request.dialect_tool(), request.workspace)
                && rule.is_active(now)
        });
        let said = request.dialect_call.map_or(&[][..], |(_, texts)| texts);
        let texts = request.texts.iter().chain(said);
        let bytes: usize = texts.map(|text| text.text.len()).sum();
        bytes.saturating_mul(compared.count())
    }

    /// Decides about a call.
    pub(crate) fn decide(&self, request: PolicyRequestRef<'_>, now: SystemTime) -> PolicyDecision {
        if !self.policy.is_tool_enabled(request.tool, request.dialect_tool()) {
            return PolicyDecision { action: PolicyAction::Deny, decided_by: DecidedBy::ToolLists };
        }
        let mut first = None;
        let live = self.rules().filter(|rule| {
            rule.applies_to(request.tool, request.dialect_tool(), request.workspace)
                && rule.is_active(now)
        });
        for rule in live {
            // One that denies counts wherever it stands; of the others, the first.
            let counts = rule.action == PolicyAction::Deny || first.is_none();
            if counts && rule.matches(request) {
                first = Some(rule);
                if rule.action == PolicyAction::Deny {
                    break;
                }
            }
        }
        match first {
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

    /// All rules, in the order in which they are asked.
    fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.stored_rules.iter().chain(&self.policy.rules)
    }
}

/// Whether there is a tool of this name, in the contract, in the configuration or in a dialect.
pub(crate) fn is_known_tool(catalog: &Catalog, name: &str) -> bool {
    catalog.has_tool(name) || dialect::is_dialect_tool(name)
}

impl DecidedBy {
    /// What records say of it.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::ToolLists => "tools that are switched off".to_owned(),
            Self::Rule(rule) => format!("rule {}", rule.id),
            Self::Risk(risk) => format!("risk {}", risk_name(*risk)),
        }
    }
}

#[cfg(test)]
mod tests;
