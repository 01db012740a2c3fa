//! Deleting a file, or a directory with all that is in it, while commands may rename what is there.
//!
//! The tree is gone through by descriptors: down by names that are no symbolic links, up by `..`,
//! which must lead to the directory that was come from. Neither the depth of a tree nor the number
//! of entries in a directory costs more than one descriptor and a few bytes a level.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, RawDir, chmod, fstat, unlinkat},
    io::retry_on_intr,
};

use super::{
    Workspace,
    beneath::{open_child, open_name},
    failure::{Wanted, failure},
    original::{Stamp, stale},
    path::RelativePath,
    stop::Stop,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Bytes of entries that the kernel gives at once.
const BUFFER: usize = 32 * 1024;
/// Times that a directory is emptied again because somebody adds to it meanwhile.
const ATTEMPTS: usize = 100;

/// A directory that is being emptied.
struct Level {
    name: Vec<u8>,
    identity: (u64, u64),
    attempts: usize,
}

impl Workspace {
    /// Deletes what is at a path, a symbolic link itself; a directory with entries only if
    /// `recursive` says so. Answers how many entries that were.
    pub(crate) fn remove(
        &self,
        path: &RelativePath,
        recursive: bool,
        stop: &Stop,
    ) -> Result<u64, Error> {
        self.allow_change(path)?;
        let _held = self.locks.hold(std::slice::from_ref(path), stop)?;
        let (parent, name) = self.place(path, "path", Wanted::File)?;
        let count = remove_named(parent, name, path, recursive, stop)?;
        self.sync(path.split().map(|(directory, _)| directory))?;
        Ok(count)
    }
}

fn remove_named(
    parent: OwnedFd,
    name: String,
    path: &RelativePath,
    recursive: bool,
    stop: &Stop,
) -> Result<u64, Error> {
    let failed = |errno| failure(errno, path.as_str(), Wanted::File);
    match retry_on_intr(|| unlinkat(&parent, &name, AtFlags::empty())) {
        Ok(()) => return Ok(1),
        Err(Errno::ISDIR) => {}
        // What POSIX has for a directory.
        Err(Errno::PERM) if is_directory(&parent, name.as_bytes()) => {}
        Err(errno) => return Err(failed(errno)),
    }
    match retry_on_intr(|| unlinkat(&parent, &name, AtFlags::REMOVEDIR)) {
        Ok(()) => Ok(1),
        Err(Errno::NOTEMPTY | Errno::EXIST) if recursive => {
            remove_tree(parent, name.into_bytes(), path, stop)
        }
        Err(Errno::NOTEMPTY | Errno::EXIST) => {
            let path = path.as_str();
            let text = format!(
                "the directory {path:?} holds entries: set recursive to delete it with them"
            );
            Err(Error::new(Reason::DirectoryNotEmpty, text).with("path", path))
        }
        Err(errno) => Err(failed(errno)),
    }
}

/// Deletes what is called `name` in a directory, whatever it is.
pub(super) fn remove_entry(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    match retry_on_intr(|| unlinkat(parent, name, AtFlags::empty())) {
        Err(Errno::ISDIR) => {}
        Err(Errno::PERM) if is_directory(parent, name.as_bytes()) => {}
        removed => return removed,
    }
    match retry_on_intr(|| unlinkat(parent, name, AtFlags::REMOVEDIR)) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        removed => return removed,
    }
    let parent = open_name(parent.as_fd(), b".")?;
    let name = name.as_bytes().to_vec();
    match remove_tree(parent, name, &RelativePath::default(), &Stop::new()) {
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, "a directory cannot be removed");
            Err(Errno::NOTEMPTY)
        }
    }
}

fn remove_tree(
    parent: OwnedFd,
    name: Vec<u8>,
    path: &RelativePath,
    stop: &Stop,
) -> Result<u64, Error> {
    let failed = |errno| failure(errno, path.as_str(), Wanted::File);
    let mut levels = Vec::new();
    let mut removed = 0;
    let mut here = descend(&parent, name, &mut levels).map_err(failed)?;
    let top = Stamp::of(&fstat(&parent).map_err(failed)?).identity();
    drop(parent);
    while let Some(level) = levels.last_mut() {
        if let Some(below) = empty(&here, &mut removed, stop, path)? {
            here = descend(&here, below, &mut levels).map_err(failed)?;
            continue;
        }
        let name = level.name.clone();
        level.attempts += 1;
        let attempts = level.attempts;
        let above = match levels.len().checked_sub(2).and_then(|at| levels.get(at)) {
            Some(above) => above.identity,
            None => top,
        };
        let up = open_name(here.as_fd(), b"..").map_err(failed)?;
        if Stamp::of(&fstat(&up).map_err(failed)?).identity() != above {
            return Err(stale(path)); // it was moved away
        }
        match retry_on_intr(|| unlinkat(&up, name.as_slice(), AtFlags::REMOVEDIR)) {
            Ok(()) => removed += 1,
            Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) if attempts < ATTEMPTS => continue,
            Err(errno) => return Err(failed(errno)),
        }
        levels.pop();
        here = match levels.is_empty() {
            true => up,
            false => open_child(up.as_fd(), b".").map_err(failed)?,
        };
    }
    Ok(removed)
}

/// Opens a directory to empty it.
fn descend(parent: &OwnedFd, name: Vec<u8>, levels: &mut Vec<Level>) -> Result<OwnedFd, Errno> {
    let here = match open_child(parent.as_fd(), &name) {
        // Its owner may change that, and a command that belongs to the same user has set it.
        Err(Errno::ACCESS) => {
            allow_listing(parent, &name)?;
            open_child(parent.as_fd(), &name)?
        }
        opened => opened?,
    };
    let identity = Stamp::of(&fstat(&here)?).identity();
    levels.push(Level {
        name,
        identity,
        attempts: 0,
    });
    Ok(here)
}

fn allow_listing(parent: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    let place = open_name(parent.as_fd(), name)?;
    if FileType::from_raw_mode(fstat(&place)?.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    chmod(
        format!("/proc/self/fd/{}", place.as_raw_fd()),
        Mode::from_raw_mode(0o700),
    )
}

/// Deletes the entries of a directory until one is a directory that has to be emptied first; answers
/// that one.
fn empty(
    here: &OwnedFd,
    removed: &mut u64,
    stop: &Stop,
    path: &RelativePath,
) -> Result<Option<Vec<u8>>, Error> {
    let failed = |errno| failure(errno, path.as_str(), Wanted::File);
    // Read anew from its start each time: what was deleted may have moved the rest.
    rustix::fs::seek(here, rustix::fs::SeekFrom::Start(0)).map_err(failed)?;
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
    let mut entries = RawDir::new(here, &mut buffer);
    while let Some(entry) = entries.next() {
        stop.check()?;
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let unlink = |flags| retry_on_intr(|| unlinkat(here, name, flags));
        let kind = entry.file_type();
        let is_directory = kind == FileType::Directory
            || kind == FileType::Unknown && is_directory(here, name.to_bytes());
        let flags = if is_directory {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        match unlink(flags) {
            Ok(()) => *removed += 1,
            Err(Errno::NOTEMPTY | Errno::EXIST) if is_directory => {
                return Ok(Some(name.to_bytes().to_vec()));
            }
            // It has become something else, or is gone: the next reading sees what it is.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ISDIR) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(None)
}

fn is_directory(parent: &OwnedFd, name: &[u8]) -> bool {
    open_name(parent.as_fd(), name)
        .and_then(fstat)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use rustix::fs::{CWD, mkdirat, openat};

    use super::*;

    fn remove(folder: &std::path::Path, path: &str, recursive: bool) -> Result<u64, Reason> {
        let workspace = Workspace::open("w", folder, "/workspace").unwrap();
        let path = workspace.resolve(path).unwrap();
        workspace
            .remove(&path, recursive, &Stop::new())
            .map_err(|error| error.reason)
    }

    #[test]
    fn files_links_and_directories_are_deleted_themselves() {
        use Reason as R;
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "").unwrap();
        fs::create_dir_all(at("tree/a/b")).unwrap();
        fs::write(at("tree/a/b/file"), "").unwrap();
        fs::create_dir(at("tree/closed")).unwrap();
        fs::write(at("tree/closed/file"), "").unwrap();
        fs::set_permissions(at("tree/closed"), fs::Permissions::from_mode(0o000)).unwrap();
        symlink(outside.path(), at("tree/link")).unwrap();
        symlink(outside.path(), at("link")).unwrap();
        for (path, recursive, expected) in [
            ("none", true, Err(R::FileNotFound)),
            ("link/kept", true, Err(R::SymlinkBlocked)),
            (".", true, Err(R::InvalidParams)),
            ("file", false, Ok(1)),
            ("link", true, Ok(1)),
            ("tree", false, Err(R::DirectoryNotEmpty)),
            ("tree", true, Ok(7)),
        ] {
            assert_eq!(remove(folder.path(), path, recursive), expected, "{path}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn neither_depth_nor_width_matters() {
        let folder = tempfile::tempdir().unwrap();
        let mut here = openat(CWD, folder.path(), rustix::fs::OFlags::PATH, 0.into()).unwrap();
        for _ in 0..4000 {
            mkdirat(&here, "d", 0o755.into()).unwrap();
            here = open_name(here.as_fd(), b"d").unwrap();
        }
        for name in 0..5000 {
            fs::write(folder.path().join("d").join(name.to_string()), "").unwrap();
        }
        assert_eq!(remove(folder.path(), "d", true), Ok(9000));
    }
}
