//! A rule: which calls it is about, and what becomes of them.

use std::{collections::BTreeSet, time::SystemTime};

use super::{asked::Asked, pattern::Pattern};
use crate::daemon::{
    catalog::Text,
    config::policy::{Action, PolicyRule},
};

/// What ids of rules of the configuration file begin with.
pub(crate) const OF_FILE: &str = "file:";

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
    pub(crate) pattern: Option<Pattern>,
    /// What becomes of calls that match.
    pub(crate) action: Action,
    /// The workspaces that it is about; without, all.
    pub(crate) workspaces: Option<BTreeSet<String>>,
    /// When it ends.
    pub(crate) expires: Option<SystemTime>,
    /// Whether it is switched on.
    pub(crate) enabled: bool,
    /// Who made it; none where that is the configuration file.
    pub(crate) made: Option<Made>,
}

/// By whom and when a rule was made.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    /// Who.
    pub(crate) by: String,
    /// When.
    pub(crate) at: SystemTime,
    /// With which approval, if with one.
    pub(crate) approval_id: Option<String>,
}

impl Rule {
    /// The rule that a table of the configuration file is.
    pub(super) fn of_file(written: PolicyRule) -> Result<Self, String> {
        let pattern = written.pattern.as_deref().map(Pattern::parse).transpose()?;
        Ok(Self {
            id: format!("{OF_FILE}{}", written.name),
            name: written.name,
            tool: written.tool,
            pattern,
            action: written.action,
            workspaces: written.workspaces,
            expires: written.expires,
            enabled: written.enabled,
            made: None,
        })
    }

    /// Bytes of its pattern.
    pub(super) fn pattern_bytes(&self) -> usize {
        let pattern = self.pattern.as_ref();
        pattern.map_or(0, |pattern| pattern.as_str().len())
    }

    /// Whether it is about a tool in a workspace, by its name or by the one that it was `said` by in a dialect.
    pub(crate) fn is_about(&self, tool: &str, said: Option<&str>, workspace: &str) -> bool {
        (self.tool == tool || said == Some(&self.tool)) && self.is_for(workspace)
    }

    /// Whether it is about calls in a workspace.
    pub(crate) fn is_for(&self, workspace: &str) -> bool {
        let workspaces = self.workspaces.as_ref();
        workspaces.is_none_or(|names| names.contains(workspace))
    }

    /// Whether it counts at a time.
    pub(super) fn is_live(&self, now: SystemTime) -> bool {
        self.enabled && !self.has_ended(now)
    }

    /// Whether its time was over at a time.
    pub(super) fn has_ended(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|end| end <= now)
    }

    /// Whether the parameters of a call, under the name that it is about, are what it is looking for.
    pub(super) fn matches(&self, asked: Asked<'_>) -> bool {
        let goes_by = |text: &&Text| text.may_allow || self.action != Action::Allow;
        let by_name = (self.tool == asked.tool).then_some(asked.texts);
        let said = asked.said.filter(|(tool, _)| *tool == self.tool);
        let is_in = |pattern: &Pattern| {
            let texts = by_name.into_iter().chain(said.map(|(_, texts)| texts));
            let mut texts = texts.flatten().filter(goes_by);
            texts.any(|text| pattern.is_in(&text.text))
        };
        self.pattern.as_ref().is_none_or(is_in)
    }
}
