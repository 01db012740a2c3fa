//! Who calls.

use std::{collections::BTreeSet, sync::Arc};

use crate::daemon::{
    config::keys::{Allowance, Key, Role},
    error::{Error, Reason},
};

/// Somebody who may call.
#[derive(Debug)]
pub(crate) struct Principal {
    name: String,
    role: Role,
    /// None where it is all.
    workspaces: Option<BTreeSet<String>>,
    /// None where it is all.
    tools: Option<BTreeSet<String>>,
    allowance: Allowance,
}

impl Principal {
    /// Who holds a key.
    pub(super) fn holder(key: &Key) -> Self {
        Self {
            name: format!("key:{}", key.name),
            role: key.role,
            workspaces: key.workspaces.clone(),
            tools: key.tools.clone(),
            allowance: key.allowance,
        }
    }

    /// A user of this machine whom the daemon trusts.
    pub(super) fn of_user(uid: u32) -> Arc<Self> {
        Self::administrator(format!("uid:{uid}"))
    }

    /// Whoever reaches the loopback interface.
    pub(super) fn of_loopback() -> Arc<Self> {
        Self::administrator("loopback".to_owned())
    }

    fn administrator(name: String) -> Arc<Self> {
        Arc::new(Self {
            name,
            role: Role::Admin,
            workspaces: None,
            tools: None,
            allowance: Allowance::default(),
        })
    }

    /// What it is called in records: `key:NAME`, `uid:1000` or `loopback`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What it may do.
    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Whether the workspace of this name is there for it.
    pub(crate) fn sees(&self, workspace: &str) -> bool {
        let workspaces = self.workspaces.as_ref();
        workspaces.is_none_or(|names| names.contains(workspace))
    }

    /// Refuses what needs another role.
    pub(crate) fn has_role(&self, needed: Role, what: &str) -> Result<(), Error> {
        if self.role >= needed {
            return Ok(());
        }
        let text = format!(
            "{what} needs the role {needed}, and {} has the role {}: use another key",
            self.name, self.role
        );
        Err(Error::new(Reason::Forbidden, text).with("role", needed.name()))
    }

    /// Refuses a tool that its key is not for.
    pub(crate) fn may_call(&self, tool: &str) -> Result<(), Error> {
        let tools = self.tools.as_ref();
        if tools.is_none_or(|names| names.contains(tool)) {
            return Ok(());
        }
        let text = format!(
            "{} is not for the tool {tool}: use another key, or one of the tools that it is for",
            self.name
        );
        Err(Error::new(Reason::Forbidden, text).with("tool", tool))
    }

    /// Whether both are the same, with the same rights.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.name == other.name
            && self.role == other.role
            && self.workspaces == other.workspaces
            && self.tools == other.tools
            && self.allowance == other.allowance
    }
}
