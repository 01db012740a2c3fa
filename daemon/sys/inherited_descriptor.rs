//! Descriptors that the process which started the daemon has passed to it.

use std::{
    io,
    os::fd::{BorrowedFd, FromRawFd as _, OwnedFd},
};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes a descriptor that the daemon was started with. Programs that it starts do not inherit it.
///
/// # Errors
///
/// Fails for a descriptor that is not open, that was taken before, or that the daemon has opened.
pub(crate) fn take_inherited_descriptor(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the value is used for two calls only, which fail if the descriptor is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(borrowed)?;
    // execve(2) closes descriptors with this flag, and every descriptor that the daemon opens has
    // it. So a value of the daemon owns this one.
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(io::Error::other("it was not passed by the program that started the daemon"));
    }
    fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and no value owns it, because it lacked the flag.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
