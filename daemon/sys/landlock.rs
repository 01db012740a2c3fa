//! Landlock's three system calls (Documentation/userspace-api/landlock.rst).
//!
//! The crate `landlock` allocates, and the sandbox's init must not (see [`super`]).

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use super::{Errno, syscall::syscall};

const CREATE_RULESET_VERSION: usize = 1;
const RULE_PATH_BENEATH: usize = 1;

/// What a ruleset restricts: `struct landlock_ruleset_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RulesetAttributes {
    /// File rights that are refused unless a rule grants them.
    pub(crate) handled_access_fs: u64,
    /// Network rights that are refused unless a rule grants them.
    pub(crate) handled_access_net: u64,
    /// Scopes that are restricted to the domain.
    pub(crate) scoped: u64,
}

#[repr(C, packed)]
struct PathBeneathAttributes {
    allowed_access: u64,
    parent: i32,
}

/// Landlock ABI version of the kernel; 0 if it has none or Landlock is disabled.
pub(crate) fn abi_version() -> u32 {
    // SAFETY: with a null pointer, size 0 and this flag the call only returns the version.
    unsafe { syscall(libc::SYS_landlock_create_ruleset, [0, 0, CREATE_RULESET_VERSION, 0, 0, 0]) }
        .ok()
        .and_then(|version| u32::try_from(version).ok())
        .unwrap_or(0)
}

/// Creates a ruleset with `attributes`, of which it passes as many bytes as the kernel's `abi`
/// knows.
pub(crate) fn create_ruleset(attributes: &RulesetAttributes, abi: u32) -> Result<OwnedFd, Errno> {
    let size = match abi {
        0..=3 => 8,
        4 | 5 => 16,
        _ => 24,
    };
    // SAFETY: the kernel reads `size` bytes, at most those of `attributes`.
    let fd = unsafe {
        syscall(
            libc::SYS_landlock_create_ruleset,
            [std::ptr::from_ref(attributes) as usize, size, 0, 0, 0, 0],
        )
    }?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
}

/// Grants `allowed` rights below `parent`.
pub(crate) fn allow_beneath(
    ruleset: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    allowed: u64,
) -> Result<(), Errno> {
    let rule = PathBeneathAttributes { allowed_access: allowed, parent: parent.as_raw_fd() };
    // SAFETY: the kernel reads one landlock_path_beneath_attr, which is packed as here.
    unsafe {
        syscall(
            libc::SYS_landlock_add_rule,
            [ruleset.as_raw_fd() as usize, RULE_PATH_BENEATH, (&raw const rule) as usize, 0, 0, 0],
        )
    }
    .map(|_| ())
}

/// Restricts this thread and its descendants by `ruleset` for good.
pub(crate) fn restrict_self(ruleset: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the call takes a descriptor and flags.
    unsafe {
        syscall(libc::SYS_landlock_restrict_self, [ruleset.as_raw_fd() as usize, 0, 0, 0, 0, 0])
    }
    .map(|_| ())
}
