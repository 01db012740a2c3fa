//! Restricts calls of the service to the workspaces and tools that the caller's key permits.
//!
//! Approvals and rules outside of the scope do not exist for the caller.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use tokio_util::sync::CancellationToken;

use crate::daemon::{
    error::Error,
    pipeline::{
        Pipeline, access::principal::Principal, approval::request::Approval, context::CallContext,
        policy::rule::Rule,
    },
    workspace::Workspace,
};

/// The workspaces and tools that a call may see.
#[derive(Debug, Clone)]
pub(super) struct CallerScope {
    workspaces: BTreeSet<String>,
    /// The same by name, to tell them from later ones with their names.
    instances: BTreeMap<String, ScopedWorkspace>,
    principal: Arc<Principal>,
}

/// A workspace of a scope. Does not keep it open.
#[derive(Debug, Clone)]
struct ScopedWorkspace {
    workspace: Weak<Workspace>,
    deletion: Option<CancellationToken>,
}

impl CallerScope {
    /// The workspace that a call names, or else all that are visible to its caller.
    pub(super) fn for_call(pipeline: &Pipeline, context: &CallContext) -> Result<Self, Error> {
        let visible = match context.workspace {
            Some(_) => vec![pipeline.resolve_workspace(context)?],
            None => pipeline.workspaces.visible_to(&context.principal),
        };
        let workspaces = visible.iter().map(|visible| visible.workspace.name().to_owned());
        let instances = visible.iter().map(|visible| {
            let workspace = Arc::downgrade(&visible.workspace);
            let scoped = ScopedWorkspace { workspace, deletion: visible.deletion.clone() };
            (visible.workspace.name().to_owned(), scoped)
        });
        Ok(Self {
            workspaces: workspaces.collect(),
            instances: instances.collect(),
            principal: Arc::clone(&context.principal),
        })
    }

    pub(super) fn workspaces(&self) -> &BTreeSet<String> {
        &self.workspaces
    }

    /// Whether the approval is of a workspace that the scope has, and not of a later or earlier one
    /// with its name.
    pub(super) fn contains_approval(&self, approval: &Approval) -> bool {
        let Some(own) = self.instances.get(&approval.record.workspace) else {
            return false;
        };
        let is_of_own = match &approval.workspace {
            Some(workspace) => Weak::ptr_eq(workspace, &own.workspace),
            // The database forgets approvals with their workspace.
            None => !own.deletion.as_ref().is_some_and(CancellationToken::is_cancelled),
        };
        is_of_own && self.allows_tool(&approval.record.tool)
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
