//! A file before a change: the version that the change expects, and the metadata that it preserves.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd as _, BorrowedFd},
};

use rustix::{
    fs::{
        AtFlags, Gid, Mode, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chownat,
        fchmod, fgetxattr, flistxattr, flistxattr_query, fremovexattr, fsetxattr, fstat, statat,
    },
    io::retry_on_intr,
};

use serde::{Deserialize, Serialize};

use super::{
    file::RegularFile,
    memory_budget::MemoryReservation,
    os_error::{ExpectedKind, os_error},
    path::RelativePath,
};
use crate::{
    archive::ModifyTime,
    daemon::{
        checksum::sha256,
        error::{Error, Reason},
        sys::Errno,
    },
};

/// Permission bits that the tools set. The kernel also clears the set-user-ID and set-group-ID bits
/// of a file that is written.
const PERMISSION_BITS: u32 = 0o1777;
/// Size of the names of a file's extended attributes, and of one value (xattr(7)).
const MAX_ATTRIBUTE_BYTES: usize = 64 * 1024;
/// Size of all preserved values. Most file systems limit them to one block, some do not.
const MAX_TOTAL_ATTRIBUTE_BYTES: usize = 1 << 20;
/// The access control list (acl(5)).
const ACL_ATTRIBUTE: &CStr = c"system.posix_acl_access";

/// A regular file before a change.
#[derive(Debug)]
pub(crate) struct FileSnapshot {
    /// The whole content. Empty if only the metadata were read.
    pub(crate) content: Vec<u8>,
    /// Permission bits.
    pub(crate) mode: u32,
    pub(super) version: FileVersion,
    owner: (u32, u32),
    /// The extended attributes that belong to the owner.
    attributes: Vec<(CString, Vec<u8>)>,
    /// Reservation for the content.
    _memory: Option<MemoryReservation>,
}

/// Identifies a file and its content at one time, by metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileVersion {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, i64),
}

/// The new content of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewContent<'a> {
    pub(crate) bytes: &'a [u8],
    /// Permission bits. By default those of the original, or of a new file.
    pub(crate) mode: Option<u32>,
    /// Time of the last change. By default, the current time.
    pub(crate) modified: Option<ModifyTime>,
    /// File at another path that the new one is a copy of. It supplies owner and attributes.
    pub(crate) attributes_from: Option<&'a FileSnapshot>,
}

impl<'a> NewContent<'a> {
    /// Changes only the bytes of a file.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, mode: None, modified: None, attributes_from: None }
    }
}

/// Mode of a new file, unless the request sets one.
pub(super) const NEW_FILE_MODE: u32 = 0o644;

/// Metadata of a new file.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewFileMetadata {
    /// User and group.
    pub(super) owner: (u32, u32),
    /// Permission bits.
    pub(super) mode: u32,
}

/// Metadata of a file that was received in parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceivedMetadata {
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) modified: Option<ModifyTime>,
}

/// Why the metadata of a new file could not be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApplyMetadataError {
    Os(Errno),
    /// The replaced file belongs to this user and group, and the daemon may not give files to them.
    ForeignOwner(u32, u32),
}

impl FileSnapshot {
    /// Reads the metadata of a file, without its content.
    pub(super) fn stat(file: &RegularFile, path: &RelativePath) -> Result<Self, Error> {
        Self::stat_descriptor(file.as_fd())
            .map_err(|errno| os_error(errno, path.as_str(), ExpectedKind::File))
    }

    fn stat_descriptor(file: BorrowedFd<'_>) -> Result<Self, Errno> {
        let stat = fstat(file)?;
        Ok(Self {
            content: Vec::new(),
            mode: stat.st_mode & 0o7777,
            version: FileVersion::from_stat(&stat),
            owner: (stat.st_uid, stat.st_gid),
            attributes: read_attributes(file)?,
            _memory: None,
        })
    }

    /// Reads a file of at most `max_bytes`.
    pub(super) fn read(
        file: &RegularFile,
        path: &RelativePath,
        max_bytes: u64,
    ) -> Result<Self, Error> {
        let to_error = |errno| os_error(errno, path.as_str(), ExpectedKind::File);
        let too_large = || {
            let path = path.as_str();
            let text = format!(
                "{path:?} has more than {} MiB, the limit for changes by this tool: use a command",
                max_bytes >> 20
            );
            Error::new(Reason::FileTooLarge, text).with_metadata("path", path)
        };

        let snapshot = Self::stat_descriptor(file.as_fd()).map_err(to_error)?;
        let size = u64::try_from(snapshot.version.size).unwrap_or(0);
        if size > max_bytes {
            return Err(too_large());
        }
        let memory = MemoryReservation::reserve(size)?;

        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let size = usize::try_from(snapshot.version.size).unwrap_or(0);
        // One byte more, to detect that the file has grown.
        let mut content = Vec::with_capacity(size + 1);
        loop {
            if content.len() == content.capacity() {
                content.reserve(64 * 1024); // the file has grown
            }
            let at = content.len() as u64;
            let read = retry_on_intr(|| {
                rustix::io::pread(file, rustix::buffer::spare_capacity(&mut content), at)
            })
            .map_err(to_error)?;
            // A short read of a regular file means its end (read(2)).
            if read == 0 || content.len() == size {
                break;
            }
            if content.len() > max_bytes {
                return Err(too_large()); // the file has grown
            }
        }
        Ok(Self { content, _memory: Some(memory), ..snapshot })
    }

    /// SHA-256 of the content, in lower-case hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        sha256(&self.content)
    }

    /// Checks that the file has the hash that the caller expects, if it gives one.
    pub(crate) fn check_sha256(
        &self,
        path: &RelativePath,
        expected: Option<&str>,
    ) -> Result<(), Error> {
        let Some(expected) = expected else {
            return Ok(());
        };
        let actual = self.sha256();
        if actual.eq_ignore_ascii_case(expected) {
            return Ok(());
        }
        Err(stale_error(path).with_metadata("sha256", actual))
    }

    /// Checks that the file's mode lets its owner write: the tools do not change what no command
    /// could. A caller that sets the mode has decided otherwise.
    pub(crate) fn check_writable(
        &self,
        path: &RelativePath,
        mode: Option<u32>,
    ) -> Result<(), Error> {
        if mode.is_some() || Mode::from_raw_mode(self.mode).contains(Mode::WUSR) {
            return Ok(());
        }
        let path = path.as_str();
        let text =
            format!("{path:?} is read-only (mode {:04o}): make it writable first", self.mode);
        Err(Error::new(Reason::PermissionDenied, text).with_metadata("path", path))
    }

    /// Gives a file that replaces this one its owner, mode and extended attributes. Returns the
    /// metadata of the file, except for the new mode.
    pub(super) fn apply_metadata(
        &self,
        file: BorrowedFd<'_>,
        mode: Option<u32>,
    ) -> Result<Stat, ApplyMetadataError> {
        let stat = chown(file, self.owner)?;
        if (stat.st_uid, stat.st_gid) != self.owner {
            let (user, group) = self.owner;
            return Err(ApplyMetadataError::ForeignOwner(user, group));
        }
        // A default ACL of the directory may have given the new file an ACL that the old one lacks.
        let has_acl = |attributes: &[(CString, Vec<u8>)]| {
            attributes.iter().any(|(name, _)| name.as_c_str() == ACL_ATTRIBUTE)
        };
        if !has_acl(&self.attributes) && has_acl(&read_attributes(file)?) {
            fremovexattr(file, ACL_ATTRIBUTE)?;
        }
        // Before the mode, which may forbid the owner to write attributes.
        for (name, value) in &self.attributes {
            fsetxattr(file, name, value, XattrFlags::empty())?;
        }
        // Last, because an ACL changes the mode.
        set_mode(file, mode.unwrap_or(self.mode))?;
        Ok(stat)
    }
}

/// Reads the extended attributes of a file that are preserved. The ACL comes last.
fn read_attributes(file: BorrowedFd<'_>) -> Result<Vec<(CString, Vec<u8>)>, Errno> {
    let names = read_attribute_names(file)?;
    let mut attributes = Vec::new();
    let mut remaining = MAX_TOTAL_ATTRIBUTE_BYTES;
    for name in names.split(|byte| *byte == 0).filter(|name| is_preserved_attribute(name)) {
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let mut value = vec![0; MAX_ATTRIBUTE_BYTES];
        match fgetxattr(file, &name, &mut value[..]) {
            Err(Errno::NODATA) => {} // removed in the meantime
            length => {
                value.truncate(length?);
                value.shrink_to_fit();
                remaining = remaining.checked_sub(value.len()).ok_or(Errno::TOOBIG)?;
                attributes.push((name, value));
            }
        }
    }
    // An ACL may revoke the owner's permission to set other attributes.
    attributes.sort_by_key(|(name, _)| name.as_c_str() == ACL_ATTRIBUTE);
    Ok(attributes)
}

/// Reads the names of a file's extended attributes, each terminated by NUL.
fn read_attribute_names(file: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    // Most files have none: the query avoids an allocation for them.
    match flistxattr_query(file) {
        Ok(0) | Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
        Ok(_) => {}
    }
    let mut names = vec![0; MAX_ATTRIBUTE_BYTES];
    let length = flistxattr(file, &mut names[..])?;
    names.truncate(length);
    Ok(names)
}

/// Whether an attribute belongs to the file's owner. Others, above all capabilities, must not be
/// given to other content.
fn is_preserved_attribute(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == ACL_ATTRIBUTE.to_bytes()
}

impl NewFileMetadata {
    /// Sets the owner and mode of a file. Returns its metadata, except for the new mode.
    pub(super) fn apply(self, file: BorrowedFd<'_>) -> Result<Stat, Errno> {
        let stat = chown(file, self.owner)?;
        set_mode(file, self.mode)?;
        Ok(stat)
    }
}

fn set_mode(file: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    fchmod(file, Mode::from_raw_mode(mode & PERMISSION_BITS))
}

/// Returns the times of a file that was last changed at `modified`. Its time of access stays.
pub(super) fn timestamps(modified: ModifyTime) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec {
            tv_sec: modified.seconds(),
            tv_nsec: modified.nanos().into(),
        },
    }
}

/// Changes the owner of a file. Returns its metadata, unchanged where the daemon lacks permission.
/// The descriptor may be an `O_PATH` handle.
pub(super) fn chown(file: BorrowedFd<'_>, owner: (u32, u32)) -> Result<Stat, Errno> {
    let stat = fstat(file)?;
    if (stat.st_uid, stat.st_gid) == owner {
        return Ok(stat);
    }

    let (user, group) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
    match chownat(file, "", Some(user), Some(group), AtFlags::EMPTY_PATH) {
        // A daemon of an ordinary user creates its own files in directories of others, as its
        // commands do. The daemon may not be in the group, or its user namespace may not map the
        // user (EINVAL).
        Err(Errno::PERM | Errno::INVAL) => Ok(stat),
        changed => {
            changed?;
            fstat(file)
        }
    }
}

impl FileVersion {
    pub(super) fn from_stat(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            modified: (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        }
    }

    /// Reads the version of `name` in a directory. A symbolic link is not followed.
    pub(super) fn read(directory: BorrowedFd<'_>, name: &str) -> Result<Self, Errno> {
        statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| Self::from_stat(&stat))
    }

    /// Device and inode.
    pub(super) fn identity(self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

impl ApplyMetadataError {
    /// Builds the error for the file at `path`.
    pub(super) fn into_error(self, path: &str) -> Error {
        let (user, group) = match self {
            Self::Os(errno) => return os_error(errno, path, ExpectedKind::File),
            Self::ForeignOwner(user, group) => (user, group),
        };
        let text = format!(
            "{path:?} belongs to user {user} and group {group}, and the daemon's user cannot give a new file to them: write to it with a command, if its mode allows that, or change its owner to the daemon's user (chown)"
        );
        Error::new(Reason::PermissionDenied, text).with_metadata("path", path)
    }
}

impl From<Errno> for ApplyMetadataError {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

/// Builds the error for a file that has changed since the caller read it.
pub(super) fn stale_error(path: &RelativePath) -> Error {
    let path = path.as_str();
    let text = format!("{path:?} was changed since it was read: read it again");
    Error::new(Reason::StaleFile, text).with_metadata("path", path)
}
