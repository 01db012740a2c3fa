//! Where paths lead when links that stay in the workspace are followed: what is changed is what lies
//! there, and not the link.

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
    /// Where the path of a file leads; none where links are refused. `SYMLINK_BLOCKED` for a link
    /// that leads nowhere: what it would make is not told from its path.
    pub(super) fn resolve_symlinks(
        &self,
        path: &RelativePath,
    ) -> Result<Option<RelativePath>, Error> {
        if !self.root.follows_links() {
            return Ok(None);
        }
        match self.root.open_path(path.as_bytes()) {
            Ok(found) => return Ok(self.path_of(found.as_fd())),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => return Err(os_error(errno, path.as_str(), ExpectedKind::File)),
        }
        let (directory, name) = path.split_file()?;
        let Ok(directory) = self.root.open_directory_handle(directory.as_bytes()) else {
            return Ok(None); // it is to be made
        };
        if FileVersion::read(directory.as_fd(), name).is_ok() {
            let path = path.as_str();
            let text = format!("{path:?} is a symbolic link that leads to nothing: delete it");
            return Err(Error::new(Reason::SymlinkBlocked, text).with_metadata("path", path));
        }
        Ok(self.path_of(directory.as_fd()).map(|below| below.join(name)))
    }

    /// Whether the links on a path that is refused for them lead out of the workspace.
    pub(crate) fn leads_out(&self, path: &str) -> bool {
        self.resolve(path).is_ok_and(|path| self.root.leads_out(path.as_bytes()))
    }

    /// Refuses a path whose last name is a link.
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

    /// Where something that was opened lies in the workspace.
    pub(super) fn path_of(&self, descriptor: BorrowedFd<'_>) -> Option<RelativePath> {
        let real = |descriptor: BorrowedFd<'_>| {
            std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).ok()
        };
        let (path, root) = (real(descriptor)?, real(self.root.as_fd())?);
        let below = path.strip_prefix(root).ok()?.to_str()?;
        self.resolve(below).ok()
    }
}
