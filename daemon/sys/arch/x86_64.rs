//! x86-64.

use std::{
    arch::{asm, naked_asm},
    ffi::c_void,
};

/// The architecture of 64-bit calls in seccomp(2): AUDIT_ARCH_X86_64 of linux/audit.h.
pub(crate) const AUDIT_ARCH: u32 = 0xc000_003e;
/// The number of vfork(2).
pub(crate) const VFORK_SYSCALL: Option<i64> = Some(libc::SYS_vfork);
/// Size of the largest page that a kernel can have as its smallest unit.
pub(in super::super) const MAX_PAGE_BYTES: usize = 4096;

/// Makes the system call `number`, and returns the kernel's return value.
///
/// # Safety
///
/// The arguments must be valid for the system call.
pub(in super::super) unsafe fn raw_syscall(number: i64, arguments: [usize; 6]) -> isize {
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
    // SAFETY: in the child rax is 0 and every other register as here, so it calls `entry` with
    // `argument` on the new stack. The caller has aligned the top of that stack as the ABI requires
    // before a call. `entry` never returns; ud2 would end the process if it did. In the parent the
    // sequence falls through. rcx and r11 are overwritten by the system call.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags,
            in("rsi") stack_top,
            in("rdx") pidfd,
            in("r10") 0,
            in("r8") 0,
            in("r12") entry,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Returns from a signal handler: rt_sigreturn(2), number 15.
#[unsafe(naked)]
pub(in super::super) extern "C" fn restore_context() {
    naked_asm!("mov eax, 15", "syscall")
}
