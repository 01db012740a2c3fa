//! Deletes a created workspace with everything that belongs to it.

use std::sync::{Arc, Weak};

use tokio_util::sync::CancellationToken;

use super::{
    Pipeline,
    access::principal::Principal,
    state_error::state_database_error,
    workspaces::{OwnedWorkspace, created::WorkspaceCreator},
};
use crate::daemon::{
    error::Error,
    store::{failure::state_failure, unix_millis, workspaces::StoredWorkspace},
    task,
    telemetry::{access_log::CallRecord, audit::AuditEvent},
    workspace::fault_injection,
};

/// Why the daemon removes a workspace without a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalCause {
    /// Its `ttl` has passed.
    Expired,
    /// It had no call for its `idle_timeout`.
    Idle,
    /// An earlier daemon died while it created or deleted the workspace.
    Incomplete,
}

impl RemovalCause {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Expired => "ttl",
            Self::Idle => "idle_timeout",
            Self::Incomplete => "incomplete",
        }
    }
}

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
        // The deletion first: calls that end look at it.
        for token in [&workspace.context.deletion, &workspace.context.call_end] {
            token.iter().for_each(CancellationToken::cancel);
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
        self.approvals.wait_until_none_in(name).await;
        fault_injection::step();
        self.remove_records(creator, stored).await
    }

    /// Removes the records of a workspace whose directory is missing, if `principal` may see it.
    /// Returns false if there is none of this name.
    pub(crate) async fn delete_unserved_workspace(
        self: &Arc<Self>,
        principal: &Principal,
        name: &str,
    ) -> Result<bool, Error> {
        let unserved = &self.require_creator()?.unserved;
        let taken =
            unserved.take(|stored| stored.name == name && principal.can_see_created(&stored.owner));
        let is_found = !taken.is_empty();
        self.delete_unserved(taken).await.map(|()| is_found)
    }

    /// Removes the records of workspaces whose directory is missing and whose lifetime is over.
    pub(super) async fn delete_expired_unserved(self: &Arc<Self>) {
        let Some(creator) = &self.workspace_creator else { return };
        let now = unix_millis::now();
        let is_expired = |stored: &StoredWorkspace| stored.expires_ms.is_some_and(|at| at <= now);
        for stored in creator.unserved.take(is_expired) {
            // After an error, the next pass tries again.
            let deleted = self.delete_unserved(vec![stored.clone()]).await;
            self.audit_removal(&stored, RemovalCause::Expired, deleted.as_ref().err());
            if let Err(error) = deleted {
                tracing::warn!(%error, workspace = stored.name, "cannot delete a workspace");
            }
        }
    }

    async fn delete_unserved(self: &Arc<Self>, taken: Vec<StoredWorkspace>) -> Result<(), Error> {
        let creator = self.require_creator()?;
        let mut result = Ok(());
        for stored in taken {
            tracing::info!(workspace = stored.name, "removing a workspace without a directory");
            self.jobs.end_all_in(&stored.name).await;
            match self.remove_records(creator, &stored).await {
                Ok(()) => creator.release_name(&stored.name),
                Err(error) => {
                    creator.unserved.insert(stored);
                    result = Err(error);
                }
            }
        }
        result
    }

    /// Opens the workspaces that earlier daemons created, and completes their deletions.
    pub(crate) async fn open_created_workspaces(self: &Arc<Self>) -> Result<(), Error> {
        let Some(creator) = &self.workspace_creator else {
            return Ok(());
        };
        for workspace in creator.load(&self.workspaces).await? {
            tracing::info!(workspace = workspace.name, "removing an incomplete workspace");
            self.remove_records(creator, &workspace).await?;
            self.audit_removal(&workspace, RemovalCause::Incomplete, None);
        }
        self.spawn_workspace_expiry();
        Ok(())
    }

    /// Reports to the audit log that the daemon removed a workspace without a call, or why it could
    /// not.
    pub(super) fn audit_removal(
        &self,
        stored: &StoredWorkspace,
        cause: RemovalCause,
        error: Option<&Error>,
    ) {
        self.telemetry.audit().record_with(AuditEvent::WorkspaceRemoved, || {
            let record = CallRecord {
                workspace: Some(stored.name.clone()),
                reason: error.map(|error| error.reason.name().to_owned()),
                ..CallRecord::default()
            };
            let details = [("owner", &*stored.owner), ("cause", cause.name())];
            let details = details.map(|(name, value)| (name.to_owned(), value.into()));
            (record, details.into_iter().collect())
        });
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
        fault_injection::step();
        let (sessions, of) = (Arc::clone(self.state_dir.sessions()), name.clone());
        let (uploads, upload_records) =
            (self.upload_sessions.get().and_then(Weak::upgrade), self.state_dir.uploads());
        let remove = move || {
            if let Some(uploads) = uploads {
                uploads.remove_all_in(&of);
            }
            // At start, they are not loaded yet.
            upload_records.remove_all_in(&of);
            sessions.remove_all_in(&of)
        };
        let removed = task::spawn_blocking(remove).await;
        removed.map_err(Error::internal)?.map_err(|error| state_failure(&error))?;
        fault_injection::step();
        creator.remove_rest(stored).await
    }
}
