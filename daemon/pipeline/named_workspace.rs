//! The workspace that a call names, and the operations of `WorkspaceService`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    Pipeline,
    context::CallContext,
    workspaces::{
        OwnedWorkspace,
        created::{NewWorkspace, WorkspaceCreator},
    },
};
use crate::daemon::{
    error::{Error, Reason},
    tool::WorkspaceContext,
};

/// Most names that an error lists.
const MAX_LISTED_NAMES: usize = 20;

impl Pipeline {
    /// Creates a workspace. Not cancel safe: run it in a task of its own.
    pub(crate) async fn create_workspace(
        &self,
        new: NewWorkspace,
    ) -> Result<Arc<OwnedWorkspace>, Error> {
        self.require_creator()?.create(&self.workspaces, new).await
    }

    /// Changes when a created workspace expires, and its labels. A time of zero means never, if the
    /// operator allows that.
    pub(crate) async fn update_workspace(
        &self,
        workspace: &OwnedWorkspace,
        ttl: Option<Duration>,
        idle_timeout: Option<Duration>,
        labels: Option<BTreeMap<String, String>>,
    ) -> Result<(), Error> {
        let creator = self.require_creator()?;
        let changed = workspace.change(|stored| {
            if let Some(ttl) = ttl {
                stored.expires_ms = creator.expiry_after(Some(ttl).filter(|ttl| !ttl.is_zero()));
            }
            if let Some(timeout) = idle_timeout {
                let timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
                stored.idle_timeout_ms = creator.idle_timeout_ms(timeout);
            }
            stored.labels = labels.unwrap_or_else(|| stored.labels.clone());
        });
        creator.update(changed).await
    }

    /// Returns an error if callers cannot create workspaces.
    pub(crate) fn require_creator(&self) -> Result<&WorkspaceCreator, Error> {
        self.workspace_creator.as_ref().ok_or_else(|| {
            let text = "this daemon creates no workspaces: the operator can set workspaces_on_demand.directory";
            Error::new(Reason::WorkspacesDisabled, text)
        })
    }

    /// Returns the workspace that a call names, or the default one: during one call always the same.
    pub(crate) fn resolve_workspace(
        &self,
        context: &CallContext,
    ) -> Result<Arc<WorkspaceContext>, Error> {
        if let Some(found) = context.found_workspace.get() {
            found.require_undeleted()?;
            return Ok(Arc::clone(found));
        }
        let name = context.workspace.as_deref();
        let found = self.workspaces.find(&context.principal, name);
        let found =
            found.ok_or_else(|| self.unknown_workspace_error(context, name.unwrap_or_default()))?;
        Ok(Arc::clone(context.found_workspace.get_or_init(|| found)))
    }

    /// The error for a workspace that the caller does not see. It names none of the others that the
    /// caller may not see.
    fn unknown_workspace_error(&self, context: &CallContext, name: &str) -> Error {
        let visible = self.workspaces.visible_to(&context.principal);
        let mut names: Vec<_> = visible.iter().map(|context| context.workspace.name()).collect();
        if names.len() > MAX_LISTED_NAMES {
            names.truncate(MAX_LISTED_NAMES);
            names.push("…");
        }
        let choice = if names.is_empty() {
            "a workspace that it creates, because the caller sees none".to_owned()
        } else {
            format!("one of: {}", names.join(", "))
        };
        let text = format!("unknown workspace {name:?}: set jig-workspace to {choice}");
        Error::new(Reason::UnknownWorkspace, text).with_metadata("workspace", name)
    }
}
