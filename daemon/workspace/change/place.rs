//! The directories in which a change puts something: opened once, and made where they are missing.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use rustix::fs::{FileType, Mode, fstat, mkdirat};

use super::{
    super::{
        beneath::open_directory_named,
        failure::{Wanted, exists, failure},
        fault,
        journal::Entry,
        original::{Stamp, give},
        path::RelativePath,
    },
    Change,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Attempts to make a directory.
const ATTEMPTS: usize = 16;
/// Mode of new directories.
pub(super) const NEW_DIRECTORY: u32 = 0o755;

impl Change<'_> {
    /// Checks that a new file could come to a path, without making anything.
    pub(super) fn check_vacant(&self, path: &RelativePath) -> Result<(), Error> {
        let mut place = self.behind(path).clone();
        loop {
            let (above, name) = place.split_file()?;
            match self.workspace.root.open_place(above.as_bytes()) {
                Ok(directory) => {
                    self.workspace.allow_change_in(directory.as_fd(), name)?;
                    return match Stamp::at(directory.as_fd(), name) {
                        Ok(_) => Err(exists(path)),
                        Err(Errno::NOENT) => Ok(()),
                        Err(errno) => Err(failure(errno, path.as_str(), Wanted::File)),
                    };
                }
                Err(Errno::NOENT) => place = above, // which is to be made, too
                Err(errno) => return Err(failure(errno, above.as_str(), Wanted::Directory)),
            }
        }
    }

    /// Makes the directories above a path, and answers the last of them and the name in it.
    pub(super) fn place(&mut self, path: &RelativePath) -> Result<(Arc<OwnedFd>, String), Error> {
        let (directory, name) = self.behind(path).split_file()?;
        let name = name.to_owned();
        let opened = match self.places.get(&directory) {
            Some(opened) => Arc::clone(opened),
            None => {
                let opened = match self.workspace.root.open_place(directory.as_bytes()) {
                    Err(Errno::NOENT) if self.makes_directories => self.make(&directory)?,
                    opened => opened
                        .map_err(|errno| failure(errno, directory.as_str(), Wanted::Directory))?,
                };
                let opened = Arc::new(opened);
                self.places.insert(directory, Arc::clone(&opened));
                opened
            }
        };
        self.workspace.allow_change_in(opened.as_fd(), &name)?;
        Ok((opened, name))
    }

    /// Has the directory of a path looked up anew.
    pub(super) fn forget_place(&mut self, path: &RelativePath) -> Result<(), Error> {
        let (directory, _) = self.behind(path).split_file()?;
        self.places.remove(&directory);
        Ok(())
    }

    /// Makes a directory with those above it.
    pub(crate) fn make_directories(&mut self, path: &RelativePath) -> Result<(), Error> {
        let found = self.workspace.root.open_path(path.as_bytes());
        if let Ok(found) = found {
            let kind = fstat(&found).map(|stat| FileType::from_raw_mode(stat.st_mode));
            if kind != Ok(FileType::Directory) {
                return Err(exists(path));
            }
        }
        self.make(path).map(drop)
    }

    fn make(&mut self, path: &RelativePath) -> Result<OwnedFd, Error> {
        // Somebody who deletes what is in a directory on the way may remove it just now, too.
        for _ in 1..ATTEMPTS {
            match self.try_to_make(path) {
                Err(error) if error.reason == Reason::DirectoryNotFound => self.check()?,
                made => return made,
            }
        }
        self.try_to_make(path)
    }

    fn try_to_make(&mut self, path: &RelativePath) -> Result<OwnedFd, Error> {
        let mut missing = Vec::new();
        let mut so_far = path.clone();
        let mut here = loop {
            match (self.workspace.root.open_place(so_far.as_bytes()), so_far.split()) {
                (Err(Errno::NOENT), Some((above, name))) => {
                    missing.push(name.to_owned());
                    so_far = above;
                }
                (opened, _) => {
                    break opened
                        .map_err(|errno| failure(errno, so_far.as_str(), Wanted::Directory))?;
                }
            }
        };
        while let Some(name) = missing.pop() {
            self.workspace.allow_change_in(here.as_fd(), &name)?;
            so_far = so_far.join(&name);
            let failed = |errno| failure(errno, so_far.as_str(), Wanted::Directory);
            self.say(&[Entry::Make(so_far.as_str().to_owned())])?;
            fault::step();
            match mkdirat(&here, &name, Mode::from_raw_mode(NEW_DIRECTORY)) {
                Ok(()) => self.made.push(so_far.clone()),
                Err(Errno::EXIST) => {} // somebody else was quicker
                Err(errno) => return Err(failed(errno)),
            }
            fault::step();
            let made = open_directory_named(&here, &name).map_err(failed)?;
            self.workspace
                .owner_in(&here)
                .and_then(|owner| give(made.as_fd(), owner))
                .map_err(failed)?;
            here = made;
        }
        Ok(here)
    }

    /// Directories that were made so far, the highest first.
    pub(crate) fn made(&self) -> impl Iterator<Item = &str> {
        self.made.iter().map(RelativePath::as_str)
    }
}
