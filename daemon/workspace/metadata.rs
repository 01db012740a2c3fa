//! Metadata of a path. Files of any type are examined without opening them. Only regular files are
//! read, for their hash.

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

/// Size of a file that is hashed.
const MAX_HASHED_FILE_BYTES: u64 = 256 << 20;

/// Metadata of a file of any type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathMetadata {
    pub(crate) kind: FileKind,
    /// Size of a regular file in bytes, 0 for other types.
    pub(crate) size: u64,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Modification time: seconds and nanoseconds since 1970.
    pub(crate) modified: (i64, i32),
}

/// Type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// A regular file.
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharacterDevice,
    BlockDevice,
    /// A type that Linux does not define.
    Unknown,
}

impl From<FileType> for FileKind {
    fn from(file_type: FileType) -> Self {
        match file_type {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice => Self::CharacterDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::Unknown => Self::Unknown,
        }
    }
}

impl PathMetadata {
    pub(super) fn from_stat(stat: &Stat) -> Self {
        let kind = FileKind::from(FileType::from_raw_mode(stat.st_mode));
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

/// Returns the metadata of a path, and the hash of a regular file that is readable and not too
/// large.
pub(super) fn read_metadata(
    root: &Root,
    path: &RelativePath,
    cancel: &CancelToken,
) -> Result<(PathMetadata, Option<String>), Error> {
    let to_error = |errno| os_error(errno, path.as_str(), ExpectedKind::File);
    let handle = open_final_symlink(root, path.as_bytes()).map_err(to_error)?;
    let metadata = PathMetadata::from_stat(&fstat(&handle).map_err(to_error)?);
    if metadata.kind != FileKind::File || metadata.size > MAX_HASHED_FILE_BYTES {
        return Ok((metadata, None));
    }
    match reopen(handle.as_fd()) {
        Ok(Ok((file, _stat))) => {
            let (sum, length) = hash_file(file, path.as_str(), MAX_HASHED_FILE_BYTES, cancel)?;
            // The file may have grown since.
            let is_complete = length <= MAX_HASHED_FILE_BYTES;
            Ok((metadata, is_complete.then(|| sum.finish())))
        }
        Ok(Err(_)) | Err(Errno::ACCESS | Errno::PERM) => Ok((metadata, None)),
        Err(errno) => Err(to_error(errno)),
    }
}

/// Opens a handle to a path. A symbolic link at its end is opened itself.
fn open_final_symlink(root: &Root, path: &[u8]) -> Result<OwnedFd, Errno> {
    match memchr::memrchr(b'/', path) {
        None if path.is_empty() => root.open_path(path),
        slash => {
            let (parent, name) =
                slash.map_or((&b""[..], path), |slash| (&path[..slash], &path[slash + 1..]));
            open_entry(root.open_path(parent)?.as_fd(), name)
        }
    }
}
