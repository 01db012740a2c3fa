//! Limits of the projects of created workspaces, which only the keeper has the privilege to set.

use std::os::fd::AsFd as _;

use super::{
    plan::CreatedWorkspacesPlan,
    stage::{Stage, StageFailure},
    wire::{PROJECT_REPLY, ProjectLimit, SandboxIdentity, SetupReply},
    workspace_source::WorkspaceSource,
};
use crate::daemon::sys::{
    Errno,
    project_quota::{is_project_in_use, set_project_limits},
};

/// In the keeper: sets a limit on the file system of the directory of the created workspaces. Their
/// plan has the ids that the daemon may limit.
pub(super) fn apply(
    limit: ProjectLimit,
    created: Option<(&WorkspaceSource, &CreatedWorkspacesPlan)>,
) -> SetupReply {
    let applied = created.ok_or(Errno::NODEV).and_then(|(source, plan)| {
        if !plan.project_ids.contains(&limit.project) {
            return Err(Errno::PERM);
        }
        let directory = source.directory.as_fd();
        if limit.is_new && is_project_in_use(directory, limit.project)? {
            return Err(Errno::EXIST);
        }
        set_project_limits(directory, limit.project, (limit.bytes, limit.files))
    });
    match applied {
        Ok(()) => {
            SetupReply::Done { workspace: PROJECT_REPLY, identity: SandboxIdentity::default() }
        }
        Err(errno) => {
            let step = format!("limiting the project {}", limit.project);
            SetupReply::Failed(StageFailure::from_errno(Stage::Launcher, errno, step))
        }
    }
}
