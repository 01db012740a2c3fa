//! Descriptors of a process that is about to become a sandbox.

use std::os::fd::BorrowedFd;

use super::{Errno, syscall::syscall};

/// Number that the one descriptor that is kept gets.
pub(crate) const KEPT_FD_NUMBER: i32 = 3;

/// Closes every descriptor of this process but 0, 1, 2 and `keep`, which becomes number 3 and is
/// not passed on by execve(2).
///
/// For processes that have just been made and own no descriptor through any value: those of their
/// maker are in their memory, but not theirs to use.
pub(crate) fn close_all_except(keep: i32) -> Result<BorrowedFd<'static>, Errno> {
    if keep != KEPT_FD_NUMBER {
        // SAFETY: dup3(2) takes integers.
        unsafe {
            syscall(
                libc::SYS_dup3,
                [keep as u32 as usize, KEPT_FD_NUMBER as usize, libc::O_CLOEXEC as usize, 0, 0, 0],
            )
        }?;
    }
    // SAFETY: close_range(2) takes integers.
    unsafe {
        syscall(libc::SYS_close_range, [KEPT_FD_NUMBER as usize + 1, u32::MAX as usize, 0, 0, 0, 0])
    }?;
    Ok(kept_fd())
}

/// What [`keep_only`] kept.
pub(crate) fn kept_fd() -> BorrowedFd<'static> {
    // SAFETY: the processes of a sandbox keep number 3 open until they execute another program or
    // exit.
    unsafe { BorrowedFd::borrow_raw(KEPT_FD_NUMBER) }
}
