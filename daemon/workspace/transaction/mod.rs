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

mod parents;
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
    cancel::CancelToken,
    fault_injection,
    file::RegularFile,
    journal::{JournalEntry, TransactionJournal},
    os_error::{ExpectedKind, os_error},
    parallel::parallel_map,
    path::RelativePath,
    path_locks::PathLockGuard,
    rename_step::{StagedAction, StagedChange, apply, remove_leftover, undo},
    snapshot::FileSnapshot,
};
use crate::daemon::{error::Error, store::failure::state_failure, sys::Errno};

/// A change of files that nobody else changes meanwhile by the tools. Dropped without
/// [`Change::commit`], it changes nothing.
#[derive(Debug)]
pub(crate) struct FileTransaction<'a> {
    workspace: &'a Workspace,
    cancel: &'a CancelToken,
    /// Where paths lead that pass through links which are followed.
    real_paths: HashMap<RelativePath, RelativePath>,
    creates_directories: bool,
    journal: Option<TransactionJournal>,
    staged: Vec<StagedChange>,
    /// Directories made for it, the highest first.
    created_directories: Vec<RelativePath>,
    /// Directories in which it changes something: many files need no more descriptors than these.
    directories: HashMap<RelativePath, Arc<OwnedFd>>,
    /// Last, so that others come when the journal is gone: it must not undo what they do.
    _locks: PathLockGuard<'a>,
}

/// A change that was made.
#[derive(Debug)]
#[must_use]
pub(crate) struct Committed(Result<(), Error>);

impl Committed {
    /// An error where the disk, if changes wait for it, could not write down which names there are
    /// now: the change was made all the same.
    pub(crate) fn sync_result(self) -> Result<(), Error> {
        self.0
    }
}

impl Workspace {
    /// Begins a change of these paths: waits until nobody else changes them, and checks that the
    /// operator does not protect one.
    pub(crate) fn begin_transaction<'a>(
        &'a self,
        paths: &[RelativePath],
        cancel: &'a CancelToken,
    ) -> Result<FileTransaction<'a>, Error> {
        paths.iter().try_for_each(|path| self.check_change_allowed(path))?;
        let mut real = HashMap::new();
        for path in paths {
            if let Some(place) = self.resolve_symlinks(path)? {
                self.check_change_allowed(&place)?;
                real.insert(path.clone(), place);
            }
        }
        let places: Vec<_> =
            paths.iter().map(|path| real.get(path).unwrap_or(path).clone()).collect();
        let held = self.locks.lock(&places, cancel)?;
        Ok(FileTransaction {
            workspace: self,
            cancel,
            real_paths: real,
            creates_directories: true,
            journal: None,
            staged: Vec::new(),
            created_directories: Vec::new(),
            directories: HashMap::new(),
            _locks: held,
        })
    }

    /// Makes the directories on the way to the file `path`, as far as they are missing.
    pub(crate) fn create_parents(
        &self,
        path: &RelativePath,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        let mut change = self.begin_transaction(std::slice::from_ref(path), cancel)?;
        change.open_parent(path)?;
        change.commit()?.sync_result()
    }

    /// To whom what is new in a directory belongs: to whom the workspace does, but for the group of
    /// a directory that hands its own down (inode(7), the set-group-ID bit).
    pub(super) fn inherited_owner(&self, directory: &OwnedFd) -> Result<(u32, u32), Errno> {
        let (user, group) = self.owner;
        let stat = fstat(directory)?;
        let hands_down = Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID);
        Ok((user, if hands_down { stat.st_gid } else { group }))
    }
}

impl FileTransaction<'_> {
    /// Has it fail where the directory of a file is missing.
    pub(crate) fn require_parent_directories(&mut self) {
        self.creates_directories = false;
    }

    /// The regular file at a path with its content; none when nothing is there. `FILE_TOO_LARGE`
    /// above `most` bytes.
    pub(crate) fn read(
        &self,
        path: &RelativePath,
        most: u64,
    ) -> Result<Option<FileSnapshot>, Error> {
        let file = self.open(path)?;
        file.map(|file| FileSnapshot::read(&file, path, most)).transpose()
    }

    /// The regular file at a path without its content; none when nothing is there.
    pub(crate) fn stat(&self, path: &RelativePath) -> Result<Option<FileSnapshot>, Error> {
        let file = self.open(path)?;
        file.map(|file| FileSnapshot::stat(&file, path)).transpose()
    }

    /// Whether a directory is at a path.
    pub(crate) fn is_directory(&self, path: &RelativePath) -> bool {
        let path = self.real_path(path);
        self.workspace.root.open_directory_handle(path.as_bytes()).is_ok()
    }

    fn open(&self, path: &RelativePath) -> Result<Option<RegularFile>, Error> {
        match self.workspace.root.open_path(self.real_path(path).as_bytes()) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(os_error(errno, path.as_str(), ExpectedKind::File)),
            Ok(found) => RegularFile::open(&found, path.as_str()).map(Some),
        }
    }

    fn real_path<'p>(&'p self, path: &'p RelativePath) -> &'p RelativePath {
        self.real_paths.get(path).unwrap_or(path)
    }

    fn check(&self) -> Result<(), Error> {
        self.cancel.check()
    }

    /// Makes all of it, or nothing.
    pub(crate) fn commit(mut self) -> Result<Committed, Error> {
        self.check()?;
        // Directories whose names change.
        let made = self.created_directories.iter().filter_map(RelativePath::split);
        let mut touched: BTreeSet<_> = made.map(|(above, _)| above).collect();
        if self.staged.is_empty() {
            self.created_directories.clear(); // they are what was wanted
            return Ok(Committed(self.workspace.sync_directories(touched)));
        }
        let steps = self.staged.iter().map(StagedChange::journal_step).collect();
        self.write_journal(&[JournalEntry::Ready(steps)])?;
        for staged in &self.staged {
            fault_injection::step();
            apply(staged)?; // what was put in place before it is undone when this is dropped
        }
        fault_injection::step();
        self.write_journal(&[JournalEntry::Done])?;
        self.created_directories.clear();
        let staged = std::mem::take(&mut self.staged);
        let finished = parallel_map(&staged, |staged| {
            fault_injection::step();
            remove_leftover(&staged.directory, &staged.temporary)
        });
        for (staged, finished) in staged.iter().zip(finished) {
            if let Err(errno) = finished {
                self.leave_journal(errno);
            }
            if matches!(staged.action, StagedAction::Delete) {
                touched.extend(self.workspace.remove_empty_parents(&staged.path));
            }
            touched.extend(staged.path.split().map(|(directory, _)| directory));
        }
        fault_injection::step();
        Ok(Committed(self.workspace.sync_directories(touched)))
    }

    /// Something could not be mended now: the journal stays for the next daemon.
    fn leave_journal(&mut self, errno: Errno) {
        tracing::error!(%errno, "what a change has set aside stays where it is until the daemon is started again");
        if let Some(journal) = &mut self.journal {
            journal.keep_on_drop();
        }
    }

    fn write_journal(&mut self, entries: &[JournalEntry]) -> Result<(), Error> {
        let Some(journals) = &self.workspace.journals else {
            return Ok(());
        };
        let journal = match &mut self.journal {
            Some(journal) => journal,
            none => {
                let begun = journals.begin();
                none.insert(begun.map_err(|error| state_failure(&error).with_cause(error))?)
            }
        };
        journal.append(entries).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            os_error(errno, "the daemon's state directory", ExpectedKind::Directory)
        })
    }
}

impl Drop for FileTransaction<'_> {
    fn drop(&mut self) {
        for staged in std::mem::take(&mut self.staged).iter().rev() {
            let undone = match staged.action {
                StagedAction::Unfinished => remove_leftover(&staged.directory, &staged.temporary),
                StagedAction::Put(_) | StagedAction::Delete => {
                    undo(&staged.directory, &staged.name, &staged.journal_step())
                }
            };
            if let Err(errno) = undone {
                self.leave_journal(errno);
            }
        }
        for directory in self.created_directories.iter().rev() {
            self.workspace.remove_if_empty(directory);
        }
    }
}
