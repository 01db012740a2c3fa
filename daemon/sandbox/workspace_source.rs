//! A workspace as the keeper holds it: its plan and its directory.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};

use super::{
    id_map::DirectoryOwner,
    plan::WorkspacePlan,
    stage::{Stage, StageFailure, at_stage},
};

#[derive(Debug)]
pub(super) struct WorkspaceSource {
    pub(super) plan: WorkspacePlan,
    pub(super) directory: OwnedFd,
}

impl WorkspaceSource {
    /// Opens a workspace that was created while the daemon runs. `plan.path` must be an entry of
    /// `parent`, the directory of all of them, so that the daemon cannot have the keeper open
    /// anything else.
    pub(super) fn open_created(parent: &Self, plan: WorkspacePlan) -> Result<Self, StageFailure> {
        let (Some(name), true) =
            (plan.path.file_name(), plan.path.parent() == Some(&parent.plan.path))
        else {
            return Err(StageFailure::other(Stage::Launcher, "no such workspace"));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(&parent.directory, name, flags, Mode::empty())
            .map_err(at_stage(Stage::OpenSource, &plan.path.display().to_string()))?;
        Ok(Self { plan, directory })
    }

    /// Owner of the workspace, or the owner that it will have when the daemon serves it.
    pub(super) fn owner(&self) -> Result<DirectoryOwner, StageFailure> {
        let owner = DirectoryOwner::of(self.directory.as_fd())
            .map_err(at_stage(Stage::Identity, "owner of the workspace"))?;
        Ok(match self.plan.chowned_to.filter(|_| owner.uid == 0) {
            Some(id) => DirectoryOwner { uid: id, gid: id },
            None => owner,
        })
    }
}
