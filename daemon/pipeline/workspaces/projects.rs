//! Project ids of created workspaces, whose bounds the kernel enforces.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    ops::RangeInclusive,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
};

use rustix::fs::{Mode, OFlags, openat};

use super::directories::open_directory;
use crate::daemon::{
    sandbox::{pools::SandboxPools, stage::StageFailure, wire::ProjectLimit},
    sys::{Errno, project_quota::set_project},
    workspace::FileUsage,
};

/// Ids that are tried before a creation fails.
const MAX_ATTEMPTS: usize = 1000;

/// Gives workspaces project ids that nothing else uses.
#[derive(Debug)]
pub(crate) struct Projects {
    sandboxes: Arc<SandboxPools>,
    ids: RangeInclusive<u32>,
    state: Mutex<UsedIds>,
}

#[derive(Debug, Default)]
struct UsedIds {
    used: BTreeSet<u32>,
    next: u32,
}

impl Projects {
    /// Proves that the kernel enforces project quotas below `parent`, in its empty subdirectory
    /// `name`.
    pub(crate) async fn prove(
        sandboxes: &Arc<SandboxPools>,
        ids: RangeInclusive<u32>,
        parent: &OwnedFd,
        name: &str,
    ) -> io::Result<Self> {
        let next = *ids.start();
        let state = Mutex::new(UsedIds { next, ..UsedIds::default() });
        let projects = Self { sandboxes: Arc::clone(sandboxes), ids, state };
        // The directory itself, and one file.
        let limits = FileUsage { bytes: u64::MAX, files: 2 };
        let project = projects.claim(limits).await?;
        let directory = open_directory(parent, name)?;
        let proven = set_project(&directory, project).map_err(io::Error::from).and_then(|()| {
            let create = |name: &str| {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                openat(&directory, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
            };
            create("within")?;
            match create("beyond") {
                Err(Errno::DQUOT | Errno::NOSPC) => Ok(()),
                Err(errno) => Err(errno.into()),
                Ok(_) => Err(io::Error::other("quotas are counted and not enforced")),
            }
        });
        let _removed = rustix::fs::unlinkat(&directory, "within", rustix::fs::AtFlags::empty());
        let _removed = rustix::fs::unlinkat(&directory, "beyond", rustix::fs::AtFlags::empty());
        let reset = set_project(&directory, 0);
        projects.release(project).await?;
        proven?;
        reset?;
        Ok(projects)
    }

    /// Limits a project that has neither files nor limits. Returns its id. Not cancel safe.
    pub(super) async fn claim(&self, limits: FileUsage) -> io::Result<u32> {
        for _ in 0..MAX_ATTEMPTS {
            let Some(project) = self.choose() else { break };
            match self.limit(project, limits, true).await {
                Ok(()) => return Ok(project),
                Err(failure) => {
                    self.forget(project);
                    if failure.errno != Errno::EXIST.raw_os_error() {
                        return Err(failure.to_io_error());
                    }
                }
            }
        }
        Err(io::Error::other("all project ids of workspaces_on_demand.project_ids are in use"))
    }

    /// Limits the project of a stored workspace again. Not cancel safe.
    pub(super) async fn restore(&self, project: u32, limits: FileUsage) -> io::Result<()> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).used.insert(project);
        self.limit(project, limits, false).await.map_err(|failure| failure.to_io_error())
    }

    /// Removes the limits of a project, whose files are gone. Not cancel safe.
    pub(super) async fn release(&self, project: u32) -> io::Result<()> {
        let limit = ProjectLimit { project, bytes: 0, files: 0, is_new: false };
        let released = self.sandboxes.limit_project(limit).await;
        self.forget(project);
        released.map_err(|failure| failure.to_io_error())
    }

    async fn limit(
        &self,
        project: u32,
        limits: FileUsage,
        is_new: bool,
    ) -> Result<(), StageFailure> {
        let limit = |limit: u64| if limit == u64::MAX { 0 } else { limit };
        let (bytes, files) = (limit(limits.bytes), limit(limits.files));
        self.sandboxes.limit_project(ProjectLimit { project, bytes, files, is_new }).await
    }

    /// An id that no workspace has. Each is tried once before one is tried again.
    fn choose(&self) -> Option<u32> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.ids.end() - self.ids.start();
        for _ in 0..=count {
            let id = state.next;
            state.next = if id == *self.ids.end() { *self.ids.start() } else { id + 1 };
            if state.used.insert(id) {
                return Some(id);
            }
        }
        None
    }

    fn forget(&self, project: u32) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).used.remove(&project);
    }
}
