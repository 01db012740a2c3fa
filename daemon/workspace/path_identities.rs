//! Identities (device and inode) of the directories on the way to the paths of a call. An approver
//! sees paths only. While the approval is pending, a command can replace a directory on the way by
//! another one or by a link. A comparison of the identities detects this.

use rustix::fs::{FileType, fstat};

use super::{
    Workspace,
    os_error::{ExpectedKind, os_error},
    path::RelativePath,
};
use crate::daemon::{error::Error, sys::Errno};

/// The identities of the directories on the way to some paths, at one time.
#[derive(Debug)]
pub(crate) struct PathIdentities {
    cwd: Option<AncestorIdentities>,
    files: Vec<AncestorIdentities>,
}

/// The directories on the way to a path, from the workspace down to the last that exists.
#[derive(Debug)]
struct AncestorIdentities {
    path: RelativePath,
    /// Device and inode of each directory.
    identities: Vec<(u64, u64)>,
    /// The error at the first that is missing or out of reach.
    error: Option<Errno>,
}

impl PathIdentities {
    /// Captures the identities for the paths of a call. Fails for a link at or above the working
    /// directory: the command would follow it, and the approver would not see where to. Fails if a
    /// directory cannot be opened, such as for want of descriptors.
    pub(crate) fn capture(
        workspace: &Workspace,
        cwd: Option<&RelativePath>,
        files: &[RelativePath],
    ) -> Result<Self, Error> {
        let cwd = match cwd {
            Some(path) => {
                let identities = AncestorIdentities::capture(workspace, path)?;
                if let Some(errno @ (Errno::LOOP | Errno::XDEV)) = identities.error {
                    return Err(os_error(errno, path.as_str(), ExpectedKind::Directory));
                }
                Some(identities)
            }
            None => None,
        };
        let files = files
            .iter()
            .map(|path| AncestorIdentities::capture(workspace, path))
            .collect::<Result<_, Error>>()?;
        Ok(Self { cwd, files })
    }

    /// Returns the first path whose directories are no longer the same. Directories that were
    /// missing on the way to it may exist by now: calls that create files in one new directory can
    /// wait together. Fails as [`Self::capture`] does.
    pub(crate) fn first_changed(
        &self,
        workspace: &Workspace,
    ) -> Result<Option<&RelativePath>, Error> {
        for before in self.cwd.iter().chain(&self.files) {
            let now = AncestorIdentities::capture(workspace, &before.path)?;
            if now.identities != before.identities && !before.has_only_new_ancestors(&now) {
                return Ok(Some(&before.path));
            }
        }
        Ok(None)
    }

    /// Returns device and inode of the working directory. `None` if it is the workspace itself.
    pub(crate) fn cwd(&self) -> Option<(u64, u64)> {
        self.cwd.as_ref()?.identities.last().copied()
    }
}

impl AncestorIdentities {
    /// Whether nothing but directories above the path have appeared, where none was.
    fn has_only_new_ancestors(&self, now: &Self) -> bool {
        let names = self.path.components().filter(|name| !name.is_empty());
        self.error == Some(Errno::NOENT)
            && now.identities.starts_with(&self.identities)
            && now.identities.len() < names.count()
    }

    /// Captures the directories on the way to a path. An error other than that of a directory which
    /// is missing or out of reach says nothing about the directories, and fails.
    fn capture(workspace: &Workspace, path: &RelativePath) -> Result<Self, Error> {
        let mut identities = Vec::new();
        let mut error = None;
        let mut ancestor = RelativePath::default();
        for name in path.components().filter(|name| !name.is_empty()) {
            ancestor = ancestor.join(name);
            match workspace.root.open_path(ancestor.as_bytes()).and_then(fstat) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
                    identities.push((stat.st_dev, stat.st_ino));
                }
                Ok(_) => break,
                Err(
                    errno @ (Errno::NOENT
                    | Errno::NOTDIR
                    | Errno::LOOP
                    | Errno::XDEV
                    | Errno::ACCESS
                    | Errno::NAMETOOLONG),
                ) => {
                    error = Some(errno);
                    break;
                }
                Err(errno) => {
                    return Err(os_error(errno, ancestor.as_str(), ExpectedKind::Directory));
                }
            }
        }
        Ok(Self { path: path.clone(), identities, error })
    }
}
