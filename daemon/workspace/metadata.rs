//! What is at a path: of whatever type it is, it is looked at and not touched. Only the content of
//! regular files is read, for its hash.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{FileType, Stat, fstat};

use super::{
    cancel::CancelToken,
    file::{hash_file, reopen},
    os_error::{ExpectedKind, os_error},
    path::RelativePath,
    resolve::{Root, open_entry},
};
use crate::daemon::{error::Error, sys::Errno};

/// Size up to which files are hashed.
const MAX_HASHED_FILE_BYTES: u64 = 256 << 20;

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathMetadata {
    /// What it is.
    pub(crate) kind: FileKind,
    /// Bytes of a regular file; 0 for anything else.
    pub(crate) size: u64,
    /// Permission bits.
    pub(crate) mode: u32,
    /// When its content was last changed: seconds and nanoseconds since 1970.
    pub(crate) modified: (i64, i32),
}

/// Types of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
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

impl PathMetadata {
    /// What the kernel says.
    pub(super) fn from_stat(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            FileType::CharacterDevice => FileKind::CharacterDevice,
            FileType::BlockDevice => FileKind::BlockDevice,
            FileType::Unknown => FileKind::Unknown,
        };
        let size =
            if kind == FileKind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
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
pub(super) fn read_metadata(
    root: &Root,
    path: &RelativePath,
    cancel: &CancelToken,
) -> Result<(PathMetadata, Option<String>), Error> {
    let wanted = |errno| os_error(errno, path.as_str(), ExpectedKind::File);
    let place = open_final_symlink(root, path.as_bytes()).map_err(wanted)?;
    let stat = fstat(&place).map_err(wanted)?;
    let description = PathMetadata::from_stat(&stat);
    if description.kind != FileKind::File || description.size > MAX_HASHED_FILE_BYTES {
        return Ok((description, None));
    }
    match reopen(place.as_fd()) {
        Ok(Ok((file, _stat))) => {
            let (sum, length) = hash_file(file, path.as_str(), MAX_HASHED_FILE_BYTES, cancel)?;
            let is_whole = length <= MAX_HASHED_FILE_BYTES;
            Ok((description, is_whole.then(|| sum.finish())))
        }
        Ok(Err(_)) | Err(Errno::ACCESS | Errno::PERM) => Ok((description, None)),
        Err(errno) => Err(wanted(errno)),
    }
}

/// Opens what is at a path without access to it; a symbolic link at its end is opened itself.
fn open_final_symlink(root: &Root, path: &[u8]) -> Result<OwnedFd, Errno> {
    match memchr::memrchr(b'/', path) {
        None if path.is_empty() => root.open_path(path),
        slash => {
            let (above, name) =
                slash.map_or((&b""[..], path), |slash| (&path[..slash], &path[slash + 1..]));
            open_entry(root.open_path(above)?.as_fd(), name)
        }
    }
}
