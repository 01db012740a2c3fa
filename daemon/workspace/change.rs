//! Changes to files, one or several, that are made all or not at all.
//!
//! ```text
//! change ──▶ read … ──▶ write/delete … ──▶ commit ─▶ each is put in place, the old one set aside
//!  waits for others      new contents are      │       one cannot be: those before it are undone
//!  at the same paths     written beside the    └─────▶ what was set aside is removed
//!                        files, in journal too
//! ```
//!
//! Putting in place is one rename for each file, so a reader sees the old content or the new one.
//! What a rename takes away is looked at afterwards: if it is not the file that was read, commands
//! in the workspace have changed it meanwhile, and the change is undone. A daemon that dies leaves
//! its journal, from which the next one undoes what was half done.
//!
//! A new content is a new file: where the old one had other hard links, those keep the old content,
//! and nothing outside the workspace can be changed through one.

use std::os::fd::{AsFd as _, OwnedFd};

use super::{
    Workspace,
    beneath::open_directory_named,
    failure::{Wanted, exists, failure},
    fault,
    file::RegularFile,
    journal::{Entry, Journal},
    lock::Held,
    original::{Fresh, Original, Stamp, give},
    path::RelativePath,
    step::{Kind, Staged, apply, finish, sync_directory, temporary_name, undo},
    stop::Stop,
};
use crate::daemon::{error::Error, sys::Errno};
use rustix::{
    fs::{FileType, Mode, OFlags, fsync, mkdirat, openat},
    io::{retry_on_intr, write},
};

/// Mode of new directories and, without their executable bits, of new files.
const NEW_DIRECTORY: u32 = 0o755;
const NEW_FILE: u32 = 0o644;

/// A change of files that nobody else changes meanwhile by the tools. Dropped without
/// [`Change::commit`], it changes nothing.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    workspace: &'a Workspace,
    stop: &'a Stop,
    _held: Held<'a>,
    journal: Option<Journal>,
    staged: Vec<Staged>,
    /// Directories made for it, the highest first.
    made: Vec<RelativePath>,
}

impl Workspace {
    /// Begins a change of these paths: waits until nobody else changes them, and checks that the
    /// operator does not protect one.
    pub(crate) fn change<'a>(
        &'a self,
        paths: &[RelativePath],
        stop: &'a Stop,
    ) -> Result<Change<'a>, Error> {
        paths.iter().try_for_each(|path| self.allow_change(path))?;
        let held = self.locks.hold(paths);
        stop.check()?;
        Ok(Change {
            workspace: self,
            stop,
            _held: held,
            journal: None,
            staged: Vec::new(),
            made: Vec::new(),
        })
    }

    /// Makes the directories on the way to the file `path`, as far as they are missing.
    pub(crate) fn create_parents(&self, path: &RelativePath, stop: &Stop) -> Result<(), Error> {
        let mut change = self.change(std::slice::from_ref(path), stop)?;
        change.place(path)?;
        change.commit()
    }
}

impl Change<'_> {
    /// The regular file at a path with its content; none when nothing is there. `FILE_TOO_LARGE`
    /// above `most` bytes.
    pub(crate) fn read(&self, path: &RelativePath, most: u64) -> Result<Option<Original>, Error> {
        let file = self.open(path)?;
        file.map(|file| Original::read(file, path, most))
            .transpose()
    }

    /// The regular file at a path without its content; none when nothing is there.
    pub(crate) fn look(&self, path: &RelativePath) -> Result<Option<Original>, Error> {
        let file = self.open(path)?;
        file.map(|file| Original::look(file, path)).transpose()
    }

    fn open(&self, path: &RelativePath) -> Result<Option<RegularFile>, Error> {
        match self.workspace.root.open_path(path.as_bytes()) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(failure(errno, path.as_str(), Wanted::File)),
            Ok(found) => RegularFile::open(&found, path.as_str()).map(Some),
        }
    }

    /// Stages a new content. `original` is what was there; without it, nothing may be there. `mode`
    /// is the permission bits that it gets; without it, those of the original. Directories on the
    /// way are made.
    pub(crate) fn write(
        &mut self,
        path: &RelativePath,
        original: Option<&Original>,
        content: &[u8],
        mode: Option<u32>,
    ) -> Result<(), Error> {
        self.stop.check()?;
        let (directory, name) = self.place(path)?;
        let failed = |errno| failure(errno, path.as_str(), Wanted::File);
        if original.is_none() && Stamp::at(directory.as_fd(), &name).is_ok() {
            return Err(exists(path));
        }
        let temporary = temporary_name();
        self.say(&Entry::Put {
            path: path.as_str().to_owned(),
            temporary: temporary.clone(),
        })?;
        fault::step();
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let private = Mode::from_raw_mode(0o600);
        let file =
            retry_on_intr(|| openat(&directory, &temporary, flags, private)).map_err(failed)?;
        // Known from here on, so that it is removed whatever happens.
        self.staged.push(Staged {
            path: path.clone(),
            directory,
            name,
            temporary,
            kind: Kind::Unfinished,
            old: original.map(|original| original.stamp),
        });
        fault::step();
        self.fill(&file, content).map_err(failed)?;
        match original {
            Some(original) => original.dress(file.as_fd(), mode),
            None => Fresh {
                owner: self.workspace.owner,
                mode: mode.unwrap_or(NEW_FILE),
            }
            .dress(file.as_fd()),
        }
        .map_err(failed)?;
        if self.workspace.sync {
            fsync(&file).map_err(failed)?;
        }
        let stamp = Stamp::of(&rustix::fs::fstat(&file).map_err(failed)?);
        if let Some(staged) = self.staged.last_mut() {
            staged.kind = Kind::Put(stamp);
        }
        Ok(())
    }

    fn fill(&self, file: &OwnedFd, mut content: &[u8]) -> Result<(), Errno> {
        while !content.is_empty() {
            let written = retry_on_intr(|| write(file, content))?;
            content = content.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Stages the deletion of a file, and of the directories that are empty then.
    pub(crate) fn delete(&mut self, path: &RelativePath, original: &Original) -> Result<(), Error> {
        self.stop.check()?;
        let (directory, name) = self.place(path)?;
        self.staged.push(Staged {
            path: path.clone(),
            directory,
            name,
            temporary: temporary_name(),
            kind: Kind::Delete,
            old: Some(original.stamp),
        });
        Ok(())
    }

    /// Makes the directories above a path, and answers the last of them and the name in it.
    fn place(&mut self, path: &RelativePath) -> Result<(OwnedFd, String), Error> {
        let (directory, name) = path.split_file()?;
        let opened = match self.workspace.root.open_place(directory.as_bytes()) {
            Err(Errno::NOENT) => self.make(&directory)?,
            opened => {
                opened.map_err(|errno| failure(errno, directory.as_str(), Wanted::Directory))?
            }
        };
        self.workspace.allow_change_in(opened.as_fd(), name)?;
        Ok((opened, name.to_owned()))
    }

    /// Makes a directory with those above it.
    pub(crate) fn make_directories(&mut self, path: &RelativePath) -> Result<(), Error> {
        let found = self.workspace.root.open_path(path.as_bytes());
        if let Ok(found) = found {
            let kind = rustix::fs::fstat(&found).map(|stat| FileType::from_raw_mode(stat.st_mode));
            if kind != Ok(FileType::Directory) {
                return Err(exists(path));
            }
        }
        self.make(path).map(drop)
    }

    fn make(&mut self, path: &RelativePath) -> Result<OwnedFd, Error> {
        let mut missing = Vec::new();
        let mut so_far = path.clone();
        let mut here = loop {
            match (
                self.workspace.root.open_place(so_far.as_bytes()),
                so_far.split(),
            ) {
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
            self.say(&Entry::Make(so_far.as_str().to_owned()))?;
            fault::step();
            match mkdirat(&here, &name, Mode::from_raw_mode(NEW_DIRECTORY)) {
                Ok(()) => self.made.push(so_far.clone()),
                Err(Errno::EXIST) => {} // somebody else was quicker
                Err(errno) => return Err(failed(errno)),
            }
            fault::step();
            let made = open_directory_named(&here, &name).map_err(failed)?;
            give(made.as_fd(), self.workspace.owner).map_err(failed)?;
            here = made;
        }
        Ok(here)
    }

    /// Directories that were made so far, the highest first.
    pub(crate) fn made(&self) -> impl Iterator<Item = &str> {
        self.made.iter().map(RelativePath::as_str)
    }

    /// Makes all of it, or nothing.
    pub(crate) fn commit(mut self) -> Result<(), Error> {
        self.stop.check()?;
        if self.staged.is_empty() {
            self.made.clear(); // they are what was wanted
            return Ok(());
        }
        let steps = self.staged.iter().map(Staged::step).collect();
        self.say(&Entry::Ready(steps))?;
        for staged in &self.staged {
            fault::step();
            apply(staged)?; // what was put in place before it is undone when this is dropped
        }
        fault::step();
        self.say(&Entry::Done)?;
        self.made.clear();
        let staged = std::mem::take(&mut self.staged);
        for staged in &staged {
            fault::step();
            finish(&staged.directory, &staged.temporary);
            if matches!(staged.kind, Kind::Delete) {
                self.workspace.prune(&staged.path);
            }
            if self.workspace.sync {
                sync_directory(staged)?;
            }
        }
        fault::step();
        Ok(())
    }

    fn say(&mut self, entry: &Entry) -> Result<(), Error> {
        let Some(journals) = &self.workspace.journals else {
            return Ok(());
        };
        let said = match &mut self.journal {
            Some(journal) => journal.say(entry),
            none => journals
                .begin()
                .and_then(|journal| none.insert(journal).say(entry)),
        };
        said.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            failure(errno, "the daemon's state directory", Wanted::Directory)
        })
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        for staged in self.staged.iter().rev() {
            match staged.kind {
                Kind::Unfinished => finish(&staged.directory, &staged.temporary),
                Kind::Put(_) | Kind::Delete => {
                    undo(&staged.directory, &staged.name, &staged.step());
                }
            }
        }
        for directory in self.made.iter().rev() {
            self.workspace.remove_if_empty(directory);
        }
    }
}
