//! Loads a seccomp filter (seccomp(2)).

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
    let length = u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?;
    let program = FilterProgram { length, instructions: filter.as_ptr() };
    // SAFETY: the kernel reads one sock_fprog and `length` instructions, both alive here, and
    // checks the program itself.
    unsafe {
        syscall(
            libc::SYS_seccomp,
            [libc::SECCOMP_SET_MODE_FILTER as usize, 0, (&raw const program) as usize, 0, 0, 0],
        )
    }
    .map(|_| ())
}
