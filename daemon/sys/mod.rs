//! The only module with `unsafe`: system calls that no library offers in the form that the sandbox
//! needs.
//!
//! Two rules shape it. What runs between the creation of a sandbox's processes and `execve` shares
//! its memory with another process (see [`process`]), so everything used there makes raw system
//! calls: no libc wrapper that writes `errno` to thread-local storage, no allocation, no lock.
//! rustix's Linux backend works that way too and is used wherever it has the call. And each
//! function here is safe to call: what the kernel needs is expressed in its types, or checked.

#![allow(unsafe_code, reason = "the one place for it; everything else in the package denies it")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "the kernel takes registers: what a number means is said by the call, not by its type"
)]

pub(crate) mod bpf;
pub(crate) mod denied_syscalls;
pub(crate) mod exec;
pub(crate) mod fd;
pub(crate) mod landlock;
pub(crate) mod mount;
pub(crate) mod network;
pub(crate) mod process;
pub(crate) mod process_arena;
pub(crate) mod readiness;
pub(crate) mod schedule;
pub(crate) mod signal;
mod syscall;

pub(crate) use rustix::io::Errno;

/// Gives this process a name for `ps` (prctl(2), PR_SET_NAME).
pub(crate) fn set_process_name(name: &std::ffi::CStr) {
    // Nothing depends on it.
    let _named = rustix::thread::set_name(name);
}
