//! Regular files, opened for reading. What only looks like one, a FIFO, a socket, a device, is
//! looked at but not opened: opening alone can wait for ever or make something happen.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat, fstat, open},
    io::{pread, retry_on_intr},
};

use super::failure::{Wanted, failure};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// A regular file of the workspace, open for reading.
#[derive(Debug)]
pub(crate) struct RegularFile {
    descriptor: OwnedFd,
    path: String,
    size: u64,
}

impl RegularFile {
    /// Opens what the `O_PATH` descriptor `found` names. `path` is for messages.
    pub(super) fn open(found: &OwnedFd, path: &str) -> Result<Self, Error> {
        let (descriptor, stat) = reopen(found.as_fd())
            // That the file is there is known: what cannot be found is /proc.
            .map_err(|errno| match errno {
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP => {
                    Error::internal(std::io::Error::from(errno))
                }
                errno => failure(errno, path, Wanted::File),
            })?
            .map_err(|found| {
                Error::new(
                    Reason::NotAFile,
                    format!("{path:?} is {}, not a regular file", describe(found)),
                )
                .with("path", path)
            })?;
        Ok(Self {
            descriptor,
            path: path.to_owned(),
            size: u64::try_from(stat.st_size).unwrap_or(0),
        })
    }

    /// Where it is, for messages.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Size when it was opened.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Reads from `offset` on, as much as the kernel gives at once; 0 at the end.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Error> {
        retry_on_intr(|| pread(&self.descriptor, &mut *buffer, offset))
            .map_err(|errno| failure(errno, &self.path, Wanted::File))
    }
}

/// Opens the regular file that `found` names for reading, or says what it is instead.
pub(super) fn reopen(found: BorrowedFd<'_>) -> Result<Result<(OwnedFd, Stat), FileType>, Errno> {
    let expected = fstat(found)?;
    let kind = FileType::from_raw_mode(expected.st_mode);
    if kind != FileType::RegularFile {
        return Ok(Err(kind));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    let opened = retry_on_intr(|| open(link.as_str(), flags, Mode::empty()))?;
    let stat = fstat(&opened)?;
    // Only a /proc that is none could lead elsewhere.
    if (stat.st_dev, stat.st_ino) != (expected.st_dev, expected.st_ino) {
        return Err(Errno::STALE);
    }
    Ok(Ok((opened, stat)))
}

fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::RegularFile | FileType::Unknown => "something else",
    }
}
