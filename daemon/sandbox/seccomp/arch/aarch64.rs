//! arm64 has no system call of its own (scripts/syscall.tbl): no older form of a call, and nothing
//! for the processor that prctl(2) does not do.
//!
//! Its 32-bit calls have other numbers and arrive as another architecture, which the filter kills.

use super::super::{allowed::SyscallGroup, program::SyscallAction};

/// Not in the libc crate for musl.
pub(in super::super) const IO_PGETEVENTS: i64 = 292;

pub(in super::super) const ALLOWED_SYSCALLS: &[SyscallGroup] = &[];
pub(in super::super) const ARGUMENT_DECIDED_SYSCALLS: &[(i64, SyscallAction)] = &[];
pub(in super::super) const CHOWN_SYSCALLS: &[(i64, u32)] = &[];

#[cfg(test)]
pub(in super::super) const SUCCESSORS: &[(i64, i64)] = &[];
#[cfg(test)]
pub(in super::super) const ARGUMENT_CASES: &[super::super::tests::ArgumentCase] = &[];
