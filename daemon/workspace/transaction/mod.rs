//! Atomic changes of one or several files: all of them or none.
//!
//! ```text
//! begin ──▶ read … ──▶ write/delete … ──▶ commit ─▶ each new file is renamed over its destination,
//!  locks the paths     new contents are      │       the old file gets a temporary name;
//!                      written beside the    │       after an error, the completed steps are undone
//!                      files, and journaled  └─────▶ the old files are removed
//! ```
//!
//! Each file is put in place with one rename, so a reader sees the old content or the new one. The
//! replaced file is checked after the rename. If it is not the file that was read, a command has
//! changed it in the meantime, and the change is undone. After a crash, the next daemon undoes the
//! unfinished change from its journal.
//!
//! A new content is a new file. Other hard links to the old file keep the old content, so a change
//! cannot affect files outside the workspace through a link.
//!
//! | module | contents |
//! |---|---|
//! | [`members`] | links, and files that were received in parts |
//! | [`parents`] | the parent directories of changed files |
//! | [`stage`] | writes new files beside their destinations |
//! | [`swap`] | replaces a file by a directory, and a directory by a file |

mod members;
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
    file_quota::FileReservation,
    file_usage::FileUsage,
    journal::{JournalEntry, TransactionJournal},
    os_error::{ExpectedKind, os_error},
    parallel::parallel_map,
    path::RelativePath,
    path_locks::PathLockGuard,
    rename_step::{StagedAction, StagedChange, apply, remove_leftover, undo},
    resolve::Root,
    snapshot::FileSnapshot,
};
use crate::daemon::{error::Error, store::failure::state_failure, sys::Errno};

/// A change of files. Other calls do not change its paths in the meantime. Dropped without
/// [`FileTransaction::commit`], it changes nothing.
#[derive(Debug)]
pub(crate) struct FileTransaction<'a> {
    workspace: &'a Workspace,
    cancel: &'a CancelToken,
    /// Targets of the paths that pass through symbolic links.
    real_paths: HashMap<RelativePath, RelativePath>,
    creates_directories: bool,
    /// Whether symbolic links are rejected even if the workspace follows them.
    refuses_links: bool,
    journal: Option<TransactionJournal>,
    staged: Vec<StagedChange>,
    /// Directories created for the change, the highest first.
    created_directories: Vec<RelativePath>,
    /// Open parent directories, by path. One descriptor per directory, however many files change.
    directories: HashMap<RelativePath, Arc<OwnedFd>>,
    /// What the new files take, if the workspace has bounds.
    reservation: Option<FileReservation>,
    /// Dropped last: another call may begin only when the journal, which could undo it, is gone.
    _locks: PathLockGuard<'a>,
}

/// A committed change.
#[derive(Debug)]
#[must_use]
pub(crate) struct Committed(Result<(), Error>);

impl Committed {
    /// Returns an error if the change is not durable on disk although it should be. The change is
    /// visible all the same.
    pub(crate) fn sync_result(self) -> Result<(), Error> {
        self.0
    }
}

impl Workspace {
    /// Locks the paths, waiting for other calls that change them. Fails if the operator protects
    /// one.
    pub(crate) fn begin_transaction<'a>(
        &'a self,
        paths: &[RelativePath],
        cancel: &'a CancelToken,
    ) -> Result<FileTransaction<'a>, Error> {
        paths.iter().try_for_each(|path| self.check_change_allowed(path))?;

        let mut real_paths = HashMap::new();
        for path in paths {
            if let Some(target) = self.resolve_symlinks(path)? {
                self.check_change_allowed(&target)?;
                real_paths.insert(path.clone(), target);
            }
        }
        let targets: Vec<_> =
            paths.iter().map(|path| real_paths.get(path).unwrap_or(path).clone()).collect();
        let locks = self.locks.lock(&targets, cancel)?;
        let mut transaction = self.new_transaction(cancel, locks);
        transaction.real_paths = real_paths;
        Ok(transaction)
    }

    /// Like [`Self::begin_transaction`], but rejects symbolic links on the paths, even if the
    /// workspace follows them.
    pub(crate) fn begin_strict_transaction<'a>(
        &'a self,
        paths: &[RelativePath],
        cancel: &'a CancelToken,
    ) -> Result<FileTransaction<'a>, Error> {
        paths.iter().try_for_each(|path| self.check_change_allowed(path))?;
        let locks = self.locks.lock(paths, cancel)?;
        let mut transaction = self.new_transaction(cancel, locks);
        transaction.refuses_links = true;
        Ok(transaction)
    }

    fn new_transaction<'a>(
        &'a self,
        cancel: &'a CancelToken,
        locks: PathLockGuard<'a>,
    ) -> FileTransaction<'a> {
        FileTransaction {
            workspace: self,
            cancel,
            real_paths: HashMap::new(),
            creates_directories: true,
            refuses_links: false,
            journal: None,
            staged: Vec::new(),
            created_directories: Vec::new(),
            directories: HashMap::new(),
            reservation: None,
            _locks: locks,
        }
    }

    /// Creates the missing parent directories of the file `path`.
    pub(crate) fn create_parents(
        &self,
        path: &RelativePath,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        let mut transaction = self.begin_transaction(std::slice::from_ref(path), cancel)?;
        transaction.open_parent(path)?;
        transaction.commit()?.sync_result()
    }

    /// Returns the owner of a new file in a directory: the workspace's owner, with the group of the
    /// directory if that has the set-group-ID bit (inode(7)).
    pub(super) fn inherited_owner(&self, directory: &OwnedFd) -> Result<(u32, u32), Errno> {
        let (user, group) = self.owner;
        let stat = fstat(directory)?;
        let inherits_group = Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID);
        Ok((user, if inherits_group { stat.st_gid } else { group }))
    }
}

impl FileTransaction<'_> {
    /// Makes the change fail if the parent directory of a file does not exist.
    pub(crate) fn require_parent_directories(&mut self) {
        self.creates_directories = false;
    }

    /// Reads the regular file at a path. `None` if nothing exists there. `FILE_TOO_LARGE` above
    /// `max_bytes`.
    pub(crate) fn read(
        &self,
        path: &RelativePath,
        max_bytes: u64,
    ) -> Result<Option<FileSnapshot>, Error> {
        let file = self.open(path)?;
        file.map(|file| FileSnapshot::read(&file, path, max_bytes)).transpose()
    }

    /// Reads the metadata of the regular file at a path. `None` if nothing exists there.
    pub(crate) fn stat(&self, path: &RelativePath) -> Result<Option<FileSnapshot>, Error> {
        let file = self.open(path)?;
        file.map(|file| FileSnapshot::stat(&file, path)).transpose()
    }

    /// Whether the path is a directory.
    pub(crate) fn is_directory(&self, path: &RelativePath) -> bool {
        let path = self.real_path(path);
        self.root().open_directory_handle(path.as_bytes()).is_ok()
    }

    fn open(&self, path: &RelativePath) -> Result<Option<RegularFile>, Error> {
        match self.root().open_path(self.real_path(path).as_bytes()) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(os_error(errno, path.as_str(), ExpectedKind::File)),
            Ok(handle) => RegularFile::open(&handle, path.as_str()).map(Some),
        }
    }

    fn root(&self) -> &Root {
        if self.refuses_links { &self.workspace.strict_root } else { &self.workspace.root }
    }

    fn real_path<'p>(&'p self, path: &'p RelativePath) -> &'p RelativePath {
        self.real_paths.get(path).unwrap_or(path)
    }

    fn check(&self) -> Result<(), Error> {
        self.cancel.check()
    }

    /// Reserves what the next step writes. `NO_SPACE` if that exceeds a bound of the workspace.
    fn reserve(&mut self, growth: FileUsage) -> Result<(), Error> {
        match &mut self.reservation {
            Some(reservation) => reservation.add(growth, self.cancel),
            none => {
                *none = self.workspace.reserve(growth, self.cancel)?;
                Ok(())
            }
        }
    }

    /// Applies the change. After an error, nothing has changed.
    pub(crate) fn commit(mut self) -> Result<Committed, Error> {
        self.check()?;
        let mut changed_directories: BTreeSet<_> = self
            .created_directories
            .iter()
            .filter_map(RelativePath::split)
            .map(|(parent, _)| parent)
            .collect();
        if self.staged.is_empty() {
            self.created_directories.clear(); // not to be removed on drop
            return Ok(Committed(self.workspace.sync_directories(changed_directories)));
        }

        let steps = self.staged.iter().map(StagedChange::journal_step).collect();
        self.write_journal(&[JournalEntry::Ready(steps)])?;
        for staged in &self.staged {
            fault_injection::step();
            apply(staged)?; // on error, the drop undoes the earlier steps
        }
        fault_injection::step();
        self.write_journal(&[JournalEntry::Done])?;
        self.created_directories.clear();
        let staged = std::mem::take(&mut self.staged);
        let removals = parallel_map(&staged, |staged| {
            fault_injection::step();
            remove_leftover(&staged.directory, &staged.temporary)
        });
        for (staged, removal) in staged.iter().zip(removals) {
            if let Err(errno) = removal {
                self.leave_journal(errno);
            }
            if matches!(staged.action, StagedAction::Delete) {
                changed_directories.extend(self.workspace.remove_empty_parents(&staged.path));
            }
            changed_directories.extend(staged.path.split().map(|(directory, _)| directory));
        }
        fault_injection::step();
        Ok(Committed(self.workspace.sync_directories(changed_directories)))
    }

    /// Keeps the journal for the next daemon, after a cleanup step failed.
    fn leave_journal(&mut self, errno: Errno) {
        tracing::error!(%errno, "cannot clean up after a change of files; temporary files stay until the daemon restarts");
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
            none => none
                .insert(journals.begin().map_err(|error| state_failure(&error).with_cause(error))?),
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
            let result = match staged.action {
                StagedAction::Unfinished => remove_leftover(&staged.directory, &staged.temporary),
                StagedAction::Put(_) | StagedAction::Delete => {
                    undo(&staged.directory, &staged.name, &staged.journal_step())
                }
            };
            if let Err(errno) = result {
                self.leave_journal(errno);
            }
        }
        for directory in self.created_directories.iter().rev() {
            self.workspace.remove_if_empty(directory);
        }
    }
}
