//! A rule: which calls it is about, and what becomes of them.

use std::{collections::BTreeSet, time::SystemTime};

use super::{pattern::RulePattern, request_ref::PolicyRequestRef};
use crate::daemon::{
    catalog::PolicyText,
    config::policy::{PolicyAction, PolicyRuleConfig},
};

/// What ids of rules of the configuration file begin with.
pub(crate) const FILE_RULE_ID_PREFIX: &str = "file:";

/// A rule.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    /// A ULID; of the configuration file, `file:` and its name.
    pub(crate) id: String,
    /// What it is called.
    pub(crate) name: String,
    /// The tool that it is about.
    pub(crate) tool: String,
    /// What must be in the parameters; without, any.
    pub(crate) pattern: Option<RulePattern>,
    /// What becomes of calls that match.
    pub(crate) action: PolicyAction,
    /// The workspaces that it is about; without, all.
    pub(crate) workspaces: Option<BTreeSet<String>>,
    /// When it ends.
    pub(crate) expires: Option<SystemTime>,
    /// Whether it is switched on.
    pub(crate) enabled: bool,
    /// Who made it; none where that is the configuration file.
    pub(crate) provenance: Option<RuleProvenance>,
}

/// By whom and when a rule was made.
#[derive(Debug, Clone)]
pub(crate) struct RuleProvenance {
    /// Who.
    pub(crate) by: String,
    /// When.
    pub(crate) at: SystemTime,
    /// With which approval, if with one.
    pub(crate) approval_id: Option<String>,
}

impl Rule {
    /// The rule that a table of the configuration file is.
    pub(super) fn from_config(written: PolicyRuleConfig) -> Result<Self, String> {
        let pattern = written.pattern.as_deref().map(RulePattern::parse).transpose()?;
        Ok(Self {
            id: format!("{FILE_RULE_ID_PREFIX}{}", written.name),
            name: written.name,
            tool: written.tool,
            pattern,
            action: written.action,
            workspaces: written.workspaces,
            expires: written.expires,
            enabled: written.enabled,
            provenance: None,
        })
    }

    /// Bytes of its pattern.
    pub(super) fn pattern_bytes(&self) -> usize {
        let pattern = self.pattern.as_ref();
        pattern.map_or(0, |pattern| pattern.as_str().len())
    }

    /// Whether it is about a tool in a workspace, by its name or by the one that it was `said` by in a dialect.
    pub(crate) fn applies_to(
        &self,
        tool: &str,
        dialect_tool: Option<&str>,
        workspace: &str,
    ) -> bool {
        (self.tool == tool || dialect_tool == Some(&self.tool))
            && self.applies_in_workspace(workspace)
    }

    /// Whether it is about calls in a workspace.
    pub(crate) fn applies_in_workspace(&self, workspace: &str) -> bool {
        let workspaces = self.workspaces.as_ref();
        workspaces.is_none_or(|names| names.contains(workspace))
    }

    /// Whether it counts at a time.
    pub(super) fn is_active(&self, now: SystemTime) -> bool {
        self.enabled && !self.has_expired(now)
    }

    /// Whether its time was over at a time.
    pub(super) fn has_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|end| end <= now)
    }

    /// Whether the parameters of a call, under the name that it is about, are what it is looking for.
    pub(super) fn matches(&self, request: PolicyRequestRef<'_>) -> bool {
        let goes_by = |text: &&PolicyText| text.may_allow || self.action != PolicyAction::Allow;
        let by_name = (self.tool == request.tool).then_some(request.texts);
        let said = request.dialect_call.filter(|(tool, _)| *tool == self.tool);
        let is_in = |pattern: &RulePattern| {
            let texts = by_name.into_iter().chain(said.map(|(_, texts)| texts));
            let mut texts = texts.flatten().filter(goes_by);
            texts.any(|text| pattern.is_match(&text.text))
        };
        self.pattern.as_ref().is_none_or(is_in)
    }
}
