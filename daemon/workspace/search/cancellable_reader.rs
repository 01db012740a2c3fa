//! A reader for file contents that fails when the search is cancelled.

use std::{
    io::{self, Read},
    os::fd::OwnedFd,
};

use crate::daemon::workspace::cancel::CancelToken;

/// Reads a file. Fails when the search is cancelled.
#[derive(Debug)]
pub(super) struct CancellableReader<'a> {
    file: OwnedFd,
    /// Unread bytes of the size at opening. `None` if the file system reports no size.
    remaining: Option<u64>,
    cancel: &'a CancelToken,
}

impl<'a> CancellableReader<'a> {
    /// Reads a file of `size` bytes.
    pub(super) fn new(file: OwnedFd, size: u64, cancel: &'a CancelToken) -> Self {
        // Some file systems report no size.
        let remaining = (size > 0).then_some(size);
        Self { file, remaining, cancel }
    }
}

impl Read for CancellableReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("cancelled"));
        }
        // Saves the system call that would report the end of the file.
        if self.remaining == Some(0) {
            return Ok(0);
        }
        let read = rustix::io::read(&self.file, buffer)?;
        self.remaining = self.remaining.map(|remaining| remaining.saturating_sub(read as u64));
        Ok(read)
    }
}
