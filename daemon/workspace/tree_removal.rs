//! Emptying and deleting a directory while commands may rename what is there.
//!
//! The tree is gone through by descriptors: down by names that are no symbolic links, up by `..`,
//! which must lead to the directory that was come from. Neither the depth of a tree nor the number
//! of entries in a directory costs more than one descriptor and a few bytes a level.
//!
//! What is found to be something else than it was a moment ago is looked at again: its directory is
//! read anew, or, where that one was moved away, the tree from its top.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, RawDir, chmod, fstat, unlinkat},
    io::retry_on_intr,
};

use super::{
    cancel::CancelToken,
    os_error::{ExpectedKind, os_error},
    path::RelativePath,
    resolve::{open_child_directory, open_entry},
    snapshot::FileVersion,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Bytes of entries that the kernel gives at once.
const DIRENT_BUFFER_BYTES: usize = 32 * 1024;
/// Most times that something is looked at again because somebody else changes it meanwhile.
const MAX_CONFLICTS: usize = 1000;

/// A tree that is being deleted.
#[derive(Debug)]
pub(super) struct TreeRemoval<'a> {
    path: &'a RelativePath,
    cancel: &'a CancelToken,
    removed: u64,
    conflicts: usize,
}

/// A directory that is being emptied.
#[derive(Debug)]
struct TreeLevel {
    name: Vec<u8>,
    identity: (u64, u64),
}

/// Deletes what is called `name` in a directory, whatever it is.
pub(super) fn remove_entry(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    match delete(parent, name) {
        Err(Errno::NOTEMPTY) => {}
        deleted => return deleted,
    }
    let (path, stop) = (RelativePath::default(), CancelToken::new());
    match TreeRemoval::new(&path, &stop).run(parent, name) {
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, name, "a directory cannot be removed");
            Err(Errno::NOTEMPTY)
        }
    }
}

impl<'a> TreeRemoval<'a> {
    /// Of what is at a path.
    pub(super) fn new(path: &'a RelativePath, cancel: &'a CancelToken) -> Self {
        Self { path, cancel, removed: 0, conflicts: 0 }
    }

    /// Deletes a directory with all that is in it. Answers how many entries that were.
    pub(super) fn run(mut self, parent: &OwnedFd, name: &str) -> Result<u64, Error> {
        loop {
            self.empty_all(parent, name)?;
            match delete(parent, name) {
                Ok(()) => return Ok(self.removed + 1),
                Err(Errno::NOENT) => return Ok(self.removed), // somebody else was quicker
                Err(Errno::NOTEMPTY) => self.note_conflict()?,
                Err(errno) => return Err(self.to_error(errno)),
            }
        }
    }

    /// Deletes all that is in the directory `name`, unless a part of it is moved away meanwhile.
    fn empty_all(&mut self, parent: &OwnedFd, name: &str) -> Result<(), Error> {
        let mut levels = Vec::new();
        let mut here = match descend(parent, name.into(), &mut levels) {
            Err(errno) if has_changed(errno) => return Ok(()),
            opened => opened.map_err(|errno| self.to_error(errno))?,
        };
        loop {
            if let Some(below) = self.empty(&here)? {
                match descend(&here, below, &mut levels) {
                    Ok(below) => here = below,
                    Err(errno) if has_changed(errno) => self.note_conflict()?,
                    Err(errno) => return Err(self.to_error(errno)),
                }
                continue;
            }
            let (Some(emptied), Some(above)) = (levels.pop(), levels.last()) else {
                return Ok(());
            };
            match self.ascend(&here, &emptied, above)? {
                Some(above) => here = above,
                None => return Ok(()),
            }
        }
    }

    /// Deletes the directory `here`, which was emptied, and opens the one above it; none when it
    /// is not in that one any more.
    fn ascend(
        &mut self,
        here: &OwnedFd,
        emptied: &TreeLevel,
        above: &TreeLevel,
    ) -> Result<Option<OwnedFd>, Error> {
        let up = open_entry(here.as_fd(), b"..").map_err(|errno| self.to_error(errno))?;
        if identity(&up).map_err(|errno| self.to_error(errno))? != above.identity {
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
            // It could be listed a moment ago: whoever comes from above allows that again.
            Err(Errno::ACCESS) => self.note_conflict().map(|()| None),
            opened => opened.map(Some).map_err(|errno| self.to_error(errno)),
        }
    }

    /// Deletes the entries of a directory until one is a directory that has to be emptied first;
    /// answers that one.
    fn empty(&mut self, here: &OwnedFd) -> Result<Option<Vec<u8>>, Error> {
        // Read anew from its start each time: what was deleted may have moved the rest.
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
                // It has become something else, or is gone: the next reading sees what it is.
                Err(Errno::ISDIR) => {}
                Err(errno) if has_changed(errno) => {}
                Err(errno) => return Err(self.to_error(errno)),
            }
        }
        Ok(None)
    }

    /// Looks again, but not for ever.
    fn note_conflict(&mut self) -> Result<(), Error> {
        self.cancel.check()?;
        self.conflicts += 1;
        if self.conflicts <= MAX_CONFLICTS {
            return Ok(());
        }
        let path = self.path.as_str();
        let text = format!(
            "the directory {path:?} is filled as fast as it is emptied: end the command that does so first"
        );
        Err(Error::new(Reason::DirectoryNotEmpty, text).with_metadata("path", path))
    }

    pub(super) fn to_error(&self, errno: Errno) -> Error {
        os_error(errno, self.path.as_str(), ExpectedKind::File)
    }
}

/// Whether an entry has become something else than it was, or is gone.
fn has_changed(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE)
}

/// Deletes what is called `name`. `NOTEMPTY` is the answer for a directory with entries.
pub(super) fn delete(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    let unlink = |flags| retry_on_intr(|| unlinkat(parent, name, flags));
    for _ in 0..MAX_CONFLICTS {
        match unlink(AtFlags::empty()) {
            Err(Errno::ISDIR) => {}
            // What POSIX has for a directory.
            Err(Errno::PERM) if is_directory(parent, name.as_bytes()) => {}
            deleted => return deleted,
        }
        match unlink(AtFlags::REMOVEDIR) {
            Err(Errno::NOTDIR) => {} // it was one a moment ago
            Err(Errno::EXIST) => return Err(Errno::NOTEMPTY),
            deleted => return deleted,
        }
    }
    Err(Errno::AGAIN)
}

fn identity(directory: &OwnedFd) -> Result<(u64, u64), Errno> {
    Ok(FileVersion::from_stat(&fstat(directory)?).identity())
}

/// Opens a directory to empty it.
fn descend(parent: &OwnedFd, name: Vec<u8>, levels: &mut Vec<TreeLevel>) -> Result<OwnedFd, Errno> {
    let here = match open_child_directory(parent.as_fd(), &name) {
        // Its owner may change that, and a command that belongs to the same user has set it.
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
    let place = open_entry(parent.as_fd(), name)?;
    if FileType::from_raw_mode(fstat(&place)?.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::from_raw_mode(0o700))
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
    fn a_directory_that_is_filled_as_fast_as_it_is_emptied_is_not_empty() {
        let (path, stop) = (RelativePath::default(), CancelToken::new());
        let mut removal = TreeRemoval::new(&path, &stop);
        for _ in 0..MAX_CONFLICTS {
            removal.note_conflict().unwrap();
        }
        let error = removal.note_conflict().unwrap_err();
        assert_eq!(error.reason, Reason::DirectoryNotEmpty);
    }
}
