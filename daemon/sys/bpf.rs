//! Loads a seccomp filter (seccomp(2)).

use std::os::fd::{FromRawFd as _, OwnedFd};

use super::{Errno, syscall::syscall};

/// One instruction of classic BPF, as `struct sock_filter` of linux/filter.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    /// Instructions to skip if a comparison holds.
    pub(crate) jump_true: u8,
    /// Instructions to skip if it does not hold.
    pub(crate) jump_false: u8,
    pub(crate) operand: u32,
}

#[repr(C)]
struct FilterProgram {
    length: u16,
    instructions: *const Instruction,
}

/// Restricts this thread and its descendants by `filter` for good. Needs no_new_privs, or
/// CAP_SYS_ADMIN in the user namespace.
pub(crate) fn load_filter(filter: &[Instruction]) -> Result<(), Errno> {
    load(filter, 0).map(|_| ())
}

/// Once a report is read, only a fatal signal interrupts the reported call.
const WAIT_KILLABLE: usize = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV as usize;

/// As [`load_filter`], for a filter that reports calls. Returns the descriptor that the reports come
/// from (seccomp_unotify(2)). Fails with EBUSY if an earlier filter of this thread has one.
pub(crate) fn load_reporting_filter(filter: &[Instruction]) -> Result<OwnedFd, Errno> {
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as usize;
    let listener = match load(filter, flags | WAIT_KILLABLE) {
        Err(Errno::INVAL) => load(filter, flags), // before Linux 5.19
        listener => listener,
    }?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as i32) })
}

fn load(filter: &[Instruction], flags: usize) -> Result<usize, Errno> {
    let length = u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?;
    let program = FilterProgram { length, instructions: filter.as_ptr() };
    // SAFETY: the kernel reads one sock_fprog and `length` instructions, both alive here, and
    // checks the program itself.
    unsafe {
        syscall(
            libc::SYS_seccomp,
            [libc::SECCOMP_SET_MODE_FILTER as usize, flags, (&raw const program) as usize, 0, 0, 0],
        )
    }
}
