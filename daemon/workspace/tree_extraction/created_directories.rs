//! Directories that an extraction has created. Their modes and times are set at the end: a mode
//! could forbid to create entries, and each entry changes the time.

use std::collections::BTreeMap;

use rustix::fs::{Mode, fchmod, fstat, futimens};

use super::super::{
    Workspace,
    os_error::{ExpectedKind, os_error},
    path::RelativePath,
    snapshot::timestamps,
};
use crate::{
    archive::ModifyTime,
    daemon::{
        error::{Error, Reason},
        sys::Errno,
    },
};

/// Bytes of the paths of created directories.
const MAX_PATH_BYTES: usize = 32 << 20;

/// Created directories by path.
#[derive(Debug, Default)]
pub(super) struct CreatedDirectories {
    directories: BTreeMap<RelativePath, CreatedDirectory>,
    path_bytes: usize,
}

#[derive(Debug, Clone, Copy)]
struct CreatedDirectory {
    /// Device and inode.
    identity: (u64, u64),
    /// Mode and time, if the archive has the directory.
    metadata: Option<(u32, Option<ModifyTime>)>,
}

impl CreatedDirectories {
    /// Adds directories that were just created.
    pub(super) fn add_created(
        &mut self,
        workspace: &Workspace,
        paths: &[String],
    ) -> Result<(), Error> {
        for text in paths {
            let path = workspace.resolve(text)?;
            let opened = workspace.strict_root.open_directory_handle(path.as_bytes());
            // If another process has moved the directory away, its metadata are not set.
            let Ok(stat) = opened.and_then(fstat) else {
                continue;
            };
            self.path_bytes += text.len();
            if self.path_bytes > MAX_PATH_BYTES {
                let text = format!(
                    "the paths of the directories have more than {} MiB: send the tree in parts",
                    MAX_PATH_BYTES >> 20
                );
                return Err(Error::new(Reason::ArchiveTooLarge, text));
            }
            let identity = (stat.st_dev, stat.st_ino);
            self.directories.insert(path, CreatedDirectory { identity, metadata: None });
        }
        Ok(())
    }

    /// Records the metadata of a directory. Ignores directories that existed before.
    pub(super) fn set_metadata(
        &mut self,
        path: &RelativePath,
        mode: u32,
        modified: Option<ModifyTime>,
    ) {
        if let Some(directory) = self.directories.get_mut(path) {
            directory.metadata = Some((mode, modified));
        }
    }

    /// Sets the metadata of all directories, the deepest first.
    pub(super) fn apply_metadata(self, workspace: &Workspace) -> Result<(), Error> {
        for (path, directory) in self.directories.iter().rev() {
            match directory.apply_metadata(workspace, path) {
                // Another process has removed or replaced it, or made it unreadable.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {}
                Err(errno) => {
                    return Err(os_error(errno, path.as_str(), ExpectedKind::Directory));
                }
            }
        }
        Ok(())
    }
}

impl CreatedDirectory {
    fn apply_metadata(self, workspace: &Workspace, path: &RelativePath) -> Result<(), Errno> {
        let Some((mode, modified)) = self.metadata else {
            return Ok(());
        };
        let directory = workspace.strict_root.open_directory(path.as_bytes())?;
        let stat = fstat(&directory)?;
        if (stat.st_dev, stat.st_ino) != self.identity {
            return Ok(());
        }
        // The set-group-id bit is inherited.
        let inherited = Mode::from_raw_mode(stat.st_mode) & Mode::SGID;
        fchmod(&directory, Mode::from_raw_mode(mode) | inherited)?;
        match modified {
            Some(modified) => futimens(&directory, &timestamps(modified)),
            None => Ok(()),
        }
    }
}
