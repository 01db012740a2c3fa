//! What a call of the service is about: the workspaces and the tools that its caller's key is for. What is
//! of others is not there.

use std::{collections::BTreeSet, sync::Arc};

use crate::daemon::{
    call::{Pipeline, access::principal::Principal, context::Incoming, policy::rule::Rule},
    error::Error,
    store::approvals::ApprovalRecord,
};

/// What a call is about.
#[derive(Debug, Clone)]
pub(super) struct Scope {
    workspaces: BTreeSet<String>,
    principal: Arc<Principal>,
}

impl Scope {
    /// The workspace that a call names, or all that are there for its caller.
    pub(super) fn of(pipeline: &Pipeline, incoming: &Incoming) -> Result<Self, Error> {
        let workspaces = match incoming.workspace {
            Some(_) => [pipeline.scene(incoming)?.workspace.name().to_owned()].into(),
            None => pipeline
                .scenes_of(&incoming.principal)
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
    pub(super) fn has(&self, record: &ApprovalRecord) -> bool {
        self.workspaces.contains(&record.workspace) && self.has_tool(&record.tool)
    }

    /// Whether a rule is about any of it.
    pub(super) fn touches(&self, rule: &Rule) -> bool {
        self.workspaces.iter().any(|name| rule.is_for(name)) && self.has_tool(&rule.tool)
    }

    /// Whether a rule is about nothing else.
    pub(super) fn holds(&self, rule: &Rule) -> bool {
        let mut workspaces = rule.workspaces.iter().flatten();
        workspaces.all(|name| self.workspaces.contains(name)) && self.has_tool(&rule.tool)
    }

    fn has_tool(&self, tool: &str) -> bool {
        self.principal.may_call(tool).is_ok()
    }
}
