//! Descriptors of a process that is about to become a sandbox.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use super::{Errno, syscall::syscall};

/// The number that the remaining descriptor gets.
pub(crate) const INHERITED_FD_NUMBER: i32 = 3;

/// Closes every descriptor of this process except 0, 1, 2 and `keep`, which becomes number 3 and is
/// closed by execve(2).
///
/// For new processes, in which no value owns a descriptor: the values of the parent are in their
/// memory, but must not be used.
pub(crate) fn close_all_except(keep: i32) -> Result<BorrowedFd<'static>, Errno> {
    if keep != INHERITED_FD_NUMBER {
        // SAFETY: dup3(2) takes integers.
        unsafe {
            syscall(
                libc::SYS_dup3,
                [
                    keep as u32 as usize,
                    INHERITED_FD_NUMBER as usize,
                    libc::O_CLOEXEC as usize,
                    0,
                    0,
                    0,
                ],
            )
        }?;
    }
    // SAFETY: close_range(2) takes integers.
    unsafe {
        syscall(
            libc::SYS_close_range,
            [INHERITED_FD_NUMBER as usize + 1, u32::MAX as usize, 0, 0, 0, 0],
        )
    }?;
    Ok(inherited_fd())
}

/// Closes every descriptor of this process except 0, 1, 2 and `keep`, which get the numbers from 3 on
/// and stay open across execve(2). For new processes, as [`close_all_except`].
pub(crate) fn keep_only<const N: usize>(keep: [i32; N]) -> Result<(), Errno> {
    let mut copies = [0; N];
    for (copy, fd) in copies.iter_mut().zip(keep) {
        // To numbers that none of them gets.
        let arguments =
            [fd as usize, libc::F_DUPFD as usize, INHERITED_FD_NUMBER as usize + N, 0, 0, 0];
        // SAFETY: this fcntl(2) takes integers.
        *copy = unsafe { syscall(libc::SYS_fcntl, arguments) }?;
    }
    for (number, copy) in (INHERITED_FD_NUMBER as usize..).zip(copies) {
        // SAFETY: dup3(2) takes integers.
        unsafe { syscall(libc::SYS_dup3, [copy, number, 0, 0, 0, 0]) }?;
    }
    let first_closed = INHERITED_FD_NUMBER as usize + N;
    // SAFETY: close_range(2) takes integers.
    unsafe { syscall(libc::SYS_close_range, [first_closed, u32::MAX as usize, 0, 0, 0, 0]) }?;
    Ok(())
}

/// Makes copies of descriptors that stay open across execve(2) and have these numbers, which no other
/// part of this process may use. Allocates nothing.
pub(crate) fn inherit_as<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    numbers: [i32; N],
) -> Result<(), Errno> {
    let first_unused = numbers.iter().copied().max().unwrap_or_default() + 1;
    let mut copies = [0; N];
    for (copy, fd) in copies.iter_mut().zip(fds) {
        // To a number that none of them gets.
        let arguments = [
            fd.as_raw_fd() as usize,
            libc::F_DUPFD_CLOEXEC as usize,
            first_unused as usize,
            0,
            0,
            0,
        ];
        // SAFETY: this fcntl(2) takes integers.
        *copy = unsafe { syscall(libc::SYS_fcntl, arguments) }?;
    }
    for (copy, number) in copies.into_iter().zip(numbers) {
        // SAFETY: dup3(2) takes integers.
        unsafe { syscall(libc::SYS_dup3, [copy, number as usize, 0, 0, 0, 0]) }?;
    }
    Ok(())
}

/// The descriptor that [`close_all_except`] has left open.
pub(crate) fn inherited_fd() -> BorrowedFd<'static> {
    // SAFETY: the processes of a sandbox keep number 3 open until they execute another program or
    // exit.
    unsafe { BorrowedFd::borrow_raw(INHERITED_FD_NUMBER) }
}
