//! The bounds of a workspace, for its changes.

use std::{io, os::fd::OwnedFd, sync::Arc};

use super::{
    Workspace,
    cancel::CancelToken,
    file_quota::{Enforcement, FileQuota, FileReservation},
    file_usage::FileUsage,
};
use crate::daemon::error::Error;

impl Workspace {
    /// Bounds what the files take. A part that is the maximum of its type has no bound.
    ///
    /// `beside` is a directory elsewhere whose files count too. With a project quota, it has the
    /// same project.
    pub(crate) fn limit_files(
        &mut self,
        limits: FileUsage,
        beside: Option<OwnedFd>,
        enforcement: Enforcement,
    ) -> io::Result<()> {
        let root = self.strict_root.try_clone()?;
        self.quota = Some(Arc::new(FileQuota::new(&self.name, root, beside, limits, enforcement)));
        Ok(())
    }

    /// The bounds, if there are any.
    pub(crate) fn file_quota(&self) -> Option<&Arc<FileQuota>> {
        self.quota.as_ref()
    }

    /// Reserves what a change can take. `NO_SPACE` if that exceeds a bound.
    pub(super) fn reserve(
        &self,
        growth: FileUsage,
        cancel: &CancelToken,
    ) -> Result<Option<FileReservation>, Error> {
        self.quota.as_ref().map(|quota| quota.reserve(growth, cancel)).transpose()
    }

    /// Fails with `NO_SPACE` if a change would exceed a bound now.
    pub(super) fn check_room(&self, growth: FileUsage, cancel: &CancelToken) -> Result<(), Error> {
        self.quota.as_ref().map_or(Ok(()), |quota| quota.check_room(growth, cancel))
    }
}
