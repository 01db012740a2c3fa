//! arm64.

use std::{
    arch::{asm, naked_asm},
    ffi::c_void,
};

/// The architecture of 64-bit calls in seccomp(2): AUDIT_ARCH_AARCH64 of linux/audit.h.
pub(crate) const AUDIT_ARCH: u32 = 0xc000_00b7;
/// There is no vfork(2): C libraries make it of clone(2).
pub(crate) const VFORK_SYSCALL: Option<i64> = None;
/// Size of the largest page that a kernel can have as its smallest unit. Kernels have pages of 4,
/// 16 or 64 KiB.
pub(in super::super) const MAX_PAGE_BYTES: usize = 64 * 1024;

/// Makes the system call `number`, and returns the kernel's return value.
///
/// # Safety
///
/// The arguments must be valid for the system call.
pub(in super::super) unsafe fn raw_syscall(number: i64, arguments: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the arm64 Linux calling convention: number in x8, arguments in x0 to x5, result in
    // x0. The kernel preserves the other registers. The caller guarantees the arguments.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") arguments[0] => result,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
            in("x5") arguments[5],
            options(nostack),
        );
    }
    result
}

/// Makes clone(2) with a stack for the child, which runs `entry(argument)` on it. Returns the
/// kernel's return value in the parent.
///
/// # Safety
///
/// As for [`spawn_sharing_memory`](super::super::process).
pub(in super::super) unsafe fn clone_onto_stack(
    flags: usize,
    stack_top: *mut c_void,
    pidfd: *mut i32,
    entry: unsafe extern "C" fn(*mut c_void) -> !,
    argument: *mut c_void,
) -> isize {
    let result: isize;
    // SAFETY: in the child x0 is 0 and every other register as here, so it calls `entry` with
    // `argument` on the new stack, whose top the caller has aligned to 16 bytes. The frame
    // pointer is 0, where backtraces end. `entry` never returns; brk would end the process
    // if it did. In the parent the sequence falls through.
    unsafe {
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x10",
            "blr x9",
            "brk 1",
            "2:",
            in("x8") libc::SYS_clone,
            inlateout("x0") flags => result,
            in("x1") stack_top,
            in("x2") pidfd,
            // The thread area and the address for the child's id, in this order: unused.
            in("x3") 0_usize,
            in("x4") 0_usize,
            in("x9") entry,
            in("x10") argument,
        );
    }
    result
}

/// Returns from a signal handler: rt_sigreturn(2), number 139.
#[unsafe(naked)]
pub(in super::super) extern "C" fn restore_context() {
    naked_asm!("mov x8, #139", "svc 0")
}
