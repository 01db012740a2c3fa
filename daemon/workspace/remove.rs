//! Deleting a file, or a directory with all that is in it, while commands may rename what is there.
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
    Workspace,
    beneath::{open_child, open_name},
    failure::{Wanted, failure},
    original::Stamp,
    path::RelativePath,
    stop::Stop,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Bytes of entries that the kernel gives at once.
const BUFFER: usize = 32 * 1024;
/// Most times that something is looked at again because somebody else changes it meanwhile.
const SURPRISES: usize = 1000;

/// A tree that is being deleted.
struct Removal<'a> {
    path: &'a RelativePath,
    stop: &'a Stop,
    removed: u64,
    surprises: usize,
}

/// A directory that is being emptied.
struct Level {
    name: Vec<u8>,
    identity: (u64, u64),
}

impl Workspace {
    /// Deletes what is at a path, a symbolic link itself; a directory with entries only if
    /// `recursive` says so. Answers how many entries that were, without those that others delete
    /// meanwhile.
    pub(crate) fn remove(
        &self,
        path: &RelativePath,
        recursive: bool,
        stop: &Stop,
    ) -> Result<u64, Error> {
        self.allow_change(path)?;
        let _held = self.locks.hold(std::slice::from_ref(path), stop)?;
        let (parent, name) = self.place(path, "path", Wanted::File)?;
        let removal = Removal {
            path,
            stop,
            removed: 0,
            surprises: 0,
        };
        let removed = match delete(&parent, &name) {
            Ok(()) => Ok(1),
            Err(Errno::NOTEMPTY) if recursive => removal.tree(&parent, &name),
            Err(Errno::NOTEMPTY) => {
                let path = path.as_str();
                let text = format!(
                    "the directory {path:?} holds entries: set recursive to delete it with them"
                );
                Err(Error::new(Reason::DirectoryNotEmpty, text).with("path", path))
            }
            Err(errno) => Err(removal.failed(errno)),
        };
        self.sync(path.split().map(|(directory, _)| directory))?;
        removed
    }
}

/// Deletes what is called `name` in a directory, whatever it is.
pub(super) fn remove_entry(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    match delete(parent, name) {
        Err(Errno::NOTEMPTY) => {}
        deleted => return deleted,
    }
    let removal = Removal {
        path: &RelativePath::default(),
        stop: &Stop::new(),
        removed: 0,
        surprises: 0,
    };
    match removal.tree(parent, name) {
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, name, "a directory cannot be removed");
            Err(Errno::NOTEMPTY)
        }
    }
}

impl Removal<'_> {
    fn tree(mut self, parent: &OwnedFd, name: &str) -> Result<u64, Error> {
        loop {
            self.empty_all(parent, name)?;
            match delete(parent, name) {
                Ok(()) => return Ok(self.removed + 1),
                Err(Errno::NOENT) => return Ok(self.removed), // somebody else was quicker
                Err(Errno::NOTEMPTY) => self.surprised()?,
                Err(errno) => return Err(self.failed(errno)),
            }
        }
    }

    /// Deletes all that is in the directory `name`, unless a part of it is moved away meanwhile.
    fn empty_all(&mut self, parent: &OwnedFd, name: &str) -> Result<(), Error> {
        let mut levels = Vec::new();
        let mut here = match descend(parent, name.into(), &mut levels) {
            Err(errno) if has_changed(errno) => return Ok(()),
            opened => opened.map_err(|errno| self.failed(errno))?,
        };
        loop {
            if let Some(below) = self.empty(&here)? {
                match descend(&here, below, &mut levels) {
                    Ok(below) => here = below,
                    Err(errno) if has_changed(errno) => self.surprised()?,
                    Err(errno) => return Err(self.failed(errno)),
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
        emptied: &Level,
        above: &Level,
    ) -> Result<Option<OwnedFd>, Error> {
        let up = open_name(here.as_fd(), b"..").map_err(|errno| self.failed(errno))?;
        if identity(&up).map_err(|errno| self.failed(errno))? != above.identity {
            self.surprised()?;
            return Ok(None);
        }
        match retry_on_intr(|| unlinkat(&up, emptied.name.as_slice(), AtFlags::REMOVEDIR)) {
            Ok(()) => self.removed += 1,
            Err(Errno::NOTEMPTY | Errno::EXIST) => self.surprised()?,
            Err(errno) if has_changed(errno) => self.surprised()?,
            Err(errno) => return Err(self.failed(errno)),
        }
        match open_child(up.as_fd(), b".") {
            // It could be listed a moment ago: whoever comes from above allows that again.
            Err(Errno::ACCESS) => self.surprised().map(|()| None),
            opened => opened.map(Some).map_err(|errno| self.failed(errno)),
        }
    }

    /// Deletes the entries of a directory until one is a directory that has to be emptied first;
    /// answers that one.
    fn empty(&mut self, here: &OwnedFd) -> Result<Option<Vec<u8>>, Error> {
        // Read anew from its start each time: what was deleted may have moved the rest.
        rustix::fs::seek(here, rustix::fs::SeekFrom::Start(0))
            .map_err(|errno| self.failed(errno))?;
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(here, &mut buffer);
        while let Some(entry) = entries.next() {
            self.stop.check()?;
            let entry = match entry {
                Err(Errno::NOENT) => break, // the directory itself was deleted
                entry => entry.map_err(|errno| self.failed(errno))?,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = entry.file_type();
            let is_directory = kind == FileType::Directory
                || kind == FileType::Unknown && is_directory(here, name.to_bytes());
            let flags = if is_directory {
                AtFlags::REMOVEDIR
            } else {
                AtFlags::empty()
            };
            match retry_on_intr(|| unlinkat(here, name, flags)) {
                Ok(()) => self.removed += 1,
                Err(Errno::NOTEMPTY | Errno::EXIST) if is_directory => {
                    return Ok(Some(name.to_bytes().to_vec()));
                }
                // It has become something else, or is gone: the next reading sees what it is.
                Err(Errno::ISDIR) => {}
                Err(errno) if has_changed(errno) => {}
                Err(errno) => return Err(self.failed(errno)),
            }
        }
        Ok(None)
    }

    /// Looks again, but not for ever.
    fn surprised(&mut self) -> Result<(), Error> {
        self.stop.check()?;
        self.surprises += 1;
        if self.surprises <= SURPRISES {
            return Ok(());
        }
        let path = self.path.as_str();
        let text = format!(
            "the directory {path:?} is filled as fast as it is emptied: end the command that does so first"
        );
        Err(Error::new(Reason::DirectoryNotEmpty, text).with("path", path))
    }

    fn failed(&self, errno: Errno) -> Error {
        failure(errno, self.path.as_str(), Wanted::File)
    }
}

/// Whether an entry has become something else than it was, or is gone.
fn has_changed(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE
    )
}

/// Deletes what is called `name`. `NOTEMPTY` is the answer for a directory with entries.
fn delete(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    let unlink = |flags| retry_on_intr(|| unlinkat(parent, name, flags));
    for _ in 0..SURPRISES {
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
    Ok(Stamp::of(&fstat(directory)?).identity())
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
    let identity = identity(&here)?;
    levels.push(Level { name, identity });
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
        path::Path,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use rustix::fs::{CWD, RenameFlags, mkdirat, openat, renameat_with};

    use super::*;

    fn remove(folder: &Path, path: &str, recursive: bool) -> Result<u64, Reason> {
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

    /// Deletes a tree again and again while `meddle` is at work in it.
    fn while_others_meddle(make: impl Fn(&Path), meddle: impl Fn(&Path) + Sync) {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    meddle(&tree);
                }
            });
            let failed = (0..12).find_map(|_| {
                // Nobody meddles with it before it is whole.
                let made = folder.path().join("made");
                fs::create_dir(&made).unwrap();
                symlink(outside.path(), made.join("link")).unwrap();
                make(&made);
                fs::rename(made, &tree).unwrap();
                remove(folder.path(), "tree", true).err()
            });
            done.store(true, Ordering::Relaxed);
            assert_eq!(failed, None);
        });
        assert!(!tree.exists());
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn what_becomes_a_link_and_back_is_deleted_whatever_it_is() {
        let make = |tree: &Path| {
            for name in 0..20 {
                fs::create_dir_all(tree.join(format!("{name}/a/b"))).unwrap();
            }
        };
        while_others_meddle(make, |tree| {
            for name in 0..20 {
                let [a, b] = [tree.join(name.to_string()), tree.join("link")];
                let _gone = renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE);
            }
        });
    }

    #[test]
    fn what_others_delete_or_move_within_the_tree_is_no_error() {
        let make = |tree: &Path| {
            for name in 0..20 {
                fs::create_dir_all(tree.join(format!("{name}/a/b/c"))).unwrap();
                fs::write(tree.join(format!("{name}/a/file")), "").unwrap();
            }
        };
        while_others_meddle(make, |tree| {
            for name in 0..20 {
                let at = |path: &str| tree.join(name.to_string()).join(path);
                let _gone = fs::rename(at("a/b"), at("b"));
                let _gone = fs::rename(at("a"), tree.join("a"));
                let _gone = fs::remove_dir_all(tree.join("a"));
            }
        });
    }

    #[test]
    fn a_directory_that_is_filled_as_fast_as_it_is_emptied_is_not_empty() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Workspace::open("w", folder.path(), "/workspace").unwrap();
        let mut removal = Removal {
            path: &workspace.resolve("tree").unwrap(),
            stop: &Stop::new(),
            removed: 0,
            surprises: 0,
        };
        for _ in 0..SURPRISES {
            removal.surprised().unwrap();
        }
        let error = removal.surprised().unwrap_err();
        assert_eq!(error.reason, Reason::DirectoryNotEmpty);
    }
}
