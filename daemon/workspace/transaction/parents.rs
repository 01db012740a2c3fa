//! The parent directories of changed files: opened once, and created if they are missing.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use rustix::fs::{FileType, Mode, fstat, mkdirat};

use super::{
    super::{
        fault_injection,
        file_usage::FileUsage,
        journal::JournalEntry,
        os_error::{ExpectedKind, already_exists_error, os_error},
        path::RelativePath,
        resolve::open_child_handle,
        snapshot::{FileVersion, chown},
    },
    FileTransaction,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Attempts to create a directory, each of which fails only if another process removes its parent.
const MAX_CREATE_ATTEMPTS: usize = 16;
pub(super) const NEW_DIRECTORY_MODE: u32 = 0o755;

impl FileTransaction<'_> {
    /// Checks that a new file could be created at a path, without creating anything.
    pub(super) fn check_vacant(&self, path: &RelativePath) -> Result<(), Error> {
        let mut ancestor = self.real_path(path).clone();
        loop {
            let (parent, name) = ancestor.split_file()?;
            match self.root().open_directory_handle(parent.as_bytes()) {
                Ok(directory) => {
                    self.workspace.check_change_allowed_in(directory.as_fd(), name)?;
                    return match FileVersion::read(directory.as_fd(), name) {
                        Ok(_) => Err(already_exists_error(path)),
                        Err(Errno::NOENT) => Ok(()),
                        Err(errno) => Err(os_error(errno, path.as_str(), ExpectedKind::File)),
                    };
                }
                Err(Errno::NOENT) => ancestor = parent, // the change creates it as well
                Err(errno) => {
                    return Err(os_error(errno, parent.as_str(), ExpectedKind::Directory));
                }
            }
        }
    }

    /// Opens the parent directory of a path, creating it if necessary. Returns it, and the name in
    /// it.
    pub(super) fn open_parent(
        &mut self,
        path: &RelativePath,
    ) -> Result<(Arc<OwnedFd>, String), Error> {
        let (directory, name) = self.real_path(path).split_file()?;
        let name = name.to_owned();
        let opened = match self.directories.get(&directory) {
            Some(opened) => Arc::clone(opened),
            None => {
                let opened = match self.root().open_directory_handle(directory.as_bytes()) {
                    Err(Errno::NOENT) if self.creates_directories => {
                        self.open_or_create(&directory)?
                    }
                    opened => opened.map_err(|errno| {
                        os_error(errno, directory.as_str(), ExpectedKind::Directory)
                    })?,
                };
                let opened = Arc::new(opened);
                self.directories.insert(directory, Arc::clone(&opened));
                opened
            }
        };
        self.workspace.check_change_allowed_in(opened.as_fd(), &name)?;
        Ok((opened, name))
    }

    /// Makes the next [`Self::open_parent`] of a path open the directory again.
    pub(super) fn forget_parent(&mut self, path: &RelativePath) -> Result<(), Error> {
        let (directory, _) = self.real_path(path).split_file()?;
        self.directories.remove(&directory);
        Ok(())
    }

    /// Creates a directory with its missing parents.
    pub(crate) fn create_directories(&mut self, path: &RelativePath) -> Result<(), Error> {
        if let Ok(handle) = self.root().open_path(path.as_bytes()) {
            let kind = fstat(&handle).map(|stat| FileType::from_raw_mode(stat.st_mode));
            if kind != Ok(FileType::Directory) {
                return Err(already_exists_error(path));
            }
        }
        self.open_or_create(path).map(drop)
    }

    fn open_or_create(&mut self, path: &RelativePath) -> Result<OwnedFd, Error> {
        // Another process that deletes files may remove an empty directory on the way.
        for _ in 1..MAX_CREATE_ATTEMPTS {
            match self.try_open_or_create(path) {
                Err(error) if error.reason == Reason::DirectoryNotFound => self.check()?,
                result => return result,
            }
        }
        self.try_open_or_create(path)
    }

    fn try_open_or_create(&mut self, path: &RelativePath) -> Result<OwnedFd, Error> {
        let mut missing = Vec::new();
        let mut existing = path.clone();
        let mut directory = loop {
            let opened = self.root().open_directory_handle(existing.as_bytes());
            match (opened, existing.split()) {
                (Err(Errno::NOENT), Some((parent, name))) => {
                    missing.push(name.to_owned());
                    existing = parent;
                }
                (opened, _) => {
                    break opened.map_err(|errno| {
                        os_error(errno, existing.as_str(), ExpectedKind::Directory)
                    })?;
                }
            }
        };
        while let Some(name) = missing.pop() {
            self.workspace.check_change_allowed_in(directory.as_fd(), &name)?;
            existing = existing.join(&name);
            let to_error = |errno| os_error(errno, existing.as_str(), ExpectedKind::Directory);
            self.reserve(FileUsage::of_directory())?;
            self.write_journal(&[JournalEntry::Make(existing.as_str().to_owned())])?;
            fault_injection::step();
            match mkdirat(&directory, &name, Mode::from_raw_mode(NEW_DIRECTORY_MODE)) {
                Ok(()) => self.created_directories.push(existing.clone()),
                Err(Errno::EXIST) => {} // just created by another process
                Err(errno) => return Err(to_error(errno)),
            }
            fault_injection::step();

            let child = open_child_handle(&directory, &name).map_err(to_error)?;
            self.workspace
                .inherited_owner(&directory)
                .and_then(|owner| chown(child.as_fd(), owner))
                .map_err(to_error)?;
            directory = child;
        }
        Ok(directory)
    }

    /// Returns the directories created so far, the highest first.
    pub(crate) fn created_directories(&self) -> impl Iterator<Item = &str> {
        self.created_directories.iter().map(RelativePath::as_str)
    }
}
