//! Restricts calls of the service to the workspaces and tools that the caller's key permits.
//!
//! Approvals and rules outside of the scope do not exist for the caller.

use std::{collections::BTreeSet, sync::Arc};

use crate::daemon::{
    error::Error,
    pipeline::{Pipeline, access::principal::Principal, context::CallContext, policy::rule::Rule},
    store::approvals::ApprovalRecord,
};

/// The workspaces and tools that a call may see.
#[derive(Debug, Clone)]
pub(super) struct CallerScope {
    workspaces: BTreeSet<String>,
    principal: Arc<Principal>,
}

impl CallerScope {
    /// The workspace that a call names, or else all that are visible to its caller.
    pub(super) fn for_call(pipeline: &Pipeline, context: &CallContext) -> Result<Self, Error> {
        let workspaces = match context.workspace {
            Some(_) => [pipeline.resolve_workspace(context)?.workspace.name().to_owned()].into(),
            None => pipeline
                .workspaces
                .visible_to(&context.principal)
                .iter()
                .map(|visible| visible.workspace.name().to_owned())
                .collect(),
        };
        Ok(Self { workspaces, principal: Arc::clone(&context.principal) })
    }

    pub(super) fn workspaces(&self) -> &BTreeSet<String> {
        &self.workspaces
    }

    pub(super) fn contains_approval(&self, record: &ApprovalRecord) -> bool {
        self.workspaces.contains(&record.workspace) && self.allows_tool(&record.tool)
    }

    /// Whether a rule applies to any workspace of the scope.
    pub(super) fn overlaps_rule(&self, rule: &Rule) -> bool {
        self.workspaces.iter().any(|name| rule.applies_in_workspace(name))
            && self.allows_tool(&rule.tool)
    }

    /// Whether a rule applies only to workspaces of the scope.
    pub(super) fn contains_rule(&self, rule: &Rule) -> bool {
        let mut workspaces = rule.workspaces.iter().flatten();
        rule.created_workspaces.is_none()
            && workspaces.all(|name| self.workspaces.contains(name))
            && self.allows_tool(&rule.tool)
    }

    fn allows_tool(&self, tool: &str) -> bool {
        self.principal.require_tool(tool).is_ok()
    }
}
