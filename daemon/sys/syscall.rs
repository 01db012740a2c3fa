//! Raw system calls: no libc, no `errno`, no thread-local storage.

use super::{Errno, arch::raw_syscall};

/// Makes the system call `number`.
///
/// # Safety
///
/// The arguments must be valid for the system call: pointers must be valid for what the kernel
/// reads or writes through them.
pub(super) unsafe fn syscall(number: i64, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller guarantees the arguments.
    result_of(unsafe { raw_syscall(number, arguments) })
}

/// Converts the kernel's return value: -4095 to -1 are negated error numbers.
pub(super) fn result_of(result: isize) -> Result<usize, Errno> {
    match usize::try_from(result) {
        Ok(value) => Ok(value),
        Err(_) => Err(Errno::from_raw_os_error(i32::try_from(-result).unwrap_or(i32::MAX))),
    }
}
