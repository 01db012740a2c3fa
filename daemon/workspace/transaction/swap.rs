//! Replaces a file by a directory, and a directory by a file.
//!
//! Each is one exchange of two names. A new directory is built with its contents under a temporary
//! name. An old directory is put aside as a whole, if it contains exactly the files that the change
//! deletes.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use rustix::fs::{Mode, mkdirat};

use super::{
    super::{
        file_usage::FileUsage,
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
    /// Checks that a directory contains exactly the files `deleted`, so that a file may replace it.
    pub(crate) fn check_subtree(
        &mut self,
        path: &RelativePath,
        deleted: &[(&RelativePath, &FileSnapshot)],
    ) -> Result<Subtree, Error> {
        let (directory, name) = self.open_parent(path)?;
        let top = FileVersion::read(directory.as_fd(), &name)
            .map_err(|errno| os_error(errno, path.as_str(), ExpectedKind::Directory))?;
        let files = deleted.iter().filter_map(|(file, original)| {
            let relative = file.as_str().strip_prefix(path.as_str())?;
            Some((relative.strip_prefix('/')?.to_owned(), original.version))
        });
        let subtree = Subtree::new(top, files);
        if subtree.is_at(directory.as_fd(), &name) {
            return Ok(subtree);
        }

        let path = path.as_str();
        let text = format!(
            "the directory {path:?} has more entries than the change deletes: a file cannot replace it"
        );
        Err(Error::new(Reason::FileExists, text).with_metadata("path", path))
    }

    /// Stages a file that replaces a directory with exactly the files `deleted`.
    pub(crate) fn replace_directory_with_file(
        &mut self,
        path: &RelativePath,
        deleted: &[(&RelativePath, &FileSnapshot)],
        content: NewContent<'_>,
    ) -> Result<(), Error> {
        let subtree = self.check_subtree(path, deleted)?;
        self.stage_files(vec![NewFile {
            path,
            previous: Previous::Directory(subtree),
            content,
            attributes_from: None,
        }])
    }

    /// Stages a directory that replaces a file, with these files below it.
    pub(crate) fn replace_file_with_directory(
        &mut self,
        path: &RelativePath,
        original: &FileSnapshot,
        files: &[(&RelativePath, NewContent<'_>)],
    ) -> Result<(), Error> {
        let (directory, name) = self.open_parent(path)?;
        let to_error = |errno| os_error(errno, path.as_str(), ExpectedKind::Directory);
        let growth = files.iter().fold(FileUsage::of_directory(), |growth, (file, content)| {
            let parents =
                file.as_str().strip_prefix(path.as_str()).unwrap_or_default().matches('/');
            let growth = growth + FileUsage::of_file(content.bytes.len() as u64);
            parents.skip(1).fold(growth, |growth, _| growth + FileUsage::of_directory())
        });
        self.reserve(growth)?;

        let index = self.staged.len();
        let old = Previous::File(original.version);
        self.stage([(path, Arc::clone(&directory), name, old)])?;
        let temporary = &self.staged[index].temporary;
        let top = self.create_staged_directory(&directory, temporary).map_err(to_error)?;

        for (file, content) in files {
            self.check()?;
            let relative = file.as_str().strip_prefix(path.as_str());
            let Some(relative) = relative.and_then(|path| path.strip_prefix('/')) else {
                return Err(Error::internal("a file that is not in its directory"));
            };
            let (parents, name) = relative.rsplit_once('/').unwrap_or(("", relative));
            let parent = self.create_staged_parents(&top, parents).map_err(to_error)?;
            self.create_file(&parent, name, *content, None)
                .map_err(|error| error.into_error(file.as_str()))?;
            self.sync_file(&parent).map_err(to_error)?;
        }

        self.sync_file(&top).map_err(to_error)?;
        let stat = rustix::fs::fstat(&top).map_err(to_error)?;
        self.finish_staging(index, StagedAction::Put(FileVersion::from_stat(&stat)));
        Ok(())
    }

    /// Opens the directory `path` below `top`, creating missing ones.
    fn create_staged_parents(&self, top: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
        let mut directory = open_child_directory(top.as_fd(), b".")?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            directory = match open_child_directory(directory.as_fd(), name.as_bytes()) {
                Err(Errno::NOENT) => {
                    let child = self.create_staged_directory(&directory, name)?;
                    self.sync_file(&directory)?;
                    child
                }
                opened => opened?,
            };
        }
        Ok(directory)
    }

    fn create_staged_directory(&self, parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
        mkdirat(parent, name, Mode::from_raw_mode(NEW_DIRECTORY_MODE))?;
        let directory = open_child_directory(parent.as_fd(), name.as_bytes())?;
        chown(directory.as_fd(), self.workspace.inherited_owner(parent)?)?;
        Ok(directory)
    }
}
