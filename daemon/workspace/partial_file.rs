//! A file that comes in parts, as long as it is not whole: a file of its own beside its place.
//!
//! While it comes nobody else may open it. A daemon of root's gives it to a user that there is not,
//! so that commands have no permission for it, to whomever the workspace belongs. Commands of an
//! ordinary user's daemon are that user too: that they have written into it, or taken its name away,
//! is noticed before it is put in its place.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
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

/// Mode of a draft.
const PRIVATE_MODE: u32 = 0o600;
/// User and group that nobody is: not the one that means no change, chown(2).
const NOBODY_OWNER: (u32, u32) = (u32::MAX - 1, u32::MAX - 1);

/// A file that is not whole yet. It holds the hash of what it has.
#[derive(Debug)]
pub(crate) struct PartialFile {
    location: PartialFileLocation,
    directory: OwnedFd,
    file: File,
    length: u64,
    hasher: Checksum,
    /// When the daemon changed it last (ctime), which nobody can forge.
    ctime: Option<ChangeTime>,
}

/// Seconds and nanoseconds since 1970.
type ChangeTime = (i64, u64);

/// Where a draft lies, to find it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartialFileLocation {
    /// Path, relative to the workspace, of the file that it is to become. It lies beside it.
    pub(crate) path: String,
    /// Its name.
    pub(crate) name: String,
    /// Device and inode; none before it is made.
    pub(crate) identity: Option<(u64, u64)>,
    /// Whether it is to take the place of another file; none before it is about to be put there.
    pub(crate) replaces: Option<bool>,
}

/// What is to become of a draft.
#[derive(Debug, Clone)]
pub(crate) struct PartialFileTarget {
    /// Where it is to be.
    pub(crate) path: RelativePath,
    /// Whether something that is there stays.
    pub(crate) create_new: bool,
    /// Hash, in lower-case hexadecimal, that the file there must have.
    pub(crate) expected_sha256: Option<String>,
    /// Permission bits; those of the file that is there, without them.
    pub(crate) mode: Option<u32>,
}

/// What is left of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartialFileState {
    /// The draft, with so many bytes.
    Partial(u64),
    /// A file of so many bytes, in its place.
    Committed(u64),
    /// Nothing.
    Missing,
}

/// Why a draft could not be used.
#[derive(Debug)]
pub(crate) enum PartialFileError {
    /// It stays as it is, for another time.
    Intact(Error),
    /// It is not any more what had come, and of no use.
    Unusable(Error),
}

// === impl Draft ===

impl PartialFile {
    /// Begins the draft of the file `path` in the directory of that file. `say` writes down where
    /// it lies before it is made, and which file it is after: a daemon that dies leaves nothing that
    /// the next one does not know.
    pub(super) fn create(
        directory: OwnedFd,
        path: &RelativePath,
        say: impl Fn(&PartialFileLocation) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let fails = |errno| os_error(errno, path.as_str(), ExpectedKind::File);
        let mut place = PartialFileLocation {
            path: path.as_str().to_owned(),
            name: temporary_name(),
            identity: None,
            replaces: None,
        };
        say(&place)?;
        fault_injection::step();
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let private = Mode::from_raw_mode(PRIVATE_MODE);
        let file = retry_on_intr(|| openat(&directory, place.name.as_str(), flags, private));
        let file = file.map_err(fails)?;
        fault_injection::step();
        let stat = fstat(&file).map_err(fails)?;
        place.identity = Some((stat.st_dev, stat.st_ino));
        let mut draft = Self {
            location: place,
            directory,
            file: file.into(),
            length: 0,
            hasher: Checksum::default(),
            ctime: None,
        };
        if let Err(errno) = reset_attributes(draft.as_fd()) {
            draft.discard();
            return Err(fails(errno));
        }
        draft.ctime = ctime_of(&draft.file);
        match say(&draft.location) {
            Ok(()) => Ok(draft),
            Err(error) => {
                draft.discard();
                Err(error)
            }
        }
    }

    /// Opens a draft again in its directory, and hashes what it has.
    pub(super) fn open(
        directory: OwnedFd,
        place: PartialFileLocation,
        cancel: &CancelToken,
    ) -> Result<Self, PartialFileError> {
        let lost = |errno| not_found_error(errno, &place.path);
        let found = open_entry(directory.as_fd(), place.name.as_bytes()).map_err(lost)?;
        let stat = fstat(&found).map_err(lost)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || Some((stat.st_dev, stat.st_ino)) != place.identity {
            return Err(tampered_error(&place.path));
        }
        let fails = |errno| os_error(errno, &place.path, ExpectedKind::File);
        let link = format!("/proc/self/fd/{}", found.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        // The daemon may have died when it was dressed already.
        chmod(link.as_str(), Mode::from_raw_mode(PRIVATE_MODE)).map_err(fails)?;
        let file = retry_on_intr(|| open(link.as_str(), flags, Mode::empty())).map_err(fails)?;
        reset_attributes(file.as_fd()).map_err(fails)?;
        let read = || hash_file(&file, &place.path, u64::MAX, cancel);
        let Some(((sum, length), changed)) = read_if_unchanged(&file, read)? else {
            return Err(tampered_error(&place.path));
        };
        Ok(Self {
            ctime: Some(changed),
            file: file.into(),
            location: place,
            directory,
            length,
            hasher: sum,
        })
    }

    /// Where it lies.
    pub(crate) fn location(&self) -> &PartialFileLocation {
        &self.location
    }

    /// Bytes that it has.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Hash of what it has, in lower-case hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        self.hasher.clone().finish()
    }

    /// Adds bytes at its end. Zeros take no room on the disk.
    pub(crate) fn append(&mut self, data: &[u8]) -> Result<(), Error> {
        fault_injection::step();
        let end = self.length + data.len() as u64;
        let is_hole = is_zero(data);
        // A change by somebody else is not covered by one of ours, but for one between this look and
        // the next: a file has no other mark that a change leaves.
        let is_ours = self.ctime == ctime_of(&self.file);
        let written = if is_hole {
            self.file.set_len(end)
        } else {
            self.file.write_all_at(data, self.length)
        };
        if let Err(error) = written {
            // So that the length of the file stays what is told: a part may have been written.
            let cut = self.file.set_len(self.length);
            // That, too, was us: what came before goes on when there is room again.
            self.ctime = is_ours.then(|| ctime_of(&self.file)).flatten();
            return Err(self.to_error(&cut.err().unwrap_or(error)));
        }
        self.hasher.update(data);
        self.length = end;
        self.ctime = is_ours.then(|| ctime_of(&self.file)).flatten();
        Ok(())
    }

    /// Checks that it lies in its directory still, with as many bytes as have come.
    pub(super) fn verify(&self, directory: BorrowedFd<'_>) -> Result<(), PartialFileError> {
        let lost = |errno| not_found_error(errno, &self.location.path);
        let named = FileVersion::read(directory, &self.location.name).map_err(lost)?;
        let size = fstat(&self.file).map_err(lost)?.st_size;
        let is_it = Some(named.identity()) == self.location.identity;
        let is_whole = u64::try_from(size) == Ok(self.length);
        let is_ours = self.ctime.is_some() && self.ctime == ctime_of(&self.file);
        if !(is_it && is_whole && is_ours) {
            return Err(tampered_error(&self.location.path));
        }
        Ok(())
    }

    /// Remembers whether it is about to take the place of another file.
    pub(super) fn set_replaces(&mut self, replaces: bool) {
        self.location.replaces = Some(replaces);
    }

    /// Makes it the daemon's alone again, after it was dressed as the file that it is to become.
    pub(super) fn make_private(&mut self) {
        let undressed = reset_attributes(self.as_fd());
        self.ctime = ctime_of(&self.file);
        if let Err(errno) = undressed {
            tracing::warn!(path = self.location.path, %errno, "what has come of an upload cannot be closed to others");
        }
    }

    /// Deletes it. Answers whether it is gone.
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

// === impl DraftError ===

impl From<Error> for PartialFileError {
    fn from(error: Error) -> Self {
        Self::Intact(error)
    }
}

/// What it means that a draft is not found: that it was taken away, or that it cannot be told now.
pub(super) fn not_found_error(errno: Errno, path: &str) -> PartialFileError {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => tampered_error(path),
        errno => os_error(errno, path, ExpectedKind::File).into(),
    }
}

/// The error for a draft that is not what had come any more.
pub(super) fn tampered_error(path: &str) -> PartialFileError {
    let text = format!(
        "what had come of {path:?} was moved, deleted or changed in the workspace, and is dropped: start again from the first byte"
    );
    PartialFileError::Unusable(Error::new(Reason::StaleFile, text).with_metadata("path", path))
}

/// Deletes a draft, unless another file has taken its name. Answers whether it is gone.
pub(super) fn delete_partial_file(directory: BorrowedFd<'_>, place: &PartialFileLocation) -> bool {
    let name = place.name.as_str();
    let deleted = match FileVersion::read(directory, name) {
        Ok(found) if place.identity.is_some_and(|it| it != found.identity()) => Ok(()),
        Ok(_) => unlinkat(directory, name, AtFlags::empty()),
        Err(errno) => Err(errno),
    };
    match deleted {
        Ok(()) | Err(Errno::NOENT) => true,
        Err(errno) => {
            tracing::warn!(name, %errno, "what is left of an upload cannot be deleted");
            false
        }
    }
}

fn reset_attributes(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // Before it changes hands, so that at no time more may open it.
    fchmod(file, Mode::from_raw_mode(PRIVATE_MODE))?;
    let given = chown(file, NOBODY_OWNER)?;
    if (given.st_uid, given.st_gid) != NOBODY_OWNER {
        // An ordinary user's daemon, or a namespace that does not have it; then commands have fewer
        // users than the daemon, too.
        chown(file, (geteuid().as_raw(), getegid().as_raw()))?;
    }
    Ok(())
}

/// What `read` finds in a file, and when that was changed last; none where it was changed meanwhile.
fn read_if_unchanged<R>(
    file: &impl AsFd,
    read: impl FnOnce() -> Result<R, Error>,
) -> Result<Option<(R, ChangeTime)>, Error> {
    let before = ctime_of(file);
    let found = read()?;
    Ok(before.filter(|before| ctime_of(file) == Some(*before)).map(|before| (found, before)))
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
    fn what_changes_while_it_is_read_is_not_believed() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"some").unwrap();
        // Longer than what the kernel tells times apart by.
        let later = || thread::sleep(Duration::from_millis(50));
        later();
        let found = read_if_unchanged(&file, || Ok(1)).unwrap();
        assert_eq!(found, ctime_of(&file).map(|changed| (1, changed)));
        let found = read_if_unchanged(&file, || {
            file.write_all_at(b"evil", 0).unwrap();
            Ok(1)
        });
        assert_eq!(found.unwrap(), None);
        later();
        assert!(read_if_unchanged(&file, || Ok(1)).unwrap().is_some());
    }
}
