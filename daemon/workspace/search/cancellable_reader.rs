//! What is read of a file.

use std::{
    io::{self, Read},
    os::fd::OwnedFd,
};

use crate::daemon::workspace::cancel::CancelToken;

/// A file's content, which ends with an error when the search is to stop.
#[derive(Debug)]
pub(super) struct CancellableReader<'a> {
    file: OwnedFd,
    /// Bytes that are left of those that it had when it was opened; nothing says that there are
    /// none.
    remaining: Option<u64>,
    cancel: &'a CancelToken,
}

impl<'a> CancellableReader<'a> {
    /// Of a file of `size` bytes.
    pub(super) fn new(file: OwnedFd, size: u64, cancel: &'a CancelToken) -> Self {
        // Files of some file systems tell no size.
        let left = (size > 0).then_some(size);
        Self { file, remaining: left, cancel }
    }
}

impl Read for CancellableReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("stopped"));
        }
        // Saves the system call that only says that nothing comes any more.
        if self.remaining == Some(0) {
            return Ok(0);
        }
        let read = rustix::io::read(&self.file, buffer)?;
        self.remaining = self.remaining.map(|left| left.saturating_sub(read as u64));
        Ok(read)
    }
}
