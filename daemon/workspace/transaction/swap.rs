//! Directories that come in the place of a file, and files that come in that of a directory.
//!
//! Either is one exchange of two names: a directory is built under a temporary name, with all that
//! it will hold; one that goes is set aside as a whole, if it holds what the change deletes and
//! nothing else.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use rustix::fs::{Mode, mkdirat};

use super::{
    super::{
        os_error::{ExpectedKind, os_error},
        path::RelativePath,
        rename_step::{Previous, StagedAction},
        resolve::open_child_directory,
        snapshot::{FileSnapshot, FileVersion, NewContent, chown},
        subtree::Subtree,
    },
    FileTransaction,
    parents::NEW_DIRECTORY_MODE,
    stage::NewFile,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

impl FileTransaction<'_> {
    /// Checks that a directory holds the files `gone` and nothing else, so that a file may come in
    /// its place.
    pub(crate) fn check_subtree(
        &mut self,
        path: &RelativePath,
        gone: &[(&RelativePath, &FileSnapshot)],
    ) -> Result<Subtree, Error> {
        let (directory, name) = self.open_parent(path)?;
        let top = FileVersion::read(directory.as_fd(), &name)
            .map_err(|errno| os_error(errno, path.as_str(), ExpectedKind::Directory))?;
        let below = gone.iter().filter_map(|(file, original)| {
            let below = file.as_str().strip_prefix(path.as_str())?;
            Some((below.strip_prefix('/')?.to_owned(), original.version))
        });
        let subtree = Subtree::new(top, below);
        if subtree.is_at(directory.as_fd(), &name) {
            return Ok(subtree);
        }
        let path = path.as_str();
        let text = format!(
            "{path:?} is a directory that holds more than what is deleted with it: a file cannot come in its place"
        );
        Err(Error::new(Reason::FileExists, text).with_metadata("path", path))
    }

    /// Stages a file where a directory is, one that holds the files `gone` and nothing else.
    pub(crate) fn replace_directory_with_file(
        &mut self,
        path: &RelativePath,
        gone: &[(&RelativePath, &FileSnapshot)],
        content: NewContent<'_>,
    ) -> Result<(), Error> {
        let subtree = self.check_subtree(path, gone)?;
        self.stage_files(vec![NewFile {
            path,
            previous: Previous::Directory(subtree),
            content,
            attributes_from: None,
        }])
    }

    /// Stages a directory where a file is, with these files below it.
    pub(crate) fn replace_file_with_directory(
        &mut self,
        path: &RelativePath,
        original: &FileSnapshot,
        files: &[(&RelativePath, NewContent<'_>)],
    ) -> Result<(), Error> {
        let (directory, name) = self.open_parent(path)?;
        let failed = |errno| os_error(errno, path.as_str(), ExpectedKind::Directory);
        let index = self.staged.len();
        let old = Previous::File(original.version);
        self.stage([(path, Arc::clone(&directory), name, old)])?;
        let temporary = &self.staged[index].temporary;
        let top = self.create_staged_directory(&directory, temporary).map_err(failed)?;
        for (file, content) in files {
            self.check()?;
            let below = file.as_str().strip_prefix(path.as_str());
            let Some(below) = below.and_then(|below| below.strip_prefix('/')) else {
                return Err(Error::internal("a file that is not in its directory"));
            };
            let mut here = open_child_directory(top.as_fd(), b".").map_err(failed)?;
            let (above, name) = below.rsplit_once('/').unwrap_or(("", below));
            for name in above.split('/').filter(|name| !name.is_empty()) {
                here = match open_child_directory(here.as_fd(), name.as_bytes()) {
                    Err(Errno::NOENT) => {
                        let made = self.create_staged_directory(&here, name);
                        made.and_then(|made| self.sync_file(&here).map(|()| made))
                    }
                    opened => opened,
                }
                .map_err(failed)?;
            }
            self.create_file(&here, name, *content, None)
                .map_err(|misfit| misfit.into_error(file.as_str()))?;
            self.sync_file(&here).map_err(failed)?;
        }
        self.sync_file(&top).map_err(failed)?;
        let stat = rustix::fs::fstat(&top).map_err(failed)?;
        self.finish_staging(index, StagedAction::Put(FileVersion::from_stat(&stat)));
        Ok(())
    }

    fn create_staged_directory(&self, parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
        mkdirat(parent, name, Mode::from_raw_mode(NEW_DIRECTORY_MODE))?;
        let made = open_child_directory(parent.as_fd(), name.as_bytes())?;
        chown(made.as_fd(), self.workspace.inherited_owner(parent)?)?;
        Ok(made)
    }
}
