//! Deletes a created workspace with everything that belongs to it.

use std::sync::Arc;

use super::{
    Pipeline,
    state_error::state_database_error,
    workspaces::{OwnedWorkspace, created::WorkspaceCreator},
};
use crate::daemon::{
    error::Error,
    store::{failure::state_failure, workspaces::StoredWorkspace},
    task,
};

impl Pipeline {
    /// Ends the calls and processes of a workspace, and removes its files and records.
    ///
    /// Returns when the last process is gone. Not cancel safe: run it in a task of its own. After an
    /// error, the next start of the daemon continues.
    pub(crate) async fn delete_workspace(
        self: &Arc<Self>,
        workspace: &Arc<OwnedWorkspace>,
    ) -> Result<(), Error> {
        let creator = self.require_creator()?;
        let busy = creator.begin_deletion(&self.workspaces, workspace).await?;
        if let Some(deletion) = &workspace.context.deletion {
            deletion.cancel();
        }
        let stored = workspace.stored();
        let deleted = self.remove_everything(creator, workspace, &stored).await;
        if deleted.is_err() {
            // Records are left that a workspace of the same name would find.
            busy.keep();
        }
        deleted
    }

    async fn remove_everything(
        self: &Arc<Self>,
        creator: &WorkspaceCreator,
        workspace: &OwnedWorkspace,
        stored: &StoredWorkspace,
    ) -> Result<(), Error> {
        let name = &stored.name;
        self.jobs.end_all_in(name).await;
        creator.end_processes(workspace).await?;
        self.remove_records(creator, stored).await
    }

    /// Opens the workspaces that earlier daemons created, and completes their deletions.
    pub(crate) async fn open_created_workspaces(self: &Arc<Self>) -> Result<(), Error> {
        let Some(creator) = &self.workspace_creator else {
            return Ok(());
        };
        for workspace in creator.load(&self.workspaces).await? {
            tracing::info!(workspace = workspace.name, "removing an incomplete workspace");
            self.remove_records(creator, &workspace).await?;
        }
        self.spawn_workspace_expiry();
        Ok(())
    }

    /// Removes the files and records of a workspace without processes.
    async fn remove_records(
        &self,
        creator: &WorkspaceCreator,
        stored: &StoredWorkspace,
    ) -> Result<(), Error> {
        let name = &stored.name;
        self.processes.remove_all_in(name);
        let rules = self.policy.remove_all_in(name).await;
        rules.map_err(|error| state_database_error(&error))?;
        let (sessions, of) = (Arc::clone(self.state_dir.sessions()), name.clone());
        let removed = task::spawn_blocking(move || sessions.remove_all_in(&of)).await;
        removed.map_err(Error::internal)?.map_err(|error| state_failure(&error))?;
        creator.remove_rest(stored).await
    }
}
