//! A file that comes in parts: written under a temporary name beside its place, and put into that
//! place at once when it is whole.
//!
//! While it comes it belongs to the daemon's user and nobody else may open it, so that commands
//! cannot write into what was checked already; what they can do is take its name away, which is
//! noticed.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::FileExt as _},
    },
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, RenameFlags, fstat, fsync, open, openat, renameat,
        renameat_with, statat, unlinkat,
    },
    io::retry_on_intr,
};

use super::{
    beneath::{Root, open_name},
    failure::{Wanted, exists, failure},
    file::{RegularFile, hash},
    original::{Fresh, Original},
    path::RelativePath,
    step::temporary_name,
    stop::Stop,
};
use crate::daemon::{
    checksum::Checksum,
    error::{Error, Reason},
    sys::Errno,
};

/// Mode of a new file.
const NEW_FILE: u32 = 0o644;

/// A file that is not whole yet. It holds the hash of what it has.
#[derive(Debug)]
pub(crate) struct Draft {
    place: DraftPlace,
    directory: OwnedFd,
    file: File,
    length: u64,
    hash: Checksum,
}

/// Where a draft lies, to find it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DraftPlace {
    /// Its directory, relative to the workspace.
    pub(crate) directory: String,
    /// Its name.
    pub(crate) name: String,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
}

/// What is to become of a draft.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Where it is to be.
    pub(crate) path: RelativePath,
    /// Whether something that is there stays.
    pub(crate) create_new: bool,
    /// Hash, in lower-case hexadecimal, that the file there must have.
    pub(crate) expected_sha256: Option<String>,
    /// Permission bits; those of the file that is there, without them.
    pub(crate) mode: Option<u32>,
}

/// Checks that a draft could be put there now, before it has come.
pub(super) fn look_at(root: &Root, target: &Target, stop: &Stop) -> Result<(), Error> {
    let (_, name) = target.path.split_file()?;
    let directory = directory_of(root, &target.path)?;
    find_existing(directory.as_fd(), name, target, stop).map(drop)
}

fn directory_of(root: &Root, path: &RelativePath) -> Result<OwnedFd, Error> {
    let (parent, _) = path.split_file()?;
    root.open_directory(parent.as_bytes())
        .map_err(|errno| failure(errno, parent.as_str(), Wanted::Directory))
}

// === impl Draft ===

impl Draft {
    /// Begins a draft in the directory of `path`.
    pub(super) fn create(root: &Root, path: &RelativePath) -> Result<Self, Error> {
        let fails = |errno| failure(errno, path.as_str(), Wanted::File);
        let (parent, _) = path.split_file()?;
        let directory = directory_of(root, path)?;
        let name = temporary_name();
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = retry_on_intr(|| openat(&directory, name.as_str(), flags, mode));
        let file = file.map_err(fails)?;
        let stat = fstat(&file).map_err(fails)?;
        Ok(Self {
            place: DraftPlace {
                directory: parent.as_str().to_owned(),
                name,
                identity: (stat.st_dev, stat.st_ino),
            },
            directory,
            file: file.into(),
            length: 0,
            hash: Checksum::default(),
        })
    }

    /// Finds a draft again, and hashes what it has.
    pub(super) fn reopen(root: &Root, place: DraftPlace, stop: &Stop) -> Result<Self, Error> {
        let fails = |_: Errno| tampered(&place.name);
        let directory = root
            .open_directory(place.directory.as_bytes())
            .map_err(fails)?;
        let found = open_name(directory.as_fd(), place.name.as_bytes()).map_err(fails)?;
        let stat = fstat(&found).map_err(fails)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || (stat.st_dev, stat.st_ino) != place.identity {
            return Err(tampered(&place.name));
        }
        let link = format!("/proc/self/fd/{}", found.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = retry_on_intr(|| open(link.as_str(), flags, Mode::empty()));
        let file = file.map_err(fails)?;
        let (hash, length) = hash(&file, &place.name, u64::MAX, stop)?;
        Ok(Self {
            file: file.into(),
            place,
            directory,
            length,
            hash,
        })
    }

    /// Bytes that the draft at `place` has, if it is still there.
    pub(super) fn length_at(root: &Root, place: &DraftPlace) -> Option<u64> {
        let directory = root.open_directory(place.directory.as_bytes()).ok()?;
        let stat = statat(&directory, place.name.as_str(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_it = (stat.st_dev, stat.st_ino) == place.identity;
        u64::try_from(stat.st_size).ok().filter(|_| is_it)
    }

    /// Deletes the draft at `place`, if it is still there and still the same file.
    pub(super) fn delete_at(root: &Root, place: &DraftPlace) {
        if let Ok(directory) = root.open_directory(place.directory.as_bytes()) {
            delete(directory.as_fd(), place);
        }
    }

    /// Where it lies.
    pub(crate) fn place(&self) -> &DraftPlace {
        &self.place
    }

    /// Bytes that it has.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Hash of what it has, in lower-case hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        self.hash.clone().finish()
    }

    /// Adds bytes at its end. Zeros take no room on the disk.
    pub(crate) fn append(&mut self, data: &[u8]) -> Result<(), Error> {
        let end = self.length + data.len() as u64;
        let written = if is_zero(data) {
            self.file.set_len(end)
        } else {
            self.file.write_all_at(data, self.length)
        };
        if let Err(error) = written {
            // So that the length of the file stays what is told: a part may have been written.
            if let Err(error) = self.file.set_len(self.length) {
                return Err(self.fails(&error));
            }
            return Err(self.fails(&error));
        }
        self.hash.update(data);
        self.length = end;
        Ok(())
    }

    /// Deletes it.
    pub(crate) fn discard(self) {
        delete(self.directory.as_fd(), &self.place);
    }

    /// Puts it into its place, whole as it is. Answers whether nothing was there before. When that
    /// fails it stays a draft.
    ///
    /// The caller holds the lock of the path, so that nothing of the daemon's comes between the
    /// look at what is there and its replacement.
    ///
    /// `allow` says of the directory that was opened and the name in it whether it may be; `sync`,
    /// whether to wait for the disk.
    pub(super) fn put(
        &self,
        root: &Root,
        target: &Target,
        sync: bool,
        allow: impl FnOnce(BorrowedFd<'_>, &str) -> Result<(), Error>,
        stop: &Stop,
    ) -> Result<bool, Error> {
        let fails = |errno| failure(errno, target.path.as_str(), Wanted::File);
        let (_, name) = target.path.split_file()?;
        let directory = directory_of(root, &target.path)?;
        allow(directory.as_fd(), name)?;
        let existing = find_existing(directory.as_fd(), name, target, stop)?;
        let size = fstat(&self.file).map_err(fails)?.st_size;
        let named = statat(
            &self.directory,
            self.place.name.as_str(),
            AtFlags::SYMLINK_NOFOLLOW,
        );
        let named = named.ok().map(|stat| (stat.st_dev, stat.st_ino));
        if named != Some(self.place.identity) || u64::try_from(size) != Ok(self.length) {
            return Err(tampered(&self.place.name));
        }
        match &existing {
            Some(original) => original.dress(self.file.as_fd(), target.mode),
            None => Fresh {
                owner: owner_of(root).map_err(fails)?,
                mode: target.mode.unwrap_or(NEW_FILE),
            }
            .dress(self.file.as_fd()),
        }
        .map_err(fails)?;
        if sync {
            fsync(&self.file).map_err(fails)?;
        }
        let from = self.place.name.as_str();
        let renamed = if target.create_new {
            renameat_with(
                &self.directory,
                from,
                &directory,
                name,
                RenameFlags::NOREPLACE,
            )
        } else {
            renameat(&self.directory, from, &directory, name)
        };
        match renamed {
            Ok(()) if sync => fsync(&directory)
                .map_err(fails)
                .map(|()| existing.is_none()),
            Ok(()) => Ok(existing.is_none()),
            Err(Errno::EXIST) => Err(exists(&target.path)),
            Err(errno) => Err(fails(errno)),
        }
    }

    fn fails(&self, error: &io::Error) -> Error {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        failure(errno, &self.place.name, Wanted::File)
    }
}

/// What is there, if it may be replaced.
fn find_existing(
    directory: BorrowedFd<'_>,
    name: &str,
    target: &Target,
    stop: &Stop,
) -> Result<Option<Original>, Error> {
    let path = target.path.as_str();
    let fails = |errno| failure(errno, path, Wanted::File);
    let found = match open_name(directory, name.as_bytes()) {
        Ok(found) => found,
        Err(Errno::NOENT) if target.expected_sha256.is_none() => return Ok(None),
        Err(errno) => return Err(fails(errno)),
    };
    let stat = fstat(&found).map_err(fails)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Err(fails(Errno::LOOP));
    }
    if target.create_new {
        return Err(exists(&target.path));
    }
    let file = RegularFile::open(&found, path)?;
    if let Some(expected) = &target.expected_sha256
        && *expected != hash(&file, path, u64::MAX, stop)?.0.finish()
    {
        let message =
            format!("{path:?} is not the file of expected_sha256: read it again, and decide anew");
        return Err(Error::new(Reason::StaleFile, message).with("path", path));
    }
    Original::look(&file, &target.path).map(Some)
}

/// User and group of the workspace.
fn owner_of(root: &Root) -> Result<(u32, u32), Errno> {
    fstat(root).map(|stat| (stat.st_uid, stat.st_gid))
}

/// Deletes the draft, unless another file has taken its name.
fn delete(directory: BorrowedFd<'_>, place: &DraftPlace) {
    let name = OsStr::from_bytes(place.name.as_bytes());
    let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return;
    };
    if (stat.st_dev, stat.st_ino) != place.identity {
        return;
    }
    if let Err(errno) = unlinkat(directory, name, AtFlags::empty()) {
        tracing::warn!(name = place.name, %errno, "what is left of an upload cannot be deleted");
    }
}

fn tampered(name: &str) -> Error {
    let message = "what had come of this upload was moved, deleted or changed in the workspace, and is dropped: start again from the first byte";
    Error::new(Reason::StaleFile, message).with("name", name)
}

fn is_zero(data: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    data.chunks(ZEROS.len())
        .all(|chunk| ZEROS.starts_with(chunk))
}
