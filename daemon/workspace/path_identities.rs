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
#[derive(Debug, PartialEq, Eq)]
struct AncestorIdentities {
    path: RelativePath,
    /// Device and inode of each directory.
    identities: Vec<(u64, u64)>,
}

impl PathIdentities {
    /// Captures the identities for the paths of a call. Fails for a link at or above the working
    /// directory: the command would follow it, and the approver would not see where to.
    pub(crate) fn capture(
        workspace: &Workspace,
        cwd: Option<&RelativePath>,
        files: &[RelativePath],
    ) -> Result<Self, Error> {
        let cwd = match cwd {
            Some(path) => {
                let (identities, error) = AncestorIdentities::capture(workspace, path);
                if let Some(errno @ (Errno::LOOP | Errno::XDEV)) = error {
                    return Err(os_error(errno, path.as_str(), ExpectedKind::Directory));
                }
                Some(identities)
            }
            None => None,
        };
        let files = files.iter().map(|path| AncestorIdentities::capture(workspace, path).0);
        Ok(Self { cwd, files: files.collect() })
    }

    /// Returns the first path whose directories are no longer the same.
    pub(crate) fn first_changed(&self, workspace: &Workspace) -> Option<&RelativePath> {
        let mut all = self.cwd.iter().chain(&self.files);
        all.find(|before| AncestorIdentities::capture(workspace, &before.path).0 != **before)
            .map(|before| &before.path)
    }

    /// Returns device and inode of the working directory. `None` if it is the workspace itself.
    pub(crate) fn cwd(&self) -> Option<(u64, u64)> {
        self.cwd.as_ref()?.identities.last().copied()
    }
}

impl AncestorIdentities {
    /// Captures the directories on the way to a path, and the error at the first that is missing.
    fn capture(workspace: &Workspace, path: &RelativePath) -> (Self, Option<Errno>) {
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
                Err(errno) => {
                    error = Some(errno);
                    break;
                }
            }
        }
        (Self { path: path.clone(), identities }, error)
    }
}
