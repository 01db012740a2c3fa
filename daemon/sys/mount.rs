//! mount_setattr(2), which rustix does not have.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use super::{Errno, syscall::syscall};

/// Attributes for [`set_attributes`]: `MOUNT_ATTR_*` of linux/mount.h.
pub(crate) mod attribute {
    pub(crate) const RDONLY: u64 = 0x1;
    /// Set-user-id bits and file capabilities have no effect.
    pub(crate) const NOSUID: u64 = 0x2;
    /// Device nodes cannot be opened.
    pub(crate) const NODEV: u64 = 0x4;
    /// Nothing can be executed.
    pub(crate) const NOEXEC: u64 = 0x8;
    /// Owners are mapped through a user namespace.
    pub(super) const IDMAP: u64 = 0x10_0000;
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Sets `attributes` on `tree` and all mounts below it, and makes them private. With `id_map`, a
/// user namespace, it also maps their owners.
///
/// Owners can be mapped only once, on a detached tree, and by a process with CAP_SYS_ADMIN over the
/// tree's file system.
pub(crate) fn set_attributes(
    tree: BorrowedFd<'_>,
    attributes: u64,
    id_map: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let attr = MountAttr {
        set: attributes | if id_map.is_some() { attribute::IDMAP } else { 0 },
        clear: 0,
        propagation: libc::MS_PRIVATE,
        user_namespace: id_map.map_or(0, |fd| fd.as_raw_fd() as u64),
    };

    let flags = (libc::AT_EMPTY_PATH | libc::AT_RECURSIVE) as usize;
    // SAFETY: the kernel reads an empty string and one mount_attr of the size given.
    unsafe {
        syscall(
            libc::SYS_mount_setattr,
            [
                tree.as_raw_fd() as usize,
                c"".as_ptr() as usize,
                flags,
                (&raw const attr) as usize,
                size_of::<MountAttr>(),
                0,
            ],
        )
    }
    .map(|_| ())
}
