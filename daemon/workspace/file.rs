//! Regular files, opened for reading. FIFOs, sockets and devices are examined but never opened:
//! opening one can block forever or have side effects.

use std::{
    fs::File,
    io::{self, IoSliceMut},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::OnceLock,
};

use rustix::{
    fs::{
        FileType, MemfdFlags, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, memfd_create,
        open, openat,
    },
    io::{ReadWriteFlags, pread, preadv2, retry_on_intr},
    path::DecInt,
};

use super::{
    cancel::CancelToken,
    os_error::{ExpectedKind, os_error},
};
use crate::daemon::{
    checksum::Checksum,
    error::{Error, Reason},
    sys::Errno,
};

/// Bytes hashed at once, between two cancellation checks.
const HASH_CHUNK_BYTES: usize = 128 * 1024;

/// A regular file of the workspace, open for reading.
#[derive(Debug)]
pub(crate) struct RegularFile {
    descriptor: OwnedFd,
    path: String,
    size: u64,
    /// The whole content, if it has been read.
    content: Option<Vec<u8>>,
}

impl RegularFile {
    /// Opens the file of the `O_PATH` descriptor `handle`. `path` is for messages.
    pub(super) fn open(handle: &OwnedFd, path: &str) -> Result<Self, Error> {
        let (descriptor, stat) = reopen(handle.as_fd())
            // The file exists, so these errors are about /proc.
            .map_err(|errno| match errno {
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP => {
                    Error::internal(std::io::Error::from(errno))
                }
                errno => os_error(errno, path, ExpectedKind::File),
            })?
            .map_err(|kind| {
                Error::new(
                    Reason::NotAFile,
                    format!("{path:?} is {}, not a regular file", file_type_name(kind)),
                )
                .with_metadata("path", path)
            })?;
        Ok(Self {
            descriptor,
            path: path.to_owned(),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            content: None,
        })
    }

    /// Reads `length` bytes from `offset`, fewer only at the end of the file.
    pub(crate) fn bytes_at(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match self.read_at(&mut bytes[filled..], offset + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Wraps a file outside the workspace. Without one, creates an empty file. `path` is for
    /// messages.
    pub(crate) fn from_external(file: Option<File>, path: &str) -> io::Result<Self> {
        let descriptor = match file {
            Some(file) => file.into(),
            None => memfd_create("empty", MemfdFlags::CLOEXEC)?,
        };
        let size = u64::try_from(fstat(&descriptor)?.st_size).unwrap_or(0);
        Ok(Self { descriptor, path: path.to_owned(), size, content: None })
    }

    /// Reads the whole file, if it has at most `max_bytes` and the kernel has them cached. Never
    /// waits for a disk. Returns whether it has read the file.
    pub(super) fn read_cached(&mut self, max_bytes: usize) -> bool {
        let Some(size) = usize::try_from(self.size).ok().filter(|size| *size <= max_bytes) else {
            return false;
        };
        // One byte more, to detect that the file has grown.
        let mut content = vec![0; size + 1];
        let mut buffers = [IoSliceMut::new(&mut content)];
        let read = preadv2(&self.descriptor, &mut buffers, 0, ReadWriteFlags::NOWAIT);
        if read != Ok(size) {
            return false;
        }
        content.truncate(size);
        self.content = Some(content);
        true
    }

    /// Returns the path for messages.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Size at the time of opening.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the current metadata.
    pub(crate) fn stat(&self) -> Result<Stat, Error> {
        fstat(&self.descriptor).map_err(|errno| os_error(errno, &self.path, ExpectedKind::File))
    }

    /// Reads from `offset`, as much as one system call returns. 0 at the end.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Error> {
        if let Some(content) = &self.content {
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let rest = content.get(start..).unwrap_or_default();
            let length = rest.len().min(buffer.len());
            if let (Some(to), Some(from)) = (buffer.get_mut(..length), rest.get(..length)) {
                to.copy_from_slice(from);
            }
            return Ok(length);
        }
        retry_on_intr(|| pread(&self.descriptor, &mut *buffer, offset))
            .map_err(|errno| os_error(errno, &self.path, ExpectedKind::File))
    }
}

impl AsFd for RegularFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl From<RegularFile> for OwnedFd {
    fn from(file: RegularFile) -> Self {
        file.descriptor
    }
}

/// Opens the file of a handle for reading. Returns its type instead if it is not a regular file.
pub(super) fn reopen(handle: BorrowedFd<'_>) -> Result<Result<(OwnedFd, Stat), FileType>, Errno> {
    let stat = fstat(handle)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::RegularFile {
        return Ok(Err(kind));
    }

    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let link = DecInt::from_fd(handle);
    let opened = retry_on_intr(|| openat(proc_self_fd()?, link.as_c_str(), flags, Mode::empty()))?;
    Ok(Ok((opened, stat)))
}

/// Hashes a file to its end, or until it has more than `max_bytes`: it can grow while it is read.
/// Returns the hash and the number of hashed bytes. `path` is for messages.
pub(super) fn hash_file(
    file: impl AsFd,
    path: &str,
    max_bytes: u64,
    cancel: &CancelToken,
) -> Result<(Checksum, u64), Error> {
    let (mut sum, mut length) = (Checksum::default(), 0);
    let mut buffer = vec![0; HASH_CHUNK_BYTES];

    while length <= max_bytes {
        cancel.check()?;
        let read = retry_on_intr(|| pread(&file, &mut buffer, length))
            .map_err(|errno| os_error(errno, path, ExpectedKind::File))?;
        if read == 0 {
            break;
        }
        sum.update(buffer.get(..read).unwrap_or_default());
        length += read as u64;
    }
    Ok((sum, length))
}

/// Returns the directory of the links to this process's descriptors. It stays open, so that it is
/// looked up and verified to be in /proc only once.
fn proc_self_fd() -> Result<BorrowedFd<'static>, Errno> {
    static PROC_SELF_FD: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(directory) = PROC_SELF_FD.get() {
        return Ok(directory.as_fd());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open("/proc/self/fd", flags, Mode::empty())?;
    if fstatfs(&directory)?.f_type != PROC_SUPER_MAGIC {
        return Err(Errno::STALE);
    }
    Ok(PROC_SELF_FD.get_or_init(|| directory).as_fd())
}

fn file_type_name(kind: FileType) -> &'static str {
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
