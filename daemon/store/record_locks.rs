//! Records that several daemons keep in one folder: each of them is one daemon's at a time, by a
//! lock on its file (flock(2)) that goes with the daemon, however it ends.
//!
//! A record is written by renaming a new file over the old one. Whoever gets the lock on a file that
//! has no name any more has found what was given up, and nothing else.

use std::{
    collections::HashMap,
    fs::{File, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};

use crate::daemon::sys::Errno;

/// Extension of a record that is being written.
pub(super) const TEMPORARY_EXTENSION: &str = "new";
/// Age from which on nobody is writing it any more.
const MAX_TEMPORARY_AGE: Duration = Duration::from_secs(3600);

/// The records that are this daemon's.
#[derive(Debug, Default)]
pub(super) struct RecordLocks(Mutex<HashMap<PathBuf, File>>);

impl RecordLocks {
    /// Takes the record at `path`. Answers whether it is this daemon's now and was not before.
    pub(super) fn try_lock_record(&self, path: &Path) -> io::Result<bool> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened?,
        };
        if is_in_progress(path, &file.metadata()?) || !try_flock(&file)? {
            return Ok(false);
        }
        // Replaced or deleted by whoever had it until now.
        if file.metadata()?.nlink() == 0 {
            return Ok(false);
        }
        self.locked().insert(path.to_owned(), file);
        Ok(true)
    }

    /// Has `file`, which is about to be renamed to `path`, be this daemon's.
    pub(super) fn lock_renamed(
        &self,
        path: &Path,
        file: File,
        rename: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        try_flock(&file)?;
        rename()?;
        self.locked().insert(path.to_owned(), file);
        Ok(())
    }

    /// Leaves the record at `path` to others.
    pub(super) fn unlock(&self, path: &Path) {
        self.locked().remove(path);
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<PathBuf, File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has nobody else look through a folder until the answer is dropped: who looks holds the records
/// for a moment, and another one would take them for those of a daemon that lives. Without `wait`,
/// none where another one looks now.
pub(super) fn lock_folder(folder: &Path, wait: bool) -> Option<File> {
    let folder = File::open(folder).ok()?;
    let operation = match wait {
        true => FlockOperation::LockExclusive,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    flock(&folder, operation).ok()?;
    Some(folder)
}

/// Whether the lock was free.
fn try_flock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn is_in_progress(path: &Path, data: &Metadata) -> bool {
    let age = || data.modified().ok()?.elapsed().ok();
    let is_unfinished = path.extension().is_some_and(|it| it == TEMPORARY_EXTENSION);
    is_unfinished && age().is_none_or(|age| age < MAX_TEMPORARY_AGE)
}
