//! Resolves symbolic links that stay in the workspace, so that a change applies to the target and
//! not to the link.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use rustix::fs::{AtFlags, FileType, statat};

use super::{
    Workspace,
    os_error::{ExpectedKind, os_error},
    path::RelativePath,
    snapshot::FileVersion,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

impl Workspace {
    /// Returns the path that the path of a file leads to. `None` if symbolic links are rejected.
    /// `SYMLINK_BLOCKED` for a link without a target: its path does not show what would be created.
    pub(super) fn resolve_symlinks(
        &self,
        path: &RelativePath,
    ) -> Result<Option<RelativePath>, Error> {
        if !self.root.follows_links() {
            return Ok(None);
        }
        match self.root.open_path(path.as_bytes()) {
            Ok(handle) => return Ok(self.path_of(handle.as_fd())),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => return Err(os_error(errno, path.as_str(), ExpectedKind::File)),
        }

        let (directory, name) = path.split_file()?;
        let Ok(directory) = self.root.open_directory_handle(directory.as_bytes()) else {
            return Ok(None); // the call creates the directory
        };
        if FileVersion::read(directory.as_fd(), name).is_ok() {
            let path = path.as_str();
            let text = format!("{path:?} is a symbolic link without a target: delete it");
            return Err(Error::new(Reason::SymlinkBlocked, text).with_metadata("path", path));
        }
        Ok(self.path_of(directory.as_fd()).map(|parent| parent.join(name)))
    }

    /// Whether the links on a path that was rejected for them lead out of the workspace.
    pub(crate) fn leads_out(&self, path: &str) -> bool {
        self.resolve(path).is_ok_and(|path| self.root.leads_out(path.as_bytes()))
    }

    /// Rejects a path whose last component is a symbolic link.
    pub(super) fn reject_final_symlink(&self, path: &RelativePath) -> Result<(), Error> {
        let (directory, name) = path.split_file()?;
        let stat = self
            .root
            .open_directory_handle(directory.as_bytes())
            .and_then(|directory| statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW));
        match stat {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                Err(os_error(Errno::LOOP, path.as_str(), ExpectedKind::File))
            }
            Ok(_) => Ok(()),
            Err(errno) => Err(os_error(errno, path.as_str(), ExpectedKind::File)),
        }
    }

    /// Returns the path of an open file in the workspace. `None` if it is elsewhere.
    pub(super) fn path_of(&self, descriptor: BorrowedFd<'_>) -> Option<RelativePath> {
        let real = |descriptor: BorrowedFd<'_>| {
            std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).ok()
        };
        let (path, root) = (real(descriptor)?, real(self.root.as_fd())?);
        let relative = path.strip_prefix(root).ok()?.to_str()?;
        self.resolve(relative).ok()
    }
}
