//! The identities (device and inode) of the directories on the way to what a call names. Whoever approves
//! the call sees paths; while they decide, a command that runs beside can put another directory or a link
//! in the place of any of them.

use rustix::fs::{FileType, fstat};

use super::{
    Workspace,
    os_error::{ExpectedKind, os_error},
    path::RelativePath,
};
use crate::daemon::{error::Error, sys::Errno};

/// The identities of the directories on the way to some paths, at one moment.
#[derive(Debug)]
pub(crate) struct PathIdentities {
    cwd: Option<AncestorIdentities>,
    files: Vec<AncestorIdentities>,
}

/// The directories of one path, from the workspace down to the last that exists.
#[derive(Debug, PartialEq, Eq)]
struct AncestorIdentities {
    path: RelativePath,
    /// Device and inode of each.
    identities: Vec<(u64, u64)>,
}

impl PathIdentities {
    /// Looks at the paths of a call. A link at or above its working directory is an error: the command would
    /// follow it, and the approver would not see where to.
    pub(crate) fn capture(
        workspace: &Workspace,
        cwd: Option<&RelativePath>,
        files: &[RelativePath],
    ) -> Result<Self, Error> {
        let mut of_cwd = None;
        if let Some(path) = cwd {
            let (directories, end) = AncestorIdentities::capture(workspace, path);
            if let Some(errno @ (Errno::LOOP | Errno::XDEV)) = end {
                return Err(os_error(errno, path.as_str(), ExpectedKind::Directory));
            }
            of_cwd = Some(directories);
        }
        let files = files.iter().map(|path| AncestorIdentities::capture(workspace, path).0);
        Ok(Self { cwd: of_cwd, files: files.collect() })
    }

    /// A path whose directories are no longer the same.
    pub(crate) fn first_changed(&self, workspace: &Workspace) -> Option<&RelativePath> {
        let mut all = self.cwd.iter().chain(&self.files);
        all.find(|before| AncestorIdentities::capture(workspace, &before.path).0 != **before)
            .map(|before| &before.path)
    }

    /// Device and inode of the working directory, unless that is the workspace itself.
    pub(crate) fn cwd(&self) -> Option<(u64, u64)> {
        self.cwd.as_ref()?.identities.last().copied()
    }
}

impl AncestorIdentities {
    /// Returns also the error that ended the way, if one did.
    fn capture(workspace: &Workspace, path: &RelativePath) -> (Self, Option<Errno>) {
        let mut identities = Vec::new();
        let mut end = None;
        let mut below = RelativePath::default();
        for name in path.components().filter(|name| !name.is_empty()) {
            below = below.join(name);
            match workspace.root.open_path(below.as_bytes()).and_then(fstat) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
                    identities.push((stat.st_dev, stat.st_ino));
                }
                Ok(_) => break,
                Err(errno) => {
                    end = Some(errno);
                    break;
                }
            }
        }
        let path = path.clone();
        (Self { path, identities }, end)
    }
}
