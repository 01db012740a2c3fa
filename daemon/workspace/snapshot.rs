//! A file as it is before a change: what the change starts from, and what of it is kept.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd as _, BorrowedFd},
};

use rustix::{
    fs::{
        AtFlags, Gid, Mode, Stat, Uid, XattrFlags, chownat, fchmod, fgetxattr, flistxattr,
        flistxattr_query, fremovexattr, fsetxattr, fstat, statat,
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
use crate::daemon::{
    checksum::sha256,
    error::{Error, Reason},
    sys::Errno,
};

/// Permission bits that a file may have: the kernel, too, takes the set-user-id and set-group-id
/// bits from a file that is written to.
const PERMISSION_BITS: u32 = 0o1777;
/// Most bytes of the names, and of one value, of a file's extended attributes (xattr(7)).
const MAX_ATTRIBUTE_BYTES: usize = 64 * 1024;
/// Most bytes of the values of all that are kept. Most file systems take one block of them, some any
/// number.
const MAX_TOTAL_ATTRIBUTE_BYTES: usize = 1 << 20;
/// The list of who may do what (acl(5)).
const ACL_ATTRIBUTE: &CStr = c"system.posix_acl_access";

/// A regular file before a change.
#[derive(Debug)]
pub(crate) struct FileSnapshot {
    /// All of its bytes.
    pub(crate) content: Vec<u8>,
    /// Permission bits.
    pub(crate) mode: u32,
    pub(super) version: FileVersion,
    owner: (u32, u32),
    /// Extended attributes, those that belong to the owner.
    attributes: Vec<(CString, Vec<u8>)>,
    /// For its content.
    _memory: Option<MemoryReservation>,
}

/// What tells a file, as it was at one time, from any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileVersion {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, i64),
}

/// What a file is to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewContent<'a> {
    /// All of it.
    pub(crate) bytes: &'a [u8],
    /// Permission bits; none for those of the file that it is made of, or of a new one.
    pub(crate) mode: Option<u32>,
    /// The file that it is made of, from another place: it keeps its owner and attributes.
    pub(crate) attributes_from: Option<&'a FileSnapshot>,
}

impl<'a> NewContent<'a> {
    /// These bytes, in a file that is otherwise as it was.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, mode: None, attributes_from: None }
    }
}

/// What a new file gets.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewFileMetadata {
    /// User and group.
    pub(super) owner: (u32, u32),
    /// Permission bits.
    pub(super) mode: u32,
}

/// Why what was made for a place could not be made what it is to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApplyMetadataError {
    /// The kernel refused a step.
    Os(Errno),
    /// The file that it was to replace is this user's and group's, and it could not be.
    ForeignOwner(u32, u32),
}

impl FileSnapshot {
    /// Looks at a file without reading it.
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

    /// Reads a file of at most `most` bytes.
    pub(super) fn read(file: &RegularFile, path: &RelativePath, most: u64) -> Result<Self, Error> {
        let failed = |errno| os_error(errno, path.as_str(), ExpectedKind::File);
        let too_large = || {
            let path = path.as_str();
            let text = format!(
                "{path:?} has more than {} MiB, the most that can be changed here: use a command",
                most >> 20
            );
            Error::new(Reason::FileTooLarge, text).with_metadata("path", path)
        };
        let original = Self::stat_descriptor(file.as_fd()).map_err(failed)?;
        if u64::try_from(original.version.size).unwrap_or(0) > most {
            return Err(too_large());
        }
        let room = MemoryReservation::reserve(u64::try_from(original.version.size).unwrap_or(0))?;
        let limit = usize::try_from(most).unwrap_or(usize::MAX);
        let size = usize::try_from(original.version.size).unwrap_or(0);
        // One byte more, to see that there is none.
        let mut content = Vec::with_capacity(size + 1);
        loop {
            if content.len() == content.capacity() {
                content.reserve(64 * 1024); // it grows
            }
            let at = content.len() as u64;
            let read = retry_on_intr(|| {
                rustix::io::pread(file, rustix::buffer::spare_capacity(&mut content), at)
            })
            .map_err(failed)?;
            // Less than was asked for is all that there is, of a regular file (read(2)).
            if read == 0 || content.len() == size {
                break;
            }
            if content.len() > limit {
                return Err(too_large()); // it grows while it is read
            }
        }
        Ok(Self { content, _memory: Some(room), ..original })
    }

    /// SHA-256 of the content, in lower-case hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        sha256(&self.content)
    }

    /// Checks that this is the file that the caller has read, if it says which that was.
    pub(crate) fn check_sha256(
        &self,
        path: &RelativePath,
        expected: Option<&str>,
    ) -> Result<(), Error> {
        let Some(expected) = expected else {
            return Ok(());
        };
        let found = self.sha256();
        if found.eq_ignore_ascii_case(expected) {
            return Ok(());
        }
        Err(stale_error(path).with_metadata("sha256", found))
    }

    /// Checks that whoever it belongs to may write to it: what no command could change is not
    /// changed by the tools. Whoever says what its `mode` is to be has thought of that.
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

    /// Gives a file that takes this one's place its owner, mode and extended attributes. Answers
    /// what the file is then, but for its mode.
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
        // Its directory may give new files a list of who may do what, which the old one has not.
        let is_listed = |attributes: &[(CString, Vec<u8>)]| {
            attributes.iter().any(|(name, _)| name.as_c_str() == ACL_ATTRIBUTE)
        };
        if !is_listed(&self.attributes) && is_listed(&read_attributes(file)?) {
            fremovexattr(file, ACL_ATTRIBUTE)?;
        }
        // While the mode lets the owner write: else these could not be written either.
        for (name, value) in &self.attributes {
            fsetxattr(file, name, value, XattrFlags::empty())?;
        }
        // Last, as such a list changes it.
        let mode = mode.unwrap_or(self.mode);
        set_mode(file, mode)?;
        Ok(stat)
    }
}

/// A file's extended attributes that are kept.
fn read_attributes(file: BorrowedFd<'_>) -> Result<Vec<(CString, Vec<u8>)>, Errno> {
    let names = read_attribute_names(file)?;
    let mut attributes = Vec::new();
    let mut room = MAX_TOTAL_ATTRIBUTE_BYTES;
    for name in names.split(|byte| *byte == 0).filter(|name| is_preserved_attribute(name)) {
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let mut value = vec![0; MAX_ATTRIBUTE_BYTES];
        match fgetxattr(file, &name, &mut value[..]) {
            Err(Errno::NODATA) => {} // removed meanwhile
            length => {
                value.truncate(length?);
                value.shrink_to_fit();
                room = room.checked_sub(value.len()).ok_or(Errno::TOOBIG)?;
                attributes.push((name, value));
            }
        }
    }
    // Last, as it may take the owner the right to set others.
    attributes.sort_by_key(|(name, _)| name.as_c_str() == ACL_ATTRIBUTE);
    Ok(attributes)
}

/// Names of a file's extended attributes, each with a NUL behind it.
fn read_attribute_names(file: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    // Most files have none: no room is made for those.
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

/// Attributes that belong to the file's owner. Others, capabilities above all, are not for a file
/// with other content.
fn is_preserved_attribute(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == ACL_ATTRIBUTE.to_bytes()
}

impl NewFileMetadata {
    /// Gives a file its owner and mode. Answers what the file is then, but for its mode.
    pub(super) fn apply(self, file: BorrowedFd<'_>) -> Result<Stat, Errno> {
        let stat = chown(file, self.owner)?;
        set_mode(file, self.mode)?;
        Ok(stat)
    }
}

fn set_mode(file: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    fchmod(file, Mode::from_raw_mode(mode & PERMISSION_BITS))
}

/// Gives what was made to a user and a group, and answers what it is then. The descriptor may be one
/// that only names a place.
pub(super) fn chown(made: BorrowedFd<'_>, owner: (u32, u32)) -> Result<Stat, Errno> {
    let stat = fstat(made)?;
    if (stat.st_uid, stat.st_gid) == owner {
        return Ok(stat);
    }
    let (user, group) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
    match chownat(made, "", Some(user), Some(group), AtFlags::EMPTY_PATH) {
        // An ordinary user's daemon makes files of its own in another's directory, as its commands
        // do; the group may be one that it is not in, or the user one that its user namespace does
        // not have (EINVAL).
        Err(Errno::PERM | Errno::INVAL) => Ok(stat),
        changed => {
            changed?;
            fstat(made)
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

    /// What is called `name` in a directory, itself and not what it may link to.
    pub(super) fn read(directory: BorrowedFd<'_>, name: &str) -> Result<Self, Errno> {
        statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| Self::from_stat(&stat))
    }

    /// Device and inode.
    pub(super) fn identity(self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

impl ApplyMetadataError {
    /// The error for the file at `path`.
    pub(super) fn into_error(self, path: &str) -> Error {
        let (user, group) = match self {
            Self::Os(errno) => return os_error(errno, path, ExpectedKind::File),
            Self::ForeignOwner(user, group) => (user, group),
        };
        let text = format!(
            "{path:?} belongs to user {user} and group {group}, and what the daemon's user would put in its place could not: write to it with a command, if its mode allows that, or have the daemon's user own it (chown)"
        );
        Error::new(Reason::PermissionDenied, text).with_metadata("path", path)
    }
}

impl From<Errno> for ApplyMetadataError {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

/// The error for a file that is not as the caller has read it.
pub(super) fn stale_error(path: &RelativePath) -> Error {
    let path = path.as_str();
    let text = format!("{path:?} was changed since it was read: read it again");
    Error::new(Reason::StaleFile, text).with_metadata("path", path)
}
