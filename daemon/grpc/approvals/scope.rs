//! What a call of the service is about: the workspaces and the tools that its caller's key is for. What is
//! of others is not there.

use std::{collections::BTreeSet, sync::Arc};

use crate::daemon::{
    error::Error,
    pipeline::{Pipeline, access::principal::Principal, context::CallContext, policy::rule::Rule},
    store::approvals::ApprovalRecord,
};

/// What a call is about.
#[derive(Debug, Clone)]
pub(super) struct CallerScope {
    workspaces: BTreeSet<String>,
    principal: Arc<Principal>,
}

impl CallerScope {
    /// The workspace that a call names, or all that are there for its caller.
    pub(super) fn for_call(pipeline: &Pipeline, incoming: &CallContext) -> Result<Self, Error> {
        let workspaces = match incoming.workspace {
            Some(_) => [pipeline.workspace_context(incoming)?.workspace.name().to_owned()].into(),
            None => pipeline
                .visible_workspaces(&incoming.principal)
                .map(|scene| scene.workspace.name().to_owned())
                .collect(),
        };
        Ok(Self { workspaces, principal: Arc::clone(&incoming.principal) })
    }

    /// The workspaces.
    pub(super) fn workspaces(&self) -> &BTreeSet<String> {
        &self.workspaces
    }

    /// Whether an approval is in it.
    pub(super) fn contains_approval(&self, record: &ApprovalRecord) -> bool {
        self.workspaces.contains(&record.workspace) && self.allows_tool(&record.tool)
    }

    /// Whether a rule is about any of it.
    pub(super) fn overlaps_rule(&self, rule: &Rule) -> bool {
        self.workspaces.iter().any(|name| rule.applies_in_workspace(name))
            && self.allows_tool(&rule.tool)
    }

    /// Whether a rule is about nothing else.
    pub(super) fn contains_rule(&self, rule: &Rule) -> bool {
        let mut workspaces = rule.workspaces.iter().flatten();
        workspaces.all(|name| self.workspaces.contains(name)) && self.allows_tool(&rule.tool)
    }

    fn allows_tool(&self, tool: &str) -> bool {
        self.principal.require_tool(tool).is_ok()
    }
}
