//! System calls that commands may make with any arguments, in groups with a reason each.
//!
//! The base is the default profile of the large container engines (moby's, 2026-11) without the
//! entries that need capabilities, as data. Calls whose arguments matter are in [`super`]. All
//! other calls are refused.

/// System calls that are allowed, or absent, for one reason.
#[derive(Debug)]
pub(super) struct SyscallGroup {
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "documentation; a test checks that it is never empty")
    )]
    pub(super) reason: &'static str,
    pub(super) calls: &'static [i64],
}

/// Call numbers that the libc crate does not have yet (arch/x86/entry/syscalls/syscall_64.tbl).
pub(super) mod recent {
    pub(in super::super) const URETPROBE: i64 = 335;
    pub(in super::super) const IO_PGETEVENTS: i64 = 333;
    pub(in super::super) const CACHESTAT: i64 = 451;
    pub(in super::super) const MAP_SHADOW_STACK: i64 = 453;
    pub(in super::super) const FUTEX_WAKE: i64 = 454;
    pub(in super::super) const FUTEX_WAIT: i64 = 455;
    pub(in super::super) const FUTEX_REQUEUE: i64 = 456;
    pub(in super::super) const STATMOUNT: i64 = 457;
    pub(in super::super) const LISTMOUNT: i64 = 458;
    pub(in super::super) const LSM_GET_SELF_ATTR: i64 = 459;
    pub(in super::super) const LSM_LIST_MODULES: i64 = 461;
    pub(in super::super) const SETXATTRAT: i64 = 463;
    pub(in super::super) const GETXATTRAT: i64 = 464;
    pub(in super::super) const LISTXATTRAT: i64 = 465;
    pub(in super::super) const REMOVEXATTRAT: i64 = 466;
    pub(in super::super) const OPEN_TREE_ATTR: i64 = 467;
    pub(in super::super) const FILE_GETATTR: i64 = 468;
    pub(in super::super) const FILE_SETATTR: i64 = 469;
}

/// The highest call number when the lists were written (Linux 6.18). Higher numbers return ENOSYS.
pub(super) const LAST_KNOWN_SYSCALL: i64 = recent::FILE_SETATTR;

pub(super) const ALLOWED_SYSCALLS: &[SyscallGroup] = &[
    SyscallGroup {
        reason: "Reading, writing and watching open files.",
        calls: &[
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_readv,
            libc::SYS_writev,
            libc::SYS_pread64,
            libc::SYS_pwrite64,
            libc::SYS_preadv,
            libc::SYS_pwritev,
            libc::SYS_preadv2,
            libc::SYS_pwritev2,
            libc::SYS_lseek,
            libc::SYS_sendfile,
            libc::SYS_splice,
            libc::SYS_tee,
            libc::SYS_vmsplice,
            libc::SYS_copy_file_range,
            libc::SYS_close,
            libc::SYS_dup,
            libc::SYS_dup2,
            libc::SYS_dup3,
            libc::SYS_fcntl,
            libc::SYS_flock,
            libc::SYS_fsync,
            libc::SYS_fdatasync,
            libc::SYS_sync,
            libc::SYS_syncfs,
            libc::SYS_sync_file_range,
            libc::SYS_fadvise64,
            libc::SYS_readahead,
            recent::CACHESTAT,
            libc::SYS_fallocate,
            libc::SYS_ftruncate,
            libc::SYS_truncate,
            libc::SYS_pipe,
            libc::SYS_pipe2,
            libc::SYS_poll,
            libc::SYS_ppoll,
            libc::SYS_select,
            libc::SYS_pselect6,
            libc::SYS_epoll_create,
            libc::SYS_epoll_create1,
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_wait,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_epoll_ctl_old,
            libc::SYS_epoll_wait_old,
            libc::SYS_eventfd,
            libc::SYS_eventfd2,
            libc::SYS_signalfd,
            libc::SYS_signalfd4,
            libc::SYS_timerfd_create,
            libc::SYS_timerfd_settime,
            libc::SYS_timerfd_gettime,
            libc::SYS_inotify_init,
            libc::SYS_inotify_init1,
            libc::SYS_inotify_add_watch,
            libc::SYS_inotify_rm_watch,
            libc::SYS_fanotify_mark,
        ],
    },
    SyscallGroup {
        reason: "Naming files: mounts, Landlock and plain permissions decide what can be reached.",
        calls: &[
            libc::SYS_stat,
            libc::SYS_lstat,
            libc::SYS_fstat,
            libc::SYS_newfstatat,
            libc::SYS_statx,
            libc::SYS_access,
            libc::SYS_faccessat,
            libc::SYS_faccessat2,
            libc::SYS_statfs,
            libc::SYS_fstatfs,
            libc::SYS_getdents,
            libc::SYS_getdents64,
            libc::SYS_getcwd,
            libc::SYS_chdir,
            libc::SYS_fchdir,
            libc::SYS_readlink,
            libc::SYS_readlinkat,
            libc::SYS_rename,
            libc::SYS_renameat,
            libc::SYS_renameat2,
            libc::SYS_rmdir,
            libc::SYS_unlink,
            libc::SYS_unlinkat,
            libc::SYS_link,
            libc::SYS_linkat,
            libc::SYS_symlink,
            libc::SYS_symlinkat,
            libc::SYS_chown,
            libc::SYS_fchown,
            libc::SYS_lchown,
            libc::SYS_fchownat,
            libc::SYS_utime,
            libc::SYS_utimes,
            libc::SYS_utimensat,
            libc::SYS_futimesat,
            libc::SYS_umask,
            libc::SYS_name_to_handle_at,
            libc::SYS_setxattr,
            libc::SYS_lsetxattr,
            libc::SYS_fsetxattr,
            libc::SYS_getxattr,
            libc::SYS_lgetxattr,
            libc::SYS_fgetxattr,
            libc::SYS_listxattr,
            libc::SYS_llistxattr,
            libc::SYS_flistxattr,
            libc::SYS_removexattr,
            libc::SYS_lremovexattr,
            libc::SYS_fremovexattr,
            recent::SETXATTRAT,
            recent::GETXATTRAT,
            recent::LISTXATTRAT,
            recent::REMOVEXATTRAT,
            recent::FILE_GETATTR,
            recent::FILE_SETATTR,
            recent::STATMOUNT,
            recent::LISTMOUNT,
        ],
    },
    SyscallGroup {
        reason: "Memory of the process itself.",
        calls: &[
            libc::SYS_brk,
            libc::SYS_mmap,
            libc::SYS_munmap,
            libc::SYS_mremap,
            libc::SYS_mprotect,
            libc::SYS_pkey_mprotect,
            libc::SYS_pkey_alloc,
            libc::SYS_pkey_free,
            libc::SYS_msync,
            libc::SYS_mincore,
            libc::SYS_mlock,
            libc::SYS_mlock2,
            libc::SYS_munlock,
            libc::SYS_mlockall,
            libc::SYS_munlockall,
            libc::SYS_mseal,
            recent::MAP_SHADOW_STACK,
            libc::SYS_remap_file_pages,
            libc::SYS_memfd_create,
            libc::SYS_membarrier,
            libc::SYS_get_mempolicy,
        ],
    },
    SyscallGroup {
        reason: "Processes and threads: they stay in the process namespace of the run.",
        calls: &[
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_exit,
            libc::SYS_exit_group,
            libc::SYS_wait4,
            libc::SYS_waitid,
            libc::SYS_kill,
            libc::SYS_tkill,
            libc::SYS_tgkill,
            libc::SYS_pidfd_open,
            libc::SYS_pidfd_send_signal,
            libc::SYS_process_mrelease,
            libc::SYS_getpid,
            libc::SYS_getppid,
            libc::SYS_gettid,
            libc::SYS_getpgid,
            libc::SYS_getpgrp,
            libc::SYS_setpgid,
            libc::SYS_getsid,
            libc::SYS_setsid,
            libc::SYS_set_tid_address,
            libc::SYS_set_thread_area,
            libc::SYS_get_thread_area,
            libc::SYS_arch_prctl,
            libc::SYS_seccomp,
            libc::SYS_landlock_create_ruleset,
            libc::SYS_landlock_add_rule,
            libc::SYS_landlock_restrict_self,
            libc::SYS_rseq,
            recent::URETPROBE,
            libc::SYS_restart_syscall,
            libc::SYS_futex,
            libc::SYS_futex_waitv,
            recent::FUTEX_WAKE,
            recent::FUTEX_WAIT,
            recent::FUTEX_REQUEUE,
            libc::SYS_set_robust_list,
            libc::SYS_get_robust_list,
            libc::SYS_getpriority,
            libc::SYS_ioprio_get,
            libc::SYS_getrlimit,
            libc::SYS_setrlimit,
            libc::SYS_getrusage,
            libc::SYS_times,
            libc::SYS_sched_yield,
            libc::SYS_sched_getparam,
            libc::SYS_sched_getscheduler,
            libc::SYS_sched_get_priority_max,
            libc::SYS_sched_get_priority_min,
            libc::SYS_sched_rr_get_interval,
            libc::SYS_sched_getaffinity,
            libc::SYS_sched_getattr,
            libc::SYS_getcpu,
        ],
    },
    SyscallGroup {
        reason: "Identity: without capabilities and with one user mapped, none of these gains anything.",
        calls: &[
            libc::SYS_getuid,
            libc::SYS_geteuid,
            libc::SYS_getgid,
            libc::SYS_getegid,
            libc::SYS_getresuid,
            libc::SYS_getresgid,
            libc::SYS_getgroups,
            libc::SYS_setuid,
            libc::SYS_setgid,
            libc::SYS_setreuid,
            libc::SYS_setregid,
            libc::SYS_setresuid,
            libc::SYS_setresgid,
            libc::SYS_setgroups,
            libc::SYS_setfsuid,
            libc::SYS_setfsgid,
            libc::SYS_capget,
            libc::SYS_capset,
            recent::LSM_GET_SELF_ATTR,
            recent::LSM_LIST_MODULES,
        ],
    },
    SyscallGroup {
        reason: "Signals.",
        calls: &[
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigreturn,
            libc::SYS_rt_sigpending,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_rt_sigqueueinfo,
            libc::SYS_rt_tgsigqueueinfo,
            libc::SYS_rt_sigsuspend,
            libc::SYS_sigaltstack,
            libc::SYS_pause,
            libc::SYS_alarm,
            libc::SYS_getitimer,
            libc::SYS_setitimer,
        ],
    },
    SyscallGroup {
        reason: "Time: reading it and waiting; adjtimex and clock_adjtime can only read without CAP_SYS_TIME.",
        calls: &[
            libc::SYS_time,
            libc::SYS_gettimeofday,
            libc::SYS_clock_gettime,
            libc::SYS_clock_getres,
            libc::SYS_clock_nanosleep,
            libc::SYS_nanosleep,
            libc::SYS_timer_create,
            libc::SYS_timer_settime,
            libc::SYS_timer_gettime,
            libc::SYS_timer_getoverrun,
            libc::SYS_timer_delete,
            libc::SYS_adjtimex,
            libc::SYS_clock_adjtime,
        ],
    },
    SyscallGroup {
        reason: "Use of existing sockets. The arguments of socket(2) decide which families can be made.",
        calls: &[
            libc::SYS_connect,
            libc::SYS_accept,
            libc::SYS_accept4,
            libc::SYS_bind,
            libc::SYS_listen,
            libc::SYS_shutdown,
            libc::SYS_sendto,
            libc::SYS_recvfrom,
            libc::SYS_sendmsg,
            libc::SYS_recvmsg,
            libc::SYS_sendmmsg,
            libc::SYS_recvmmsg,
            libc::SYS_getsockname,
            libc::SYS_getpeername,
            libc::SYS_getsockopt,
        ],
    },
    SyscallGroup {
        reason: "System V and POSIX message passing, in the IPC namespace of the run. With Landlock, POSIX queues are refused, because no path leads to their file system.",
        calls: &[
            libc::SYS_shmget,
            libc::SYS_shmat,
            libc::SYS_shmctl,
            libc::SYS_shmdt,
            libc::SYS_semget,
            libc::SYS_semop,
            libc::SYS_semtimedop,
            libc::SYS_semctl,
            libc::SYS_msgget,
            libc::SYS_msgsnd,
            libc::SYS_msgrcv,
            libc::SYS_msgctl,
            libc::SYS_mq_open,
            libc::SYS_mq_unlink,
            libc::SYS_mq_timedsend,
            libc::SYS_mq_timedreceive,
            libc::SYS_mq_notify,
            libc::SYS_mq_getsetattr,
        ],
    },
    SyscallGroup {
        reason: "Information about the system.",
        calls: &[libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrandom],
    },
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{super::absent::ABSENT_SYSCALLS, ALLOWED_SYSCALLS, LAST_KNOWN_SYSCALL};

    #[test]
    fn every_call_is_allowed_or_absent_once_with_a_reason() {
        let mut seen = HashSet::new();
        for group in ALLOWED_SYSCALLS.iter().chain(ABSENT_SYSCALLS) {
            assert!(!group.reason.is_empty());
            for call in group.calls {
                assert!((0..=LAST_KNOWN_SYSCALL).contains(call), "{call}");
                assert!(seen.insert(*call), "{call} is listed twice");
            }
        }
    }
}
