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
//!
//! | file | holds |
//! |---|---|
//! | [`place`] | the directories in which something is put |
//! | [`stage`] | making what is to come to a place beside it |
//! | [`swap`] | a directory in the place of a file, and a file in that of a directory |

mod place;
mod stage;
mod swap;

use std::{
    collections::{BTreeSet, HashMap},
    os::fd::OwnedFd,
    sync::Arc,
};

use rustix::fs::{Mode, fstat};

use super::{
    Workspace,
    failure::{Wanted, failure},
    fault,
    file::RegularFile,
    journal::{Entry, Journal},
    lock::Held,
    original::Original,
    parallel::in_parallel,
    path::RelativePath,
    step::{Kind, Staged, apply, finish, undo},
    stop::Stop,
};
use crate::daemon::{error::Error, store::failure::state_failure, sys::Errno};

/// A change of files that nobody else changes meanwhile by the tools. Dropped without
/// [`Change::commit`], it changes nothing.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    workspace: &'a Workspace,
    stop: &'a Stop,
    /// Where paths lead that pass through links which are followed.
    real: HashMap<RelativePath, RelativePath>,
    makes_directories: bool,
    journal: Option<Journal>,
    staged: Vec<Staged>,
    /// Directories made for it, the highest first.
    made: Vec<RelativePath>,
    /// Directories in which it changes something: many files need no more descriptors than these.
    places: HashMap<RelativePath, Arc<OwnedFd>>,
    /// Last, so that others come when the journal is gone: it must not undo what they do.
    _held: Held<'a>,
}

/// A change that was made.
#[derive(Debug)]
#[must_use]
pub(crate) struct Made(Result<(), Error>);

impl Made {
    /// An error where the disk, if changes wait for it, could not write down which names there are
    /// now: the change was made all the same.
    pub(crate) fn written_down(self) -> Result<(), Error> {
        self.0
    }
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
        let places: Vec<_> =
            paths.iter().map(|path| real.get(path).unwrap_or(path).clone()).collect();
        let held = self.locks.hold(&places, stop)?;
        Ok(Change {
            workspace: self,
            stop,
            real,
            makes_directories: true,
            journal: None,
            staged: Vec::new(),
            made: Vec::new(),
            places: HashMap::new(),
            _held: held,
        })
    }

    /// Makes the directories on the way to the file `path`, as far as they are missing.
    pub(crate) fn create_parents(&self, path: &RelativePath, stop: &Stop) -> Result<(), Error> {
        let mut change = self.change(std::slice::from_ref(path), stop)?;
        change.place(path)?;
        change.commit()?.written_down()
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
        file.map(|file| Original::read(&file, path, most)).transpose()
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

    fn check(&self) -> Result<(), Error> {
        self.stop.check()
    }

    /// Makes all of it, or nothing.
    pub(crate) fn commit(mut self) -> Result<Made, Error> {
        self.check()?;
        // Directories whose names change.
        let made = self.made.iter().filter_map(RelativePath::split);
        let mut touched: BTreeSet<_> = made.map(|(above, _)| above).collect();
        if self.staged.is_empty() {
            self.made.clear(); // they are what was wanted
            return Ok(Made(self.workspace.sync(touched)));
        }
        let steps = self.staged.iter().map(Staged::step).collect();
        self.say(&[Entry::Ready(steps)])?;
        for staged in &self.staged {
            fault::step();
            apply(staged)?; // what was put in place before it is undone when this is dropped
        }
        fault::step();
        self.say(&[Entry::Done])?;
        self.made.clear();
        let staged = std::mem::take(&mut self.staged);
        let finished = in_parallel(&staged, |staged| {
            fault::step();
            finish(&staged.directory, &staged.temporary)
        });
        for (staged, finished) in staged.iter().zip(finished) {
            if let Err(errno) = finished {
                self.leave(errno);
            }
            if matches!(staged.kind, Kind::Delete) {
                touched.extend(self.workspace.prune(&staged.path));
            }
            touched.extend(staged.path.split().map(|(directory, _)| directory));
        }
        fault::step();
        Ok(Made(self.workspace.sync(touched)))
    }

    /// Something could not be mended now: the journal stays for the next daemon.
    fn leave(&mut self, errno: Errno) {
        tracing::error!(%errno, "what a change has set aside stays where it is until the daemon is started again");
        if let Some(journal) = &mut self.journal {
            journal.leave();
        }
    }

    fn say(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let Some(journals) = &self.workspace.journals else {
            return Ok(());
        };
        let journal = match &mut self.journal {
            Some(journal) => journal,
            none => {
                let begun = journals.begin();
                none.insert(begun.map_err(|error| state_failure(&error).caused_by(error))?)
            }
        };
        journal.say(entries).map_err(|error| {
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
