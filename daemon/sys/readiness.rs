//! Registers descriptors with the runtime.

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Registers `fd` with the runtime for reading.
pub(crate) fn watch_readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    try_watch_readable(fd).map_err(|(_, error)| error)
}

/// As [`watch_readable`], but returns the descriptor if it cannot be registered.
pub(crate) fn try_watch_readable(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, (OwnedFd, io::Error)> {
    register(fd, Interest::READABLE)
}

/// Registers `fd` with the runtime for writing.
pub(crate) fn watch_writable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register(fd, Interest::WRITABLE).map_err(|(_, error)| error)
}

fn register(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>, (OwnedFd, io::Error)> {
    // SAFETY: the number behind an OwnedFd never changes, and it stays open until the AsyncFd,
    // which owns it, is dropped and has taken it out of the runtime's set.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(|error| error.into_parts())
}
