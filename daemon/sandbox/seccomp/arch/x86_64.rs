//! System calls that only x86-64 has: older forms of calls that every architecture has, and calls
//! for its processor.

use super::super::{
    allowed::SyscallGroup,
    file_bits::{BLOCK_DEVICE, CHARACTER_DEVICE, CREATE_FLAGS, FILE_TYPE, SET_ID_BITS},
    program::{
        ArgumentCondition, ArgumentDecision, ArgumentTest, REFUSE_EPERM, SyscallAction,
        SyscallVerdict, refuse_if,
    },
};

/// Not in the libc crate for musl.
pub(in super::super) const IO_PGETEVENTS: i64 = 333;
/// Not in the libc crate yet.
const URETPROBE: i64 = 335;

pub(in super::super) const ALLOWED_SYSCALLS: &[SyscallGroup] = &[
    SyscallGroup {
        reason: "Older forms of calls on open files. C libraries and static programs use them.",
        calls: &[
            libc::SYS_dup2,
            libc::SYS_pipe,
            libc::SYS_poll,
            libc::SYS_select,
            libc::SYS_epoll_create,
            libc::SYS_epoll_wait,
            libc::SYS_epoll_ctl_old,
            libc::SYS_epoll_wait_old,
            libc::SYS_eventfd,
            libc::SYS_signalfd,
            libc::SYS_inotify_init,
        ],
    },
    SyscallGroup {
        reason: "Older forms of calls that name files, without a directory to start at.",
        calls: &[
            libc::SYS_stat,
            libc::SYS_lstat,
            libc::SYS_access,
            libc::SYS_getdents,
            libc::SYS_readlink,
            libc::SYS_rename,
            libc::SYS_rmdir,
            libc::SYS_unlink,
            libc::SYS_link,
            libc::SYS_symlink,
            libc::SYS_chown,
            libc::SYS_lchown,
            libc::SYS_utime,
            libc::SYS_utimes,
            libc::SYS_futimesat,
            libc::SYS_mkdir,
        ],
    },
    SyscallGroup {
        reason: "Older forms of calls for processes, signals and time.",
        calls: &[
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_getpgrp,
            libc::SYS_pause,
            libc::SYS_alarm,
            libc::SYS_time,
        ],
    },
    SyscallGroup {
        reason: "The processor: segments for thread-local storage, and returns from probed functions.",
        calls: &[
            libc::SYS_arch_prctl,
            libc::SYS_set_thread_area,
            libc::SYS_get_thread_area,
            URETPROBE,
        ],
    },
];

/// Older forms of calls whose arguments matter: as for the newer forms, without the directory.
pub(in super::super) const ARGUMENT_DECIDED_SYSCALLS: &[(i64, SyscallAction)] = &[
    (libc::SYS_chmod, refuse_if!(ArgumentCondition::AnyOf(1, SET_ID_BITS))),
    (libc::SYS_creat, refuse_if!(ArgumentCondition::AnyOf(1, SET_ID_BITS))),
    (
        libc::SYS_open,
        SyscallAction::Decide(ArgumentDecision {
            tests: &[ArgumentTest {
                all: &[
                    ArgumentCondition::AnyOf(1, CREATE_FLAGS),
                    ArgumentCondition::AnyOf(2, SET_ID_BITS),
                ],
                then: REFUSE_EPERM,
            }],
            otherwise: SyscallVerdict::Allow,
        }),
    ),
    (
        libc::SYS_mknod,
        refuse_if!(
            ArgumentCondition::MaskedEquals(1, FILE_TYPE, CHARACTER_DEVICE),
            ArgumentCondition::MaskedEquals(1, FILE_TYPE, BLOCK_DEVICE),
            ArgumentCondition::AnyOf(1, SET_ID_BITS),
        ),
    ),
];

/// Calls that change the owner of files, with the index of the argument for the user.
pub(in super::super) const CHOWN_SYSCALLS: &[(i64, u32)] =
    &[(libc::SYS_chown, 1), (libc::SYS_lchown, 1)];

/// Each call of this file that every architecture can express otherwise, with that call.
/// The others, for the processor, do nothing on another architecture.
#[cfg(test)]
pub(in super::super) const SUCCESSORS: &[(i64, i64)] = &[
    (libc::SYS_dup2, libc::SYS_dup3),
    (libc::SYS_pipe, libc::SYS_pipe2),
    (libc::SYS_poll, libc::SYS_ppoll),
    (libc::SYS_select, libc::SYS_pselect6),
    (libc::SYS_epoll_create, libc::SYS_epoll_create1),
    (libc::SYS_epoll_wait, libc::SYS_epoll_pwait),
    (libc::SYS_epoll_ctl_old, libc::SYS_epoll_ctl),
    (libc::SYS_epoll_wait_old, libc::SYS_epoll_pwait),
    (libc::SYS_eventfd, libc::SYS_eventfd2),
    (libc::SYS_signalfd, libc::SYS_signalfd4),
    (libc::SYS_inotify_init, libc::SYS_inotify_init1),
    (libc::SYS_stat, libc::SYS_newfstatat),
    (libc::SYS_lstat, libc::SYS_newfstatat),
    (libc::SYS_access, libc::SYS_faccessat),
    (libc::SYS_getdents, libc::SYS_getdents64),
    (libc::SYS_readlink, libc::SYS_readlinkat),
    (libc::SYS_rename, libc::SYS_renameat),
    (libc::SYS_rmdir, libc::SYS_unlinkat),
    (libc::SYS_unlink, libc::SYS_unlinkat),
    (libc::SYS_link, libc::SYS_linkat),
    (libc::SYS_symlink, libc::SYS_symlinkat),
    (libc::SYS_chown, libc::SYS_fchownat),
    (libc::SYS_lchown, libc::SYS_fchownat),
    (libc::SYS_utime, libc::SYS_utimensat),
    (libc::SYS_utimes, libc::SYS_utimensat),
    (libc::SYS_futimesat, libc::SYS_utimensat),
    (libc::SYS_mkdir, libc::SYS_mkdirat),
    (libc::SYS_fork, libc::SYS_clone),
    (libc::SYS_vfork, libc::SYS_clone),
    (libc::SYS_getpgrp, libc::SYS_getpgid),
    (libc::SYS_pause, libc::SYS_ppoll),
    (libc::SYS_alarm, libc::SYS_setitimer),
    (libc::SYS_time, libc::SYS_clock_gettime),
    (libc::SYS_chmod, libc::SYS_fchmodat),
    (libc::SYS_creat, libc::SYS_openat),
    (libc::SYS_open, libc::SYS_openat),
    (libc::SYS_mknod, libc::SYS_mknodat),
];

/// Cases of the older forms. Each is listed for the successor too.
#[cfg(test)]
pub(in super::super) const ARGUMENT_CASES: &[super::super::tests::ArgumentCase] = &[
    ("chmod u+s", libc::SYS_chmod, [0, 0o4755, 0, 0], libc::EPERM),
    ("chmod g+s", libc::SYS_chmod, [0, 0o2755, 0, 0], libc::EPERM),
    ("chmod, more bits", libc::SYS_chmod, [0, 0x7fff_0000_09ed, 0, 0], libc::EPERM),
    ("chmod", libc::SYS_chmod, [0, 0o1777, 0, 0], 0),
    ("open u+s", libc::SYS_open, [0, 0o102, 0o4755, 0], libc::EPERM),
    ("open nameless u+s", libc::SYS_open, [0, 0o20_200_002, 0o4755, 0], libc::EPERM),
    ("open existing", libc::SYS_open, [0, 0o2, 0o4755, 0], 0),
    ("creat u+s", libc::SYS_creat, [0, 0o4755, 0, 0], libc::EPERM),
    ("creat", libc::SYS_creat, [0, 0o755, 0, 0], 0),
    ("mknod u+s", libc::SYS_mknod, [0, 0o104_755, 0, 0], libc::EPERM),
    ("mknod block device", libc::SYS_mknod, [0, 0o060_600, 0x800, 0], libc::EPERM),
    ("mknod character device", libc::SYS_mknod, [0, 0o020_600, 0x103, 0], libc::EPERM),
    ("mknod", libc::SYS_mknod, [0, 0o010_600, 0, 0], 0),
    ("chown to root", libc::SYS_chown, [0, 0, 0, 0], libc::EPERM),
    ("chown to itself", libc::SYS_chown, [0, 1000, 1001, 0], 0),
    ("lchown to root", libc::SYS_lchown, [0, 0, 0, 0], libc::EPERM),
];
