//! System calls that only one architecture has. Everything else in the filter is the same on all.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as target;
#[cfg(target_arch = "x86_64")]
use x86_64 as target;

pub(super) use target::{
    ALLOWED_SYSCALLS, ARGUMENT_DECIDED_SYSCALLS, CHOWN_SYSCALLS, IO_PGETEVENTS,
};
#[cfg(test)]
pub(super) use target::{ARGUMENT_CASES, SUCCESSORS};
