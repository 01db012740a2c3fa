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

use std::{
    collections::{BTreeSet, HashMap},
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{FileType, Mode, OFlags, fstat, fsync, mkdirat, openat},
    io::{retry_on_intr, write},
};

use super::{
    Workspace,
    beneath::open_directory_named,
    failure::{Wanted, exists, failure},
    fault,
    file::RegularFile,
    journal::{Entry, Journal},
    lock::Held,
    original::{Content, Fresh, Original, Stamp, give},
    path::RelativePath,
    step::{Kind, Old, Staged, apply, finish, temporary_name, undo},
    stop::Stop,
};
use crate::daemon::{error::Error, sys::Errno};

/// Mode of new directories.
pub(super) const NEW_DIRECTORY: u32 = 0o755;
/// Mode of new files.
const NEW_FILE: u32 = 0o644;

/// A change of files that nobody else changes meanwhile by the tools. Dropped without
/// [`Change::commit`], it changes nothing.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    workspace: &'a Workspace,
    stop: &'a Stop,
    _held: Held<'a>,
    /// Where paths lead that pass through links which are followed.
    real: HashMap<RelativePath, RelativePath>,
    makes_directories: bool,
    journal: Option<Journal>,
    staged: Vec<Staged>,
    /// Directories made for it, the highest first.
    made: Vec<RelativePath>,
    /// Directories in which it changes something: many files need no more descriptors than these.
    places: HashMap<RelativePath, Arc<OwnedFd>>,
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
        let mut real = HashMap::new();
        for path in paths {
            if let Some(place) = self.behind_links(path)? {
                self.allow_change(&place)?;
                real.insert(path.clone(), place);
            }
        }
        let places: Vec<_> = paths
            .iter()
            .map(|path| real.get(path).unwrap_or(path).clone())
            .collect();
        let held = self.locks.hold(&places, stop)?;
        Ok(Change {
            workspace: self,
            stop,
            _held: held,
            real,
            makes_directories: true,
            journal: None,
            staged: Vec::new(),
            made: Vec::new(),
            places: HashMap::new(),
        })
    }

    /// Makes the directories on the way to the file `path`, as far as they are missing.
    pub(crate) fn create_parents(&self, path: &RelativePath, stop: &Stop) -> Result<(), Error> {
        let mut change = self.change(std::slice::from_ref(path), stop)?;
        change.place(path)?;
        change.commit()
    }

    /// To whom what is new in a directory belongs: to whom the workspace does, but for the group of
    /// a directory that hands its own down (inode(7), the set-group-ID bit).
    pub(super) fn owner_in(&self, directory: &OwnedFd) -> Result<(u32, u32), Errno> {
        let (user, group) = self.owner;
        let stat = fstat(directory)?;
        let hands_down = Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID);
        Ok((user, if hands_down { stat.st_gid } else { group }))
    }
}

impl Change<'_> {
    /// Has it fail where the directory of a file is missing.
    pub(crate) fn keep_to_directories(&mut self) {
        self.makes_directories = false;
    }

    /// The regular file at a path with its content; none when nothing is there. `FILE_TOO_LARGE`
    /// above `most` bytes.
    pub(crate) fn read(&self, path: &RelativePath, most: u64) -> Result<Option<Original>, Error> {
        let file = self.open(path)?;
        file.map(|file| Original::read(&file, path, most))
            .transpose()
    }

    /// The regular file at a path without its content; none when nothing is there.
    pub(crate) fn look(&self, path: &RelativePath) -> Result<Option<Original>, Error> {
        let file = self.open(path)?;
        file.map(|file| Original::look(&file, path)).transpose()
    }

    /// Whether a directory is at a path.
    pub(crate) fn is_directory(&self, path: &RelativePath) -> bool {
        let path = self.behind(path);
        self.workspace.root.open_place(path.as_bytes()).is_ok()
    }

    fn open(&self, path: &RelativePath) -> Result<Option<RegularFile>, Error> {
        match self.workspace.root.open_path(self.behind(path).as_bytes()) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(failure(errno, path.as_str(), Wanted::File)),
            Ok(found) => RegularFile::open(&found, path.as_str()).map(Some),
        }
    }

    fn behind<'p>(&'p self, path: &'p RelativePath) -> &'p RelativePath {
        self.real.get(path).unwrap_or(path)
    }

    /// Checks that a new file could come to a path, without making anything.
    pub(crate) fn check_vacant(&self, path: &RelativePath) -> Result<(), Error> {
        let mut place = self.behind(path).clone();
        loop {
            let (above, name) = place.split_file()?;
            match self.workspace.root.open_place(above.as_bytes()) {
                Ok(directory) => {
                    self.workspace.allow_change_in(directory.as_fd(), name)?;
                    return match Stamp::at(directory.as_fd(), name) {
                        Ok(_) => Err(exists(path)),
                        Err(_) => Ok(()),
                    };
                }
                Err(Errno::NOENT) => place = above, // which is to be made, too
                Err(errno) => return Err(failure(errno, above.as_str(), Wanted::Directory)),
            }
        }
    }

    /// Stages a new content. `original` is what was there; without it, nothing may be there.
    /// Directories on the way are made.
    pub(crate) fn write(
        &mut self,
        path: &RelativePath,
        original: Option<&Original>,
        content: Content<'_>,
    ) -> Result<(), Error> {
        // Whoever says what its mode is to be has thought of that.
        if let Some(original) = original.filter(|_| content.mode.is_none()) {
            original.check_writable(path)?;
        }
        let old = original.map_or(Old::Nothing, |original| Old::File(original.stamp));
        self.stage_file(path, old, content, original)
    }

    /// Stages a file in the place of something; `like` is the file that it is a new version of.
    pub(super) fn stage_file(
        &mut self,
        path: &RelativePath,
        old: Old,
        content: Content<'_>,
        like: Option<&Original>,
    ) -> Result<(), Error> {
        self.check()?;
        let failed = |errno| failure(errno, path.as_str(), Wanted::File);
        let (directory, name) = self.place(path)?;
        if matches!(old, Old::Nothing) && Stamp::at(directory.as_fd(), &name).is_ok() {
            return Err(exists(path));
        }
        let (directory, temporary) = self.stage(path, directory, name, old)?;
        let file = match self.make_file(&directory, &temporary, content, like) {
            // Somebody who deleted what was in the directory removed it, too, since it was opened.
            Err(Errno::NOENT) if self.makes_directories => {
                let directory = self.place_again(path)?;
                self.make_file(&directory, &temporary, content, like)
            }
            made => made,
        }
        .map_err(failed)?;
        let stamp = Stamp::of(&fstat(&file).map_err(failed)?);
        self.finish_staging(Kind::Put(stamp));
        Ok(())
    }

    /// Writes down that something is made for a path, under a temporary name beside it, which it
    /// answers with their directory. Known from here on, it is removed whatever happens.
    pub(super) fn stage(
        &mut self,
        path: &RelativePath,
        directory: Arc<OwnedFd>,
        name: String,
        old: Old,
    ) -> Result<(Arc<OwnedFd>, String), Error> {
        let path = self.behind(path).clone();
        let temporary = temporary_name();
        self.say(&Entry::Put {
            path: path.as_str().to_owned(),
            temporary: temporary.clone(),
        })?;
        fault::step();
        self.staged.push(Staged {
            path,
            directory: Arc::clone(&directory),
            name,
            temporary: temporary.clone(),
            kind: Kind::Unfinished,
            old,
        });
        Ok((directory, temporary))
    }

    /// What was staged last has been made.
    pub(super) fn finish_staging(&mut self, kind: Kind) {
        if let Some(staged) = self.staged.last_mut() {
            staged.kind = kind;
        }
    }

    /// Makes a file that nothing names yet but the daemon.
    pub(super) fn make_file(
        &self,
        directory: &OwnedFd,
        name: &str,
        content: Content<'_>,
        like: Option<&Original>,
    ) -> Result<OwnedFd, Errno> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let private = Mode::from_raw_mode(0o600);
        let file = retry_on_intr(|| openat(directory, name, flags, private))?;
        fault::step();
        let mut rest = content.bytes;
        while !rest.is_empty() {
            let written = retry_on_intr(|| write(&file, rest))?;
            rest = rest.get(written..).unwrap_or_default();
        }
        match content.like.or(like) {
            Some(original) => original.dress(file.as_fd(), content.mode)?,
            None => Fresh {
                owner: self.workspace.owner_in(directory)?,
                mode: content.mode.unwrap_or(NEW_FILE),
            }
            .dress(file.as_fd())?,
        }
        self.sync(&file)?;
        Ok(file)
    }

    /// Has the disk write down what was made, if changes wait for the disk.
    pub(super) fn sync(&self, made: &OwnedFd) -> Result<(), Errno> {
        match self.workspace.sync {
            true => fsync(made),
            false => Ok(()),
        }
    }

    /// The workspace.
    pub(super) fn workspace(&self) -> &Workspace {
        self.workspace
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.stop.check()
    }

    /// Stages the deletion of a file, and of the directories that are empty then.
    pub(crate) fn delete(&mut self, path: &RelativePath, original: &Original) -> Result<(), Error> {
        self.check()?;
        if self.real.get(path).is_some_and(|real| real != path) {
            // What the link leads to is not what the caller has named.
            self.workspace.refuse_link(path)?;
        }
        let (directory, name) = self.place(path)?;
        self.staged.push(Staged {
            path: self.behind(path).clone(),
            directory,
            name,
            temporary: temporary_name(),
            kind: Kind::Delete,
            old: Old::File(original.stamp),
        });
        Ok(())
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

    /// As [`Self::place`], for what was staged last, whose directory is gone.
    fn place_again(&mut self, path: &RelativePath) -> Result<Arc<OwnedFd>, Error> {
        let (directory, _) = self.behind(path).split_file()?;
        self.places.remove(&directory);
        let (directory, _) = self.place(path)?;
        if let Some(staged) = self.staged.last_mut() {
            staged.directory = Arc::clone(&directory);
        }
        Ok(directory)
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

    /// Makes all of it, or nothing.
    pub(crate) fn commit(mut self) -> Result<(), Error> {
        self.check()?;
        // Directories whose names change.
        let made = self.made.iter().filter_map(RelativePath::split);
        let mut touched: BTreeSet<_> = made.map(|(above, _)| above).collect();
        if self.staged.is_empty() {
            self.made.clear(); // they are what was wanted
            return self.workspace.sync(touched);
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
        for staged in std::mem::take(&mut self.staged) {
            fault::step();
            if let Err(errno) = finish(&staged.directory, &staged.temporary) {
                self.leave(errno);
            }
            if matches!(staged.kind, Kind::Delete) {
                touched.extend(self.workspace.prune(&staged.path));
            }
            touched.extend(staged.path.split().map(|(directory, _)| directory));
        }
        fault::step();
        self.workspace.sync(touched)
    }

    /// Something could not be mended now: the journal stays for the next daemon.
    fn leave(&mut self, errno: Errno) {
        tracing::error!(%errno, "what a change has set aside stays where it is until the daemon is started again");
        if let Some(journal) = &mut self.journal {
            journal.leave();
        }
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
        for staged in std::mem::take(&mut self.staged).iter().rev() {
            let undone = match staged.kind {
                Kind::Unfinished => finish(&staged.directory, &staged.temporary),
                Kind::Put(_) | Kind::Delete => {
                    undo(&staged.directory, &staged.name, &staged.step())
                }
            };
            if let Err(errno) = undone {
                self.leave(errno);
            }
        }
        for directory in self.made.iter().rev() {
            self.workspace.remove_if_empty(directory);
        }
    }
}
