//! Locks on records that several daemons store in one directory.
//!
//! Each record is held by one daemon at a time, by flock(2) on its file. The kernel releases the
//! lock when the daemon ends, however it ends.
//!
//! A record is updated by renaming a new file over the old one. A daemon that locks a file without
//! a name has locked an outdated record, which it ignores.

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
/// Age at which the writer of a temporary file must have died.
const MAX_TEMPORARY_AGE: Duration = Duration::from_secs(3600);

/// The records that this daemon holds.
#[derive(Debug, Default)]
pub(super) struct RecordLocks(Mutex<HashMap<PathBuf, File>>);

impl RecordLocks {
    /// Locks the record at `path`. Returns whether this daemon holds it now and did not before.
    pub(super) fn try_lock_record(&self, path: &Path) -> io::Result<bool> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened?,
        };

        if is_in_progress(path, &file.metadata()?) || !try_flock(&file)? {
            return Ok(false);
        }
        // Replaced or deleted by the daemon that held it until now.
        if file.metadata()?.nlink() == 0 {
            return Ok(false);
        }

        self.locked().insert(path.to_owned(), file);
        Ok(true)
    }

    /// Locks `file`, then renames it to `path` with `rename`.
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

    /// Releases the record at `path`.
    pub(super) fn unlock(&self, path: &Path) {
        self.locked().remove(path);
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<PathBuf, File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks a directory until the returned file is dropped. Without `wait`, returns `None` if another
/// daemon holds the lock.
///
/// A daemon that loads records locks each of them for a moment. Without this lock, a second daemon
/// would take those for the records of a live daemon.
pub(super) fn lock_directory(directory: &Path, wait: bool) -> Option<File> {
    let directory = File::open(directory).ok()?;
    let operation =
        if wait { FlockOperation::LockExclusive } else { FlockOperation::NonBlockingLockExclusive };
    flock(&directory, operation).ok()?;
    Some(directory)
}

/// Whether the lock was free.
fn try_flock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn is_in_progress(path: &Path, metadata: &Metadata) -> bool {
    let age = || metadata.modified().ok()?.elapsed().ok();
    let is_temporary = path.extension().is_some_and(|it| it == TEMPORARY_EXTENSION);
    is_temporary && age().is_none_or(|age| age < MAX_TEMPORARY_AGE)
}
