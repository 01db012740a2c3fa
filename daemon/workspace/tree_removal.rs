//! Deletes a directory with its contents while commands may rename files in it.
//!
//! The traversal uses descriptors only: down by names that are not symbolic links, up by `..`,
//! which must lead to the directory that it came from. It needs one descriptor and a few bytes per
//! level, whatever the depth of the tree and the size of its directories.
//!
//! If an entry has changed in the meantime, its directory is read again. If the directory was
//! moved, the traversal starts again from the top.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, RawDir, chmod, fstat, unlinkat},
    io::retry_on_intr,
};

use super::{
    cancel::CancelToken,
    directory::DIRENT_BUFFER_BYTES,
    os_error::{ExpectedKind, os_error},
    path::RelativePath,
    resolve::{open_child_directory, open_entry},
    snapshot::FileVersion,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Retries because of concurrent changes.
const MAX_CONFLICT_RETRIES: usize = 1000;

/// A recursive deletion in progress.
#[derive(Debug)]
pub(super) struct TreeRemoval<'a> {
    path: &'a RelativePath,
    cancel: &'a CancelToken,
    removed: u64,
    conflicts: usize,
}

/// A directory on the way to the current one.
#[derive(Debug)]
struct TreeLevel {
    name: Vec<u8>,
    identity: (u64, u64),
}

/// Deletes `name` in a directory: a file, or a directory with its contents.
pub(super) fn remove_entry(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    match delete(parent, name) {
        Err(Errno::NOTEMPTY) => {}
        deleted => return deleted,
    }

    let (path, cancel) = (RelativePath::default(), CancelToken::new());
    match TreeRemoval::new(&path, &cancel).run(parent, name) {
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, name, "cannot remove a directory");
            Err(Errno::NOTEMPTY)
        }
    }
}

/// Deletes the directory `name` with its contents. Succeeds if there is none.
pub(crate) fn remove_tree(parent: &OwnedFd, name: &str) -> io::Result<()> {
    match remove_entry(parent, name) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl<'a> TreeRemoval<'a> {
    /// Prepares the deletion of a path.
    pub(super) fn new(path: &'a RelativePath, cancel: &'a CancelToken) -> Self {
        Self { path, cancel, removed: 0, conflicts: 0 }
    }

    /// Deletes a directory with its contents. Returns the number of deleted entries.
    pub(super) fn run(mut self, parent: &OwnedFd, name: &str) -> Result<u64, Error> {
        loop {
            self.empty_all(parent, name)?;
            match delete(parent, name) {
                Ok(()) => return Ok(self.removed + 1),
                Err(Errno::NOENT) => return Ok(self.removed), // deleted by another process
                Err(Errno::NOTEMPTY) => self.note_conflict()?,
                Err(errno) => return Err(self.to_error(errno)),
            }
        }
    }

    /// Empties the directory `name`. Returns early if a part of it was moved away.
    fn empty_all(&mut self, parent: &OwnedFd, name: &str) -> Result<(), Error> {
        let mut levels = Vec::new();
        let mut here = match descend(parent, name.into(), &mut levels) {
            Err(errno) if has_changed(errno) => return Ok(()),
            opened => opened.map_err(|errno| self.to_error(errno))?,
        };

        loop {
            if let Some(child) = self.empty(&here)? {
                match descend(&here, child, &mut levels) {
                    Ok(child) => here = child,
                    Err(errno) if has_changed(errno) => self.note_conflict()?,
                    Err(errno) => return Err(self.to_error(errno)),
                }
                continue;
            }
            let (Some(emptied), Some(parent)) = (levels.pop(), levels.last()) else {
                return Ok(());
            };
            match self.ascend(&here, &emptied, parent)? {
                Some(parent) => here = parent,
                None => return Ok(()),
            }
        }
    }

    /// Deletes the empty directory `here`, and opens its parent. `None` if it is no longer in that
    /// parent.
    fn ascend(
        &mut self,
        here: &OwnedFd,
        emptied: &TreeLevel,
        parent: &TreeLevel,
    ) -> Result<Option<OwnedFd>, Error> {
        let up = open_entry(here.as_fd(), b"..").map_err(|errno| self.to_error(errno))?;
        if identity(&up).map_err(|errno| self.to_error(errno))? != parent.identity {
            self.note_conflict()?;
            return Ok(None);
        }

        match retry_on_intr(|| unlinkat(&up, emptied.name.as_slice(), AtFlags::REMOVEDIR)) {
            Ok(()) => self.removed += 1,
            Err(Errno::NOTEMPTY | Errno::EXIST) => self.note_conflict()?,
            Err(errno) if has_changed(errno) => self.note_conflict()?,
            Err(errno) => return Err(self.to_error(errno)),
        }
        match open_child_directory(up.as_fd(), b".") {
            // Another process has just revoked the permission: a restart from the top restores it.
            Err(Errno::ACCESS) => self.note_conflict().map(|()| None),
            opened => opened.map(Some).map_err(|errno| self.to_error(errno)),
        }
    }

    /// Deletes the entries of a directory, until it finds a directory that must be emptied first.
    /// Returns the name of that one, `None` when all entries are deleted.
    fn empty(&mut self, here: &OwnedFd) -> Result<Option<Vec<u8>>, Error> {
        // Each call reads from the start: deletions may have moved the remaining entries.
        rustix::fs::seek(here, rustix::fs::SeekFrom::Start(0))
            .map_err(|errno| self.to_error(errno))?;
        let mut buffer = vec![MaybeUninit::uninit(); DIRENT_BUFFER_BYTES];
        let mut entries = RawDir::new(here, &mut buffer);

        while let Some(entry) = entries.next() {
            self.cancel.check()?;
            let entry = match entry {
                Err(Errno::NOENT) => break, // the directory itself was deleted
                entry => entry.map_err(|errno| self.to_error(errno))?,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }

            let kind = entry.file_type();
            let is_directory = kind == FileType::Directory
                || kind == FileType::Unknown && is_directory(here, name.to_bytes());
            let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            match retry_on_intr(|| unlinkat(here, name, flags)) {
                Ok(()) => self.removed += 1,
                Err(Errno::NOTEMPTY | Errno::EXIST) if is_directory => {
                    return Ok(Some(name.to_bytes().to_vec()));
                }
                // The entry was replaced or removed: the next reading sees its new state.
                Err(Errno::ISDIR) => {}
                Err(errno) if has_changed(errno) => {}
                Err(errno) => return Err(self.to_error(errno)),
            }
        }
        Ok(None)
    }

    /// Counts a retry. Fails above [`MAX_CONFLICT_RETRIES`].
    fn note_conflict(&mut self) -> Result<(), Error> {
        self.cancel.check()?;
        self.conflicts += 1;
        if self.conflicts <= MAX_CONFLICT_RETRIES {
            return Ok(());
        }
        let path = self.path.as_str();
        let text = format!(
            "other processes fill the directory {path:?} as fast as it is emptied: end them first"
        );
        Err(Error::new(Reason::DirectoryNotEmpty, text).with_metadata("path", path))
    }

    pub(super) fn to_error(&self, errno: Errno) -> Error {
        os_error(errno, self.path.as_str(), ExpectedKind::File)
    }
}

/// Whether an error means that an entry was replaced or removed.
fn has_changed(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE)
}

/// Deletes a file or an empty directory. Fails with `NOTEMPTY` for a directory with entries.
pub(super) fn delete(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    let unlink = |flags| retry_on_intr(|| unlinkat(parent, name, flags));
    for _ in 0..MAX_CONFLICT_RETRIES {
        match unlink(AtFlags::empty()) {
            Err(Errno::ISDIR) => {}
            // The error number for a directory according to POSIX.
            Err(Errno::PERM) if is_directory(parent, name.as_bytes()) => {}
            deleted => return deleted,
        }
        match unlink(AtFlags::REMOVEDIR) {
            Err(Errno::NOTDIR) => {} // it was just replaced
            Err(Errno::EXIST) => return Err(Errno::NOTEMPTY),
            deleted => return deleted,
        }
    }
    Err(Errno::AGAIN)
}

fn identity(directory: &OwnedFd) -> Result<(u64, u64), Errno> {
    Ok(FileVersion::from_stat(&fstat(directory)?).identity())
}

/// Opens a directory to empty it, and pushes it to `levels`.
fn descend(parent: &OwnedFd, name: Vec<u8>, levels: &mut Vec<TreeLevel>) -> Result<OwnedFd, Errno> {
    let here = match open_child_directory(parent.as_fd(), &name) {
        // A command of the workspace's user may have revoked the permission to list it.
        Err(Errno::ACCESS) => {
            make_listable(parent, &name)?;
            open_child_directory(parent.as_fd(), &name)?
        }
        opened => opened?,
    };
    let identity = identity(&here)?;
    levels.push(TreeLevel { name, identity });
    Ok(here)
}

fn make_listable(parent: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    let handle = open_entry(parent.as_fd(), name)?;
    if FileType::from_raw_mode(fstat(&handle)?.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), Mode::from_raw_mode(0o700))
}

fn is_directory(parent: &OwnedFd, name: &[u8]) -> bool {
    open_entry(parent.as_fd(), name)
        .and_then(fstat)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletion_fails_after_too_many_conflicts() {
        let (path, cancel) = (RelativePath::default(), CancelToken::new());
        let mut removal = TreeRemoval::new(&path, &cancel);
        for _ in 0..MAX_CONFLICT_RETRIES {
            removal.note_conflict().unwrap();
        }
        let error = removal.note_conflict().unwrap_err();
        assert_eq!(error.reason, Reason::DirectoryNotEmpty);
    }
}
