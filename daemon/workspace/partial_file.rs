//! An incomplete upload: a temporary file beside its destination.
//!
//! Nothing else may open the file until it is complete. A daemon that runs as root gives it to an
//! unused user id, so commands have no permission for it in any workspace. If the daemon
//! runs as an ordinary user, its commands run as the same user. The daemon then detects before the
//! commit that they have written to the file or removed it.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, chmod, fchmod, fstat, open, openat, unlinkat},
    io::retry_on_intr,
    process::{getegid, geteuid},
};

use super::{
    cancel::CancelToken,
    fault_injection,
    file::hash_file,
    file_quota::{FileQuota, FileReservation},
    file_usage::FileUsage,
    os_error::{ExpectedKind, os_error},
    path::RelativePath,
    rename_step::temporary_name,
    resolve::open_entry,
    snapshot::{FileVersion, chown},
};
use crate::daemon::{
    checksum::Checksum,
    error::{Error, Reason},
    sys::Errno,
};

/// Mode of a partial file.
const PRIVATE_MODE: u32 = 0o600;
/// User and group that nothing runs as. Not the highest id, which means "no change" (chown(2)).
const NOBODY_OWNER: (u32, u32) = (u32::MAX - 1, u32::MAX - 1);

/// An incomplete file, and the hash of its content so far.
#[derive(Debug)]
pub(crate) struct PartialFile {
    location: PartialFileLocation,
    directory: OwnedFd,
    file: File,
    length: u64,
    hasher: Checksum,
    quota: Option<Arc<FileQuota>>,
    /// Time of the daemon's last change (ctime), which no process can set. `None` after another
    /// change.
    ctime: Option<ChangeTime>,
}

/// A ctime: seconds and nanoseconds since 1970.
type ChangeTime = (i64, u64);

/// Location of a partial file, recorded so that a later daemon finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartialFileLocation {
    /// Path of the destination, relative to the workspace. The partial file is in the same
    /// directory.
    pub(crate) path: String,
    /// Temporary name.
    pub(crate) name: String,
    /// Device and inode. `None` before the file is created.
    pub(crate) identity: Option<(u64, u64)>,
    /// Whether the commit replaces another file. `None` before the commit.
    pub(crate) replaces: Option<bool>,
}

/// What a partial file is to become.
#[derive(Debug, Clone)]
pub(crate) struct PartialFileTarget {
    /// Destination.
    pub(crate) path: RelativePath,
    /// Whether an existing file is an error.
    pub(crate) create_new: bool,
    /// Hash that the existing file must have, in lower-case hexadecimal.
    pub(crate) expected_sha256: Option<String>,
    /// Permission bits. By default those of the existing file.
    pub(crate) mode: Option<u32>,
}

/// State of a partial file that an earlier daemon has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartialFileState {
    /// The file is incomplete, with this many bytes.
    Partial(u64),
    /// The file is at its destination, with this many bytes.
    Committed(u64),
    /// The file does not exist.
    Missing,
}

/// Why an operation on a partial file failed.
#[derive(Debug)]
pub(crate) enum PartialFileError {
    /// The partial file is unchanged and can be used again.
    Intact(Error),
    /// The partial file was removed or changed by another process.
    Unusable(Error),
}

// === impl PartialFile ===

impl PartialFile {
    /// Creates a partial file for the destination `path` in `directory`. Calls `record` before the
    /// file exists and again with its identity, so that a later daemon knows of everything that a
    /// crash leaves behind.
    pub(super) fn create(
        directory: OwnedFd,
        path: &RelativePath,
        quota: Option<Arc<FileQuota>>,
        record: impl Fn(&PartialFileLocation) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let _reservation = reserve(quota.as_ref(), FileUsage::of_file(0))?;
        let to_error = |errno| os_error(errno, path.as_str(), ExpectedKind::File);
        let mut location = PartialFileLocation {
            path: path.as_str().to_owned(),
            name: temporary_name(),
            identity: None,
            replaces: None,
        };
        record(&location)?;
        fault_injection::step();

        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(PRIVATE_MODE);
        let file = retry_on_intr(|| openat(&directory, location.name.as_str(), flags, mode))
            .map_err(to_error)?;
        fault_injection::step();

        let stat = fstat(&file).map_err(to_error)?;
        location.identity = Some((stat.st_dev, stat.st_ino));
        let mut partial = Self {
            location,
            directory,
            file: file.into(),
            length: 0,
            hasher: Checksum::default(),
            quota,
            ctime: None,
        };
        if let Err(errno) = reset_attributes(partial.as_fd()) {
            partial.discard();
            return Err(to_error(errno));
        }
        partial.ctime = ctime_of(&partial.file);

        match record(&partial.location) {
            Ok(()) => Ok(partial),
            Err(error) => {
                partial.discard();
                Err(error)
            }
        }
    }

    /// Reopens a partial file in its directory, and hashes its content.
    pub(super) fn open(
        directory: OwnedFd,
        location: PartialFileLocation,
        quota: Option<Arc<FileQuota>>,
        cancel: &CancelToken,
    ) -> Result<Self, PartialFileError> {
        let not_found = |errno| not_found_error(errno, &location.path);
        let handle = open_entry(directory.as_fd(), location.name.as_bytes()).map_err(not_found)?;
        let stat = fstat(&handle).map_err(not_found)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || Some((stat.st_dev, stat.st_ino)) != location.identity {
            return Err(tampered_error(&location.path));
        }

        let to_error = |errno| os_error(errno, &location.path, ExpectedKind::File);
        let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        // The daemon may have crashed after it had set the final attributes.
        chmod(link.as_str(), Mode::from_raw_mode(PRIVATE_MODE)).map_err(to_error)?;
        let file = retry_on_intr(|| open(link.as_str(), flags, Mode::empty())).map_err(to_error)?;
        reset_attributes(file.as_fd()).map_err(to_error)?;

        let hash = || hash_file(&file, &location.path, u64::MAX, cancel);
        let Some(((hasher, length), ctime)) = read_if_unchanged(&file, hash)? else {
            return Err(tampered_error(&location.path));
        };
        Ok(Self {
            ctime: Some(ctime),
            file: file.into(),
            location,
            directory,
            length,
            hasher,
            quota,
        })
    }

    pub(crate) fn location(&self) -> &PartialFileLocation {
        &self.location
    }

    /// Number of bytes received so far.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Hash of the content so far, in lower-case hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        self.hasher.clone().finish()
    }

    /// Appends bytes. A block of zeros becomes a hole, which uses no disk space.
    pub(crate) fn append(&mut self, data: &[u8]) -> Result<(), Error> {
        fault_injection::step();
        let end = self.length + data.len() as u64;
        let is_hole = is_zero(data);
        let growth = FileUsage::of_growth(self.length, end);
        let growth = if is_hole { FileUsage::default() } else { growth };
        let _reservation = reserve(self.quota.as_ref(), growth)?;
        // If another process has changed the file, the daemon's own write must not hide that. Only
        // a change between this check and the write goes unnoticed.
        let is_ours = self.ctime == ctime_of(&self.file);
        let written = if is_hole {
            self.file.set_len(end)
        } else {
            self.file.write_all_at(data, self.length)
        };
        if let Err(error) = written {
            // A part may have been written. Restores the length that was reported.
            let cut = self.file.set_len(self.length);
            // The truncation is the daemon's own change: the upload can continue once there is
            // space.
            self.ctime = is_ours.then(|| ctime_of(&self.file)).flatten();
            return Err(self.to_error(&cut.err().unwrap_or(error)));
        }
        self.hasher.update(data);
        self.length = end;
        self.ctime = is_ours.then(|| ctime_of(&self.file)).flatten();
        Ok(())
    }

    /// Checks that the file is in its directory, with the received content and nothing else.
    pub(super) fn verify(&self, directory: BorrowedFd<'_>) -> Result<(), PartialFileError> {
        let not_found = |errno| not_found_error(errno, &self.location.path);
        let version = FileVersion::read(directory, &self.location.name).map_err(not_found)?;
        let size = fstat(&self.file).map_err(not_found)?.st_size;
        let is_same = Some(version.identity()) == self.location.identity;
        let is_complete = u64::try_from(size) == Ok(self.length);
        let is_ours = self.ctime.is_some() && self.ctime == ctime_of(&self.file);
        if !(is_same && is_complete && is_ours) {
            return Err(tampered_error(&self.location.path));
        }
        Ok(())
    }

    /// Records whether the commit replaces another file.
    pub(super) fn set_replaces(&mut self, replaces: bool) {
        self.location.replaces = Some(replaces);
    }

    /// Restores the private attributes, after a failed commit had set the final ones.
    pub(super) fn make_private(&mut self) {
        let result = reset_attributes(self.as_fd());
        self.ctime = ctime_of(&self.file);
        if let Err(errno) = result {
            tracing::warn!(path = self.location.path, %errno, "cannot restrict access to a partial upload");
        }
    }

    /// Deletes the file. Returns whether it is gone.
    pub(crate) fn discard(self) -> bool {
        delete_partial_file(self.directory.as_fd(), &self.location)
    }

    fn to_error(&self, error: &io::Error) -> Error {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        os_error(errno, &self.location.path, ExpectedKind::File)
    }
}

impl AsFd for PartialFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

// === impl PartialFileError ===

impl From<Error> for PartialFileError {
    fn from(error: Error) -> Self {
        Self::Intact(error)
    }
}

/// Builds the error for a partial file that cannot be accessed: whether it was removed or not.
pub(super) fn not_found_error(errno: Errno, path: &str) -> PartialFileError {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => tampered_error(path),
        errno => os_error(errno, path, ExpectedKind::File).into(),
    }
}

/// Builds the error for a partial file that another process has removed or changed.
pub(super) fn tampered_error(path: &str) -> PartialFileError {
    let text = format!(
        "the incomplete upload of {path:?} was moved, deleted or changed in the workspace and is discarded: start again from the first byte"
    );
    PartialFileError::Unusable(Error::new(Reason::StaleFile, text).with_metadata("path", path))
}

/// Deletes a partial file, unless another file has its name. Returns whether it is gone.
pub(super) fn delete_partial_file(
    directory: BorrowedFd<'_>,
    location: &PartialFileLocation,
) -> bool {
    let name = location.name.as_str();
    let deleted = match FileVersion::read(directory, name) {
        Ok(version) if location.identity.is_some_and(|it| it != version.identity()) => Ok(()),
        Ok(_) => unlinkat(directory, name, AtFlags::empty()),
        Err(errno) => Err(errno),
    };
    match deleted {
        Ok(()) | Err(Errno::NOENT) => true,
        Err(errno) => {
            tracing::warn!(name, %errno, "cannot delete a partial upload");
            false
        }
    }
}

/// Reserves what a partial file takes more.
fn reserve(
    quota: Option<&Arc<FileQuota>>,
    growth: FileUsage,
) -> Result<Option<FileReservation>, Error> {
    quota.map(|quota| quota.reserve(growth, &CancelToken::new())).transpose()
}

/// Makes a file accessible to the daemon only.
fn reset_attributes(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // The mode first, so that the new owner never has more access.
    fchmod(file, Mode::from_raw_mode(PRIVATE_MODE))?;
    let stat = chown(file, NOBODY_OWNER)?;
    if (stat.st_uid, stat.st_gid) != NOBODY_OWNER {
        // The daemon is an ordinary user, or its user namespace does not map that id. In the latter
        // case, commands have fewer user ids than the daemon.
        chown(file, (geteuid().as_raw(), getegid().as_raw()))?;
    }
    Ok(())
}

/// Returns the result of `read` and the ctime of the file. `None` if the file changed meanwhile.
fn read_if_unchanged<R>(
    file: &impl AsFd,
    read: impl FnOnce() -> Result<R, Error>,
) -> Result<Option<(R, ChangeTime)>, Error> {
    let before = ctime_of(file);
    let result = read()?;
    Ok(before.filter(|before| ctime_of(file) == Some(*before)).map(|ctime| (result, ctime)))
}

fn ctime_of(file: &impl AsFd) -> Option<ChangeTime> {
    let stat = fstat(file).ok()?;
    Some((stat.st_ctime, stat.st_ctime_nsec))
}

fn is_zero(data: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    data.chunks(ZEROS.len()).all(|chunk| ZEROS.starts_with(chunk))
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, thread, time::Duration};

    use super::*;

    #[test]
    fn file_that_changes_during_a_read_is_rejected() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"some").unwrap();
        // Longer than the granularity of the kernel's timestamps.
        let wait = || thread::sleep(Duration::from_millis(50));
        wait();
        let result = read_if_unchanged(&file, || Ok(1)).unwrap();
        assert_eq!(result, ctime_of(&file).map(|ctime| (1, ctime)));
        let result = read_if_unchanged(&file, || {
            file.write_all_at(b"evil", 0).unwrap();
            Ok(1)
        });
        assert_eq!(result.unwrap(), None);
        wait();
        assert!(read_if_unchanged(&file, || Ok(1)).unwrap().is_some());
    }
}
