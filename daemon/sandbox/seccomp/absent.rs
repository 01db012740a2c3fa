//! System calls that a sandboxed command does not have, in groups with a reason each. They answer
//! ENOSYS, as a kernel without them does, because programs that use them then fall back to older
//! calls; EPERM would often end them.

use super::allowed::{SyscallGroup, recent};

/// The calls.
pub(super) const ABSENT_SYSCALLS: &[SyscallGroup] = &[
    SyscallGroup {
        reason: "The flags or the mode lie behind a pointer, where the filter cannot see namespaces and set-id bits.",
        calls: &[libc::SYS_clone3, libc::SYS_openat2],
    },
    SyscallGroup {
        reason: "Rings do what other calls do, past the filter of those calls, and had many flaws.",
        calls: &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register],
    },
    SyscallGroup {
        reason: "Asynchronous contexts are counted for the machine (fs.aio-max-nr): eight calls of one run take those of all.",
        // io_pgetevents_time64 is a call of 32-bit architectures alone.
        calls: &[
            libc::SYS_io_setup,
            libc::SYS_io_submit,
            libc::SYS_io_getevents,
            recent::IO_PGETEVENTS,
            libc::SYS_io_cancel,
            libc::SYS_io_destroy,
        ],
    },
    SyscallGroup {
        reason: "Secret memory belongs to no process that the watchdog of memory could look at.",
        calls: &[libc::SYS_memfd_secret],
    },
    SyscallGroup {
        reason: "Making and changing mounts, which a command must not.",
        calls: &[
            libc::SYS_open_tree,
            recent::OPEN_TREE_ATTR,
            libc::SYS_move_mount,
            libc::SYS_fsopen,
            libc::SYS_fsconfig,
            libc::SYS_fsmount,
            libc::SYS_fspick,
            libc::SYS_mount_setattr,
        ],
    },
];
