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
    failure::{Wanted, failure},
    file::RegularFile,
    path::RelativePath,
    room::Room,
};
use crate::daemon::{
    checksum::sha256,
    error::{Error, Reason},
    sys::Errno,
};

/// Permission bits that a file may have: the kernel, too, takes the set-user-id and set-group-id
/// bits from a file that is written to.
const PERMISSIONS: u32 = 0o1777;
/// Most bytes of the names, and of one value, of a file's extended attributes (xattr(7)).
const ATTRIBUTE_BYTES: usize = 64 * 1024;
/// Most bytes of the values of all that are kept. Most file systems take one block of them, some any
/// number.
const MOST_ATTRIBUTE_BYTES: usize = 1 << 20;
/// The list of who may do what (acl(5)).
const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// A regular file before a change.
#[derive(Debug)]
pub(crate) struct Original {
    /// All of its bytes.
    pub(crate) content: Vec<u8>,
    /// Permission bits.
    pub(crate) mode: u32,
    pub(super) stamp: Stamp,
    owner: (u32, u32),
    /// Extended attributes, those that belong to the owner.
    attributes: Vec<(CString, Vec<u8>)>,
    /// For its content.
    _room: Option<Room>,
}

/// What tells a file, as it was at one time, from any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, i64),
}

/// What a file is to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Content<'a> {
    /// All of it.
    pub(crate) bytes: &'a [u8],
    /// Permission bits; none for those of the file that it is made of, or of a new one.
    pub(crate) mode: Option<u32>,
    /// The file that it is made of, from another place: it keeps its owner and attributes.
    pub(crate) like: Option<&'a Original>,
}

impl<'a> Content<'a> {
    /// These bytes, in a file that is otherwise as it was.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, mode: None, like: None }
    }
}

/// What a new file gets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fresh {
    /// User and group.
    pub(super) owner: (u32, u32),
    /// Permission bits.
    pub(super) mode: u32,
}

/// Why what was made for a place could not be made what it is to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Misfit {
    /// The kernel refused a step.
    Refused(Errno),
    /// The file that it was to replace is this user's and group's, and it could not be.
    Anothers(u32, u32),
}

impl Original {
    /// Looks at a file without reading it.
    pub(super) fn look(file: &RegularFile, path: &RelativePath) -> Result<Self, Error> {
        Self::look_at(file.as_fd()).map_err(|errno| failure(errno, path.as_str(), Wanted::File))
    }

    fn look_at(file: BorrowedFd<'_>) -> Result<Self, Errno> {
        let stat = fstat(file)?;
        Ok(Self {
            content: Vec::new(),
            mode: stat.st_mode & 0o7777,
            stamp: Stamp::of(&stat),
            owner: (stat.st_uid, stat.st_gid),
            attributes: attributes(file)?,
            _room: None,
        })
    }

    /// Reads a file of at most `most` bytes.
    pub(super) fn read(file: &RegularFile, path: &RelativePath, most: u64) -> Result<Self, Error> {
        let failed = |errno| failure(errno, path.as_str(), Wanted::File);
        let too_large = || {
            let path = path.as_str();
            let text = format!(
                "{path:?} has more than {} MiB, the most that can be changed here: use a command",
                most >> 20
            );
            Error::new(Reason::FileTooLarge, text).with("path", path)
        };
        let original = Self::look_at(file.as_fd()).map_err(failed)?;
        if u64::try_from(original.stamp.size).unwrap_or(0) > most {
            return Err(too_large());
        }
        let room = Room::take(u64::try_from(original.stamp.size).unwrap_or(0))?;
        let limit = usize::try_from(most).unwrap_or(usize::MAX);
        let size = usize::try_from(original.stamp.size).unwrap_or(0);
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
        Ok(Self { content, _room: Some(room), ..original })
    }

    /// SHA-256 of the content, in lower-case hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        sha256(&self.content)
    }

    /// Checks that this is the file that the caller has read, if it says which that was.
    pub(crate) fn expect(&self, path: &RelativePath, expected: Option<&str>) -> Result<(), Error> {
        let Some(expected) = expected else {
            return Ok(());
        };
        let found = self.sha256();
        if found.eq_ignore_ascii_case(expected) {
            return Ok(());
        }
        Err(stale(path).with("sha256", found))
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
        Err(Error::new(Reason::PermissionDenied, text).with("path", path))
    }

    /// Gives a file that takes this one's place its owner, mode and extended attributes. Answers
    /// what the file is then, but for its mode.
    pub(super) fn dress(&self, file: BorrowedFd<'_>, mode: Option<u32>) -> Result<Stat, Misfit> {
        let stat = give(file, self.owner)?;
        if (stat.st_uid, stat.st_gid) != self.owner {
            let (user, group) = self.owner;
            return Err(Misfit::Anothers(user, group));
        }
        // Its directory may give new files a list of who may do what, which the old one has not.
        let is_listed = |attributes: &[(CString, Vec<u8>)]| {
            attributes.iter().any(|(name, _)| name.as_c_str() == ACCESS_LIST)
        };
        if !is_listed(&self.attributes) && is_listed(&attributes(file)?) {
            fremovexattr(file, ACCESS_LIST)?;
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
fn attributes(file: BorrowedFd<'_>) -> Result<Vec<(CString, Vec<u8>)>, Errno> {
    let names = attribute_names(file)?;
    let mut attributes = Vec::new();
    let mut room = MOST_ATTRIBUTE_BYTES;
    for name in names.split(|byte| *byte == 0).filter(|name| kept(name)) {
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let mut value = vec![0; ATTRIBUTE_BYTES];
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
    attributes.sort_by_key(|(name, _)| name.as_c_str() == ACCESS_LIST);
    Ok(attributes)
}

/// Names of a file's extended attributes, each with a NUL behind it.
fn attribute_names(file: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    // Most files have none: no room is made for those.
    match flistxattr_query(file) {
        Ok(0) | Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
        Ok(_) => {}
    }
    let mut names = vec![0; ATTRIBUTE_BYTES];
    let length = flistxattr(file, &mut names[..])?;
    names.truncate(length);
    Ok(names)
}

/// Attributes that belong to the file's owner. Others, capabilities above all, are not for a file
/// with other content.
fn kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == ACCESS_LIST.to_bytes()
}

impl Fresh {
    /// Gives a file its owner and mode. Answers what the file is then, but for its mode.
    pub(super) fn dress(self, file: BorrowedFd<'_>) -> Result<Stat, Errno> {
        let stat = give(file, self.owner)?;
        set_mode(file, self.mode)?;
        Ok(stat)
    }
}

fn set_mode(file: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    fchmod(file, Mode::from_raw_mode(mode & PERMISSIONS))
}

/// Gives what was made to a user and a group, and answers what it is then. The descriptor may be one
/// that only names a place.
pub(super) fn give(made: BorrowedFd<'_>, owner: (u32, u32)) -> Result<Stat, Errno> {
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

impl Stamp {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            modified: (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        }
    }

    /// What is called `name` in a directory, itself and not what it may link to.
    pub(super) fn at(directory: BorrowedFd<'_>, name: &str) -> Result<Self, Errno> {
        statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| Self::of(&stat))
    }

    /// Device and inode.
    pub(super) fn identity(self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

impl Misfit {
    /// The error for the file at `path`.
    pub(super) fn told(self, path: &str) -> Error {
        let (user, group) = match self {
            Self::Refused(errno) => return failure(errno, path, Wanted::File),
            Self::Anothers(user, group) => (user, group),
        };
        let text = format!(
            "{path:?} belongs to user {user} and group {group}, and what the daemon's user would put in its place could not: write to it with a command, if its mode allows that, or have the daemon's user own it (chown)"
        );
        Error::new(Reason::PermissionDenied, text).with("path", path)
    }
}

impl From<Errno> for Misfit {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

/// The error for a file that is not as the caller has read it.
pub(super) fn stale(path: &RelativePath) -> Error {
    let path = path.as_str();
    let text = format!("{path:?} was changed since it was read: read it again");
    Error::new(Reason::StaleFile, text).with("path", path)
}
