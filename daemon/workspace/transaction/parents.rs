//! The directories in which a change puts something: opened once, and made where they are missing.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use rustix::fs::{FileType, Mode, fstat, mkdirat};

use super::{
    super::{
        fault_injection,
        journal::JournalEntry,
        os_error::{ExpectedKind, already_exists, os_error},
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

/// Attempts to make a directory.
const MAX_CREATE_ATTEMPTS: usize = 16;
/// Mode of new directories.
pub(super) const NEW_DIRECTORY_MODE: u32 = 0o755;

impl FileTransaction<'_> {
    /// Checks that a new file could come to a path, without making anything.
    pub(super) fn check_vacant(&self, path: &RelativePath) -> Result<(), Error> {
        let mut place = self.real_path(path).clone();
        loop {
            let (above, name) = place.split_file()?;
            match self.workspace.root.open_directory_handle(above.as_bytes()) {
                Ok(directory) => {
                    self.workspace.check_change_allowed_in(directory.as_fd(), name)?;
                    return match FileVersion::read(directory.as_fd(), name) {
                        Ok(_) => Err(already_exists(path)),
                        Err(Errno::NOENT) => Ok(()),
                        Err(errno) => Err(os_error(errno, path.as_str(), ExpectedKind::File)),
                    };
                }
                Err(Errno::NOENT) => place = above, // which is to be made, too
                Err(errno) => return Err(os_error(errno, above.as_str(), ExpectedKind::Directory)),
            }
        }
    }

    /// Makes the directories above a path, and answers the last of them and the name in it.
    pub(super) fn open_parent(
        &mut self,
        path: &RelativePath,
    ) -> Result<(Arc<OwnedFd>, String), Error> {
        let (directory, name) = self.real_path(path).split_file()?;
        let name = name.to_owned();
        let opened = match self.directories.get(&directory) {
            Some(opened) => Arc::clone(opened),
            None => {
                let opened = match self.workspace.root.open_directory_handle(directory.as_bytes()) {
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

    /// Has the directory of a path looked up anew.
    pub(super) fn forget_parent(&mut self, path: &RelativePath) -> Result<(), Error> {
        let (directory, _) = self.real_path(path).split_file()?;
        self.directories.remove(&directory);
        Ok(())
    }

    /// Makes a directory with those above it.
    pub(crate) fn create_directories(&mut self, path: &RelativePath) -> Result<(), Error> {
        let found = self.workspace.root.open_path(path.as_bytes());
        if let Ok(found) = found {
            let kind = fstat(&found).map(|stat| FileType::from_raw_mode(stat.st_mode));
            if kind != Ok(FileType::Directory) {
                return Err(already_exists(path));
            }
        }
        self.open_or_create(path).map(drop)
    }

    fn open_or_create(&mut self, path: &RelativePath) -> Result<OwnedFd, Error> {
        // Somebody who deletes what is in a directory on the way may remove it just now, too.
        for _ in 1..MAX_CREATE_ATTEMPTS {
            match self.try_open_or_create(path) {
                Err(error) if error.reason == Reason::DirectoryNotFound => self.check()?,
                made => return made,
            }
        }
        self.try_open_or_create(path)
    }

    fn try_open_or_create(&mut self, path: &RelativePath) -> Result<OwnedFd, Error> {
        let mut missing = Vec::new();
        let mut so_far = path.clone();
        let mut here = loop {
            match (self.workspace.root.open_directory_handle(so_far.as_bytes()), so_far.split()) {
                (Err(Errno::NOENT), Some((above, name))) => {
                    missing.push(name.to_owned());
                    so_far = above;
                }
                (opened, _) => {
                    break opened.map_err(|errno| {
                        os_error(errno, so_far.as_str(), ExpectedKind::Directory)
                    })?;
                }
            }
        };
        while let Some(name) = missing.pop() {
            self.workspace.check_change_allowed_in(here.as_fd(), &name)?;
            so_far = so_far.join(&name);
            let failed = |errno| os_error(errno, so_far.as_str(), ExpectedKind::Directory);
            self.write_journal(&[JournalEntry::Make(so_far.as_str().to_owned())])?;
            fault_injection::step();
            match mkdirat(&here, &name, Mode::from_raw_mode(NEW_DIRECTORY_MODE)) {
                Ok(()) => self.created_directories.push(so_far.clone()),
                Err(Errno::EXIST) => {} // somebody else was quicker
                Err(errno) => return Err(failed(errno)),
            }
            fault_injection::step();
            let made = open_child_handle(&here, &name).map_err(failed)?;
            self.workspace
                .inherited_owner(&here)
                .and_then(|owner| chown(made.as_fd(), owner))
                .map_err(failed)?;
            here = made;
        }
        Ok(here)
    }

    /// Directories that were made so far, the highest first.
    pub(crate) fn created_directories(&self) -> impl Iterator<Item = &str> {
        self.created_directories.iter().map(RelativePath::as_str)
    }
}
