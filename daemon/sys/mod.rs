//! System calls that no library offers in the form that the sandbox needs. This is the only module
//! with `unsafe` code.
//!
//! Between the creation of a sandbox's processes and `execve`, their code shares memory with
//! another process (see [`process`]). So everything used there makes raw system calls. It allocates
//! nothing, takes no lock and calls no libc wrapper, which would write `errno` to thread-local
//! storage. rustix's Linux backend works that way too and is used wherever it has the call.
//! Ordinary processes use nix.
//!
//! Every function that other modules can call is safe: its types express what the kernel needs, or
//! it checks it.

#![allow(unsafe_code, reason = "the only module with it; the rest of the package denies it")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "the kernel takes registers: the call, not the type, gives a number its meaning"
)]

pub(crate) mod arch;
pub(crate) mod bpf;
pub(crate) mod call_watch;
pub(crate) mod denied_syscalls;
pub(crate) mod exec;
pub(crate) mod fd;
pub(crate) mod inherited_descriptor;
pub(crate) mod ipc;
pub(crate) mod landlock;
pub(crate) mod marked_receive;
pub(crate) mod mount;
pub(crate) mod network;
pub(crate) mod process;
pub(crate) mod process_arena;
pub(crate) mod project_quota;
pub(crate) mod readiness;
pub(crate) mod schedule;
pub(crate) mod signal;
mod syscall;
pub(crate) mod warm_shell;

pub(crate) use rustix::io::Errno;

/// Unit in which `stat` counts blocks, in bytes (inode(7)).
pub(crate) const STAT_BLOCK_BYTES: u64 = 512;

/// Converts nix's error number to rustix's, which the daemon uses.
pub(crate) fn from_nix(errno: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(errno as i32)
}

/// Sets the name of this process in `ps` (prctl(2), PR_SET_NAME).
pub(crate) fn set_process_name(name: &std::ffi::CStr) {
    let _best_effort = rustix::thread::set_name(name);
}
