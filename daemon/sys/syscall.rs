//! Raw system calls: no libc, no `errno`, no thread-local storage.

use std::arch::asm;

use super::Errno;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!(
    "the daemon supports Linux on x86-64 only; a port adds its system call sequence to daemon/sys and its call numbers to daemon/sandbox/seccomp"
);

/// Makes the system call `number`.
///
/// # Safety
///
/// The arguments must be valid for the system call: pointers must be valid for what the kernel
/// reads or writes through them.
pub(super) unsafe fn syscall(number: i64, arguments: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the x86-64 Linux calling convention: number in rax, arguments in rdi, rsi, rdx, r10,
    // r8, r9; rcx and r11 are overwritten. The caller guarantees the arguments.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result_of(result)
}

/// Converts the kernel's return value: -4095 to -1 are negated error numbers.
pub(super) fn result_of(result: isize) -> Result<usize, Errno> {
    match usize::try_from(result) {
        Ok(value) => Ok(value),
        Err(_) => Err(Errno::from_raw_os_error(i32::try_from(-result).unwrap_or(i32::MAX))),
    }
}
