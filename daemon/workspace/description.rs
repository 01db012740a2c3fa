//! What is at a path: of whatever type it is, it is looked at and not touched. Only the content of
//! regular files is read, for its hash.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{FileType, Stat, fstat};

use super::{
    beneath::{Root, open_name},
    failure::{Wanted, failure},
    file::{hash, reopen},
    path::RelativePath,
    stop::Stop,
};
use crate::daemon::{error::Error, sys::Errno};

/// Size up to which files are hashed.
const LARGEST_HASHED: u64 = 256 << 20;

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Description {
    /// What it is.
    pub(crate) kind: Kind,
    /// Bytes of a regular file; 0 for anything else.
    pub(crate) size: u64,
    /// Permission bits.
    pub(crate) mode: u32,
    /// When its content was last changed: seconds and nanoseconds since 1970.
    pub(crate) modified: (i64, i32),
}

/// Types of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// Something that Linux does not have.
    Unknown,
}

impl Description {
    /// What the kernel says.
    pub(super) fn of(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::CharacterDevice,
            FileType::BlockDevice => Kind::BlockDevice,
            FileType::Unknown => Kind::Unknown,
        };
        let size = if kind == Kind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
        Self {
            kind,
            size,
            mode: stat.st_mode & 0o7777,
            modified: (stat.st_mtime, i32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        }
    }
}

/// Describes what is at a path, with the hash of a regular file that can be read and is not too
/// large.
pub(super) fn describe(
    root: &Root,
    path: &RelativePath,
    stop: &Stop,
) -> Result<(Description, Option<String>), Error> {
    let wanted = |errno| failure(errno, path.as_str(), Wanted::File);
    let place = open(root, path.as_bytes()).map_err(wanted)?;
    let stat = fstat(&place).map_err(wanted)?;
    let description = Description::of(&stat);
    if description.kind != Kind::File || description.size > LARGEST_HASHED {
        return Ok((description, None));
    }
    match reopen(place.as_fd()) {
        Ok(Ok((file, _stat))) => {
            let (sum, length) = hash(file, path.as_str(), LARGEST_HASHED, stop)?;
            let is_whole = length <= LARGEST_HASHED;
            Ok((description, is_whole.then(|| sum.finish())))
        }
        Ok(Err(_)) | Err(Errno::ACCESS | Errno::PERM) => Ok((description, None)),
        Err(errno) => Err(wanted(errno)),
    }
}

/// Opens what is at a path without access to it; a symbolic link at its end is opened itself.
fn open(root: &Root, path: &[u8]) -> Result<OwnedFd, Errno> {
    match memchr::memrchr(b'/', path) {
        None if path.is_empty() => root.open_path(path),
        slash => {
            let (above, name) =
                slash.map_or((&b""[..], path), |slash| (&path[..slash], &path[slash + 1..]));
            open_name(root.open_path(above)?.as_fd(), name)
        }
    }
}
