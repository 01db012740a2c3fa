//! The decision about a call: a pure function of what the operator wants, the call, and the time.

use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

use super::{asked::Asked, rule::Rule};
use crate::{
    api::v1::Risk,
    daemon::{
        catalog::{Catalog, definition::risk_name},
        config::policy::{Action, Approvals, Levels, Policy},
        dialect,
    },
};

/// What the configuration file says.
#[derive(Debug)]
pub(crate) struct Settings {
    allow_tools: Option<BTreeSet<String>>,
    deny_tools: BTreeSet<String>,
    /// Those that the rest of the configuration leaves nothing to do: they are not there either.
    idle_tools: &'static [&'static str],
    levels: Levels,
    rules: Vec<Arc<Rule>>,
    /// How calls wait to be approved.
    pub(crate) approvals: Approvals,
}

/// All that decides at one time.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    /// What the configuration file says.
    pub(crate) settings: Arc<Settings>,
    /// The rules that were made by ApprovalService, newest first.
    stored: Arc<[Arc<Rule>]>,
}

/// What was decided, and by what.
#[derive(Debug, Clone)]
pub(crate) struct Verdict {
    /// What becomes of the call.
    pub(crate) action: Action,
    /// What decided.
    pub(crate) by: By,
}

/// What decided.
#[derive(Debug, Clone)]
pub(crate) enum By {
    /// The lists of tools: it is switched off.
    Lists,
    /// A rule.
    Rule(Arc<Rule>),
    /// The risk of the tool.
    Risk(Risk),
}

impl Settings {
    /// What a configuration file says. Refuses tools and workspaces that there are not, and patterns that
    /// cannot be read; tells every problem. `idle_tools` are those that the rest of the configuration leaves
    /// nothing to do.
    pub(crate) fn new(
        policy: Policy,
        catalog: &Catalog,
        workspaces: &[&str],
        idle_tools: &'static [&'static str],
    ) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        for (key, names) in
            [("allow_tools", policy.allow_tools.as_ref()), ("deny_tools", Some(&policy.deny_tools))]
        {
            for name in names.into_iter().flatten() {
                if !is_tool(catalog, name) {
                    problems.push(format!("policy.{key}: {}", catalog.no_tool(name)));
                }
            }
        }
        let mut rules = Vec::new();
        for written in policy.rules {
            let name = written.name.clone();
            let mut report =
                |text: &str| problems.push(format!("policy.rules: rule {name:?}: {text}"));
            if !is_tool(catalog, &written.tool) {
                report(&catalog.no_tool(&written.tool));
            }
            for workspace in written.workspaces.iter().flatten() {
                if !workspaces.contains(&workspace.as_str()) {
                    report(&format!("there is no workspace {workspace:?}"));
                }
            }
            match Rule::of_file(written) {
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
            idle_tools,
            levels: policy.levels,
            rules,
            approvals: policy.approvals,
        })
    }

    /// The rules of the file, in its order.
    pub(crate) fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// Whether the tool is there at all, for a call that was made by its name or, in a dialect, by another.
    pub(crate) fn has_tool(&self, tool: &str, said: Option<&str>) -> bool {
        let is_in = |tools: &BTreeSet<String>| {
            tools.contains(tool) || said.is_some_and(|said| tools.contains(said))
        };
        self.allow_tools.as_ref().is_none_or(is_in)
            && !is_in(&self.deny_tools)
            && !self.idle_tools.contains(&tool)
    }

    /// What becomes of calls that no rule is about, by the risk of their tool.
    pub(crate) fn level(&self, risk: Risk) -> Action {
        match risk {
            Risk::ReadOnly => self.levels.read_only,
            Risk::SafeWrite => self.levels.safe_write,
            Risk::Dangerous | Risk::Unspecified => self.levels.dangerous,
        }
    }
}

impl Snapshot {
    /// What a file says, and the rules that were made beside it, newest first.
    pub(crate) fn new(settings: Arc<Settings>, stored: Arc<[Arc<Rule>]>) -> Self {
        Self { settings, stored }
    }

    /// The rules that were made by ApprovalService, newest first.
    pub(crate) fn stored(&self) -> &[Arc<Rule>] {
        &self.stored
    }

    /// Whether the parameters of a call can matter: to be compared with rules, or to be shown to who is
    /// asked.
    pub(crate) fn looks_at(
        &self,
        tool: &str,
        said: Option<&str>,
        risk: Risk,
        workspace: &str,
    ) -> bool {
        self.settings.level(risk) == Action::Ask
            || self.rules().any(|rule| {
                (rule.pattern.is_some() || rule.action == Action::Ask)
                    && rule.is_about(tool, said, workspace)
            })
    }

    /// Whether the parameters of a call of a dialect can matter as they were given.
    pub(crate) fn looks_at_said(&self, said: &str, workspace: &str) -> bool {
        self.rules().any(|rule| rule.pattern.is_some() && rule.is_about(said, None, workspace))
    }

    /// Bytes that are compared to decide about a call, counted once for each pattern.
    pub(super) fn work(&self, asked: Asked<'_>, now: SystemTime) -> usize {
        let compared = self.rules().filter(|rule| {
            rule.pattern.is_some()
                && rule.is_about(asked.tool, asked.name(), asked.workspace)
                && rule.is_live(now)
        });
        let said = asked.said.map_or(&[][..], |(_, texts)| texts);
        let texts = asked.texts.iter().chain(said);
        let bytes: usize = texts.map(|text| text.text.len()).sum();
        bytes.saturating_mul(compared.count())
    }

    /// Decides about a call.
    pub(crate) fn decide(&self, asked: Asked<'_>, now: SystemTime) -> Verdict {
        if !self.settings.has_tool(asked.tool, asked.name()) {
            return Verdict { action: Action::Deny, by: By::Lists };
        }
        let mut first = None;
        let live = self.rules().filter(|rule| {
            rule.is_about(asked.tool, asked.name(), asked.workspace) && rule.is_live(now)
        });
        for rule in live {
            // One that denies counts wherever it stands; of the others, the first.
            let counts = rule.action == Action::Deny || first.is_none();
            if counts && rule.matches(asked) {
                first = Some(rule);
                if rule.action == Action::Deny {
                    break;
                }
            }
        }
        match first {
            Some(rule) => Verdict { action: rule.action, by: By::Rule(Arc::clone(rule)) },
            None => Verdict { action: self.settings.level(asked.risk), by: By::Risk(asked.risk) },
        }
    }

    /// All rules, in the order in which they are asked.
    fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.stored.iter().chain(&self.settings.rules)
    }
}

/// Whether there is a tool of this name, in the contract, in the configuration or in a dialect.
pub(crate) fn is_tool(catalog: &Catalog, name: &str) -> bool {
    catalog.has_tool(name) || dialect::is_tool(name)
}

impl By {
    /// What records say of it.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Lists => "tools that are switched off".to_owned(),
            Self::Rule(rule) => format!("rule {}", rule.id),
            Self::Risk(risk) => format!("risk {}", risk_name(*risk)),
        }
    }
}

#[cfg(test)]
mod tests;
