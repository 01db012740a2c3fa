//! System calls that do not exist for commands, in groups with a reason each. They return ENOSYS,
//! as on a kernel without them, because programs then fall back to older calls. EPERM would make
//! many programs fail.

use super::{
    allowed::{SyscallGroup, recent},
    arch,
};

pub(super) const ABSENT_SYSCALLS: &[SyscallGroup] = &[
    SyscallGroup {
        reason: "The flags or the mode lie behind a pointer, so the filter cannot see namespace flags and set-id bits.",
        calls: &[libc::SYS_clone3, libc::SYS_openat2],
    },
    SyscallGroup {
        reason: "Rings execute other calls without the filter, and had many flaws.",
        calls: &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register],
    },
    SyscallGroup {
        reason: "Asynchronous contexts are limited per machine (fs.aio-max-nr): eight calls of one run use up the limit.",
        // io_pgetevents_time64 exists on 32-bit architectures only.
        calls: &[
            libc::SYS_io_setup,
            libc::SYS_io_submit,
            libc::SYS_io_getevents,
            arch::IO_PGETEVENTS,
            libc::SYS_io_cancel,
            libc::SYS_io_destroy,
        ],
    },
    SyscallGroup {
        reason: "Secret memory is not visible in any process that the memory watchdog can measure.",
        calls: &[libc::SYS_memfd_secret],
    },
    SyscallGroup {
        reason: "Commands must not make or change mounts.",
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
