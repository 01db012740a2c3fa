//! Everything of the system interface that depends on the processor: register conventions, code
//! that runs on a new stack, and a few numbers. Call numbers come from the `libc` crate.
//!
//! An architecture is one file here, with the same items as the others, and one in
//! `daemon/sandbox/seccomp/arch` for the calls that only it has.

#[cfg(not(all(
    target_os = "linux",
    target_endian = "little",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!(
    "the daemon supports Linux on x86-64 and arm64 only; a port adds a file to daemon/sys/arch and one to daemon/sandbox/seccomp/arch"
);

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as target;
#[cfg(target_arch = "x86_64")]
use x86_64 as target;

pub(crate) use target::{AUDIT_ARCH, VFORK_SYSCALL};
pub(super) use target::{MAX_PAGE_BYTES, clone_onto_stack, raw_syscall, restore_context};
