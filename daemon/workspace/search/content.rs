//! What is read of a file.

use std::{
    io::{self, Read},
    os::fd::OwnedFd,
};

use crate::daemon::workspace::stop::Stop;

/// A file's content, which ends with an error when the search is to stop.
#[derive(Debug)]
pub(super) struct Content<'a> {
    file: OwnedFd,
    /// Bytes that are left of those that it had when it was opened; nothing says that there are
    /// none.
    left: Option<u64>,
    stop: &'a Stop,
}

impl<'a> Content<'a> {
    /// Of a file of `size` bytes.
    pub(super) fn new(file: OwnedFd, size: u64, stop: &'a Stop) -> Self {
        // Files of some file systems tell no size.
        let left = (size > 0).then_some(size);
        Self { file, left, stop }
    }
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_stopped() {
            return Err(io::Error::other("stopped"));
        }
        // Saves the system call that only says that nothing comes any more.
        if self.left == Some(0) {
            return Ok(0);
        }
        let read = rustix::io::read(&self.file, buffer)?;
        self.left = self.left.map(|left| left.saturating_sub(read as u64));
        Ok(read)
    }
}
