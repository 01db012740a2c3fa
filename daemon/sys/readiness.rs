//! Telling the runtime to watch a descriptor.

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Registers `fd` with the runtime, to learn when it can be read.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the number behind an OwnedFd never changes, and it stays open until the AsyncFd,
    // which owns it, is dropped and has taken it out of the runtime's set.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}

/// Registers `fd` with the runtime, to learn when it can be written to.
pub(crate) fn watch_writes(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: as in `watch`.
    unsafe { AsyncFd::register_with_interest(fd, Interest::WRITABLE) }.map_err(io::Error::from)
}
