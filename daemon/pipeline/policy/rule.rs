//! A policy rule: the calls that it matches, and their action.

use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

use globset::{Glob, GlobMatcher};

use super::{pattern::RulePattern, request::PolicyRequestRef};
use crate::daemon::{
    catalog::PolicyText,
    config::policy::{PolicyAction, PolicyRuleConfig},
};

/// Prefix of the ids of rules in the configuration file.
pub(crate) const FILE_RULE_ID_PREFIX: &str = "file:";

#[derive(Debug, Clone)]
pub(crate) struct Rule {
    /// A ULID. For a rule of the configuration file: `file:` and its name.
    pub(crate) id: String,
    pub(crate) name: String,
    /// The tool that the rule applies to: its own name, or its name in a dialect.
    pub(crate) tool: String,
    /// What the parameters must match. `None` matches all.
    pub(crate) pattern: Option<RulePattern>,
    pub(crate) action: PolicyAction,
    /// The workspaces that the rule applies to. `None` means all, or those of `created_workspaces`.
    pub(crate) workspaces: Option<BTreeSet<String>>,
    /// The created workspaces that the rule applies to. `None` means as `workspaces`.
    pub(crate) created_workspaces: Option<CreatedNames>,
    pub(crate) expires: Option<SystemTime>,
    pub(crate) enabled: bool,
    /// `None` for a rule of the configuration file.
    pub(crate) provenance: Option<RuleProvenance>,
}

/// Who created a rule, and when.
#[derive(Debug, Clone)]
pub(crate) struct RuleProvenance {
    /// Name of the principal.
    pub(crate) by: String,
    pub(crate) at: SystemTime,
    /// The approval that the rule was created with, if any.
    pub(crate) approval_id: Option<String>,
}

/// Names of created workspaces.
#[derive(Debug, Clone)]
pub(crate) struct CreatedNames {
    patterns: Vec<GlobMatcher>,
    /// Workspaces of the configuration, which no pattern matches.
    configured: Arc<BTreeSet<String>>,
}

impl CreatedNames {
    fn new(patterns: &BTreeSet<String>, configured: Arc<BTreeSet<String>>) -> Result<Self, String> {
        let compile = |pattern: &String| Glob::new(pattern).map(|glob| glob.compile_matcher());
        let patterns: Result<_, globset::Error> = patterns.iter().map(compile).collect();
        Ok(Self { patterns: patterns.map_err(|error| error.to_string())?, configured })
    }

    fn contain(&self, workspace: &str) -> bool {
        !self.configured.contains(workspace)
            && self.patterns.iter().any(|pattern| pattern.is_match(workspace))
    }
}

impl Rule {
    /// Compiles a rule of the configuration file, whose workspaces are `configured`.
    pub(super) fn from_config(
        written: PolicyRuleConfig,
        configured: &Arc<BTreeSet<String>>,
    ) -> Result<Self, String> {
        let pattern = written.pattern.as_deref().map(RulePattern::parse).transpose()?;
        let created = written.created_workspaces;
        let created = created.map(|names| CreatedNames::new(&names, Arc::clone(configured)));
        Ok(Self {
            id: format!("{FILE_RULE_ID_PREFIX}{}", written.name),
            name: written.name,
            tool: written.tool,
            pattern,
            action: written.action,
            workspaces: written.workspaces,
            created_workspaces: created.transpose()?,
            expires: written.expires,
            enabled: written.enabled,
            provenance: None,
        })
    }

    pub(super) fn pattern_bytes(&self) -> usize {
        let pattern = self.pattern.as_ref();
        pattern.map_or(0, |pattern| pattern.as_str().len())
    }

    /// Whether the rule applies to a tool, by its own name or its name in a dialect, in a
    /// workspace.
    pub(crate) fn applies_to(
        &self,
        tool: &str,
        dialect_tool: Option<&str>,
        workspace: &str,
    ) -> bool {
        (self.tool == tool || dialect_tool == Some(&self.tool))
            && self.applies_in_workspace(workspace)
    }

    pub(crate) fn applies_in_workspace(&self, workspace: &str) -> bool {
        let created = self.created_workspaces.as_ref();
        match &self.workspaces {
            None => created.is_none_or(|names| names.contain(workspace)),
            Some(names) => {
                names.contains(workspace) || created.is_some_and(|names| names.contain(workspace))
            }
        }
    }

    /// Whether the rule is enabled and has not expired.
    pub(super) fn is_active(&self, now: SystemTime) -> bool {
        self.enabled && !self.has_expired(now)
    }

    pub(super) fn has_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|expiry| expiry <= now)
    }

    /// Whether the rule's pattern matches the parameters of a call, under the tool name of the
    /// rule.
    pub(super) fn matches(&self, request: PolicyRequestRef<'_>) -> bool {
        let own_texts = (self.tool == request.tool).then_some(request.texts);
        let dialect_texts =
            request.dialect_call.filter(|(tool, _)| *tool == self.tool).map(|(_, texts)| texts);

        // Some texts may deny or ask, but not allow: see `PolicyText::may_allow`.
        let is_considered =
            |text: &&PolicyText| text.may_allow || self.action != PolicyAction::Allow;
        let matches = |pattern: &RulePattern| {
            let texts = own_texts.into_iter().chain(dialect_texts).flatten();
            texts.filter(is_considered).any(|text| pattern.is_match(&text.text))
        };
        self.pattern.as_ref().is_none_or(matches)
    }
}
