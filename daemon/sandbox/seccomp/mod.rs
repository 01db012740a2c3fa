//! The seccomp filter: which system calls a command may make.
//!
//! It is an allowlist. A call returns EPERM unless it is in [`allowed`] or its arguments are
//! accepted here. A call in [`absent`], or newer than the lists, returns ENOSYS, so that programs
//! fall back to older calls. Calls that only one architecture has are in [`arch`]; a call of another
//! architecture, such as a 32-bit one, kills the process.
//!
//! The filter is loaded in two parts, because the kernel compiles a filter each time that it is
//! loaded. The template loads the large part once, which still permits the calls that building a
//! sandbox needs. Each sandbox loads a small part, which refuses those.
//!
//! # Kernel flaws that are not reachable
//!
//! Commands share the host's kernel, so a flaw in it is a way out of any sandbox. The filter keeps
//! commands from the parts that had most flaws. Three flaws of 2026 let a process write into the
//! page cache of files that it may only read, including those of other containers:
//!
//! | flaw | mechanism | what commands are refused |
//! |---|---|---|
//! | Copy Fail, CVE-2026-31431 | `algif_aead` decrypts in place into pages that splice(2) has put into its socket | AF_ALG by socket(2) and socketpair(2); io_uring, which makes sockets too; 32-bit and x32 calls, whose numbers a filter could mistake |
//! | Dirty Frag, CVE-2026-43284 and CVE-2026-43500 | ESP and RxRPC decrypt in place what MSG_SPLICE_PAGES has put into a packet | NETLINK_XFRM and AF_KEY, without which there is no key for ESP; UDP_ENCAP, by which ESP arrives in UDP; AF_RXRPC; user and network namespaces, in which a command could configure any of them |
//! | Fragnesia, CVE-2026-46300 | ESP in TCP forgets, when it joins packets, that their pages are shared | TCP_ULP, whatever the name of the protocol; NETLINK_XFRM and namespaces as above |
//!
//! The test `cases_n1_n2_and_n3_command_cannot_reach_known_kernel_flaws` tries all of
//! this as root and as an ordinary user, at L3, L2 and L1, and with the network `host`.
//! `case_n3b_command_reaches_little_kernel_surface` tries the rest: every protocol of AF_INET
//! and AF_INET6 ([`sockets`]), asynchronous contexts and secret memory ([`absent`]), line
//! disciplines, merged pages, and the init's priority.

mod absent;
mod allowed;
mod arch;
mod file_bits;
pub(super) mod no_namespaces;
mod program;
mod sockets;
#[cfg(test)]
mod tests;

use self::{
    absent::ABSENT_SYSCALLS,
    allowed::{ALLOWED_SYSCALLS, LAST_KNOWN_SYSCALL, recent},
    file_bits::{BLOCK_DEVICE, CHARACTER_DEVICE, CREATE_FLAGS, FILE_TYPE, SET_ID_BITS},
    program::{
        ArgumentCondition, ArgumentDecision, ArgumentTest, REFUSE_EPERM, SyscallAction,
        SyscallVerdict, assemble, refuse_if, report_if,
    },
};
use crate::daemon::sys::{
    Errno, bpf::Instruction, marked_receive::ReceiveMark, project_quota::SET_ATTRIBUTES,
};

/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. CLONE_NEWTIME does not fit in
/// clone(2)'s flags.
const NAMESPACE_FLAGS: u32 = 0x7e02_0000;
/// Flags of clone(2) that decide whether a thread shares its process's descriptors.
const THREAD_FLAGS: u32 = (libc::CLONE_THREAD | libc::CLONE_FILES).cast_unsigned();
/// Not in the libc crate yet.
const PR_SET_MEMORY_MERGE: u32 = 67;

/// Refuses calls whose target is the init (1 as the second argument), as a process or a group, or
/// all processes of a user.
macro_rules! not_of_init {
    ($process:literal, $group:literal, $user:literal) => {
        SyscallAction::Decide(ArgumentDecision {
            tests: &[
                ArgumentTest {
                    all: &[ArgumentCondition::Equals(0, $process), ArgumentCondition::Equals(1, 1)],
                    then: REFUSE_EPERM,
                },
                ArgumentTest {
                    all: &[ArgumentCondition::Equals(0, $group), ArgumentCondition::Equals(1, 1)],
                    then: REFUSE_EPERM,
                },
                ArgumentTest { all: &[ArgumentCondition::Equals(0, $user)], then: REFUSE_EPERM },
            ],
            otherwise: SyscallVerdict::Allow,
        })
    };
}

/// Calls that are accepted or refused by their arguments.
const ARGUMENT_DECIDED_SYSCALLS: &[(i64, SyscallAction)] = &[
    (libc::SYS_socket, sockets::SOCKET_ACTION),
    (libc::SYS_socketpair, sockets::SOCKET_ACTION),
    (libc::SYS_setsockopt, sockets::SOCKET_OPTION_ACTION),
    // TIOCSTI types into a terminal. TIOCLINUX pastes into a console. TIOCSETD loads line
    // disciplines by number; n_gsm, n_hdlc, slip and ppp each had a flaw that gave root. The number
    // lies behind a pointer that seccomp cannot follow. So setting N_TTY, which every terminal has
    // already, is refused too. FS_IOC_FSSETXATTR takes a file out of its project quota, without a
    // user namespace (L1).
    (
        libc::SYS_ioctl,
        refuse_if!(
            ArgumentCondition::Equals(1, 0x5412),
            ArgumentCondition::Equals(1, 0x541c),
            ArgumentCondition::Equals(1, 0x5423),
            ArgumentCondition::Equals(1, SET_ATTRIBUTES),
        ),
    ),
    // CLOSE_RANGE_UNSHARE gives a thread its own descriptors, but open files are counted per
    // process. EINVAL is what a kernel without the flag returns.
    (
        libc::SYS_close_range,
        SyscallAction::Decide(ArgumentDecision {
            tests: &[ArgumentTest {
                all: &[ArgumentCondition::AnyOf(2, libc::CLOSE_RANGE_UNSHARE)],
                then: SyscallVerdict::Refuse(Errno::INVAL),
            }],
            otherwise: SyscallVerdict::Allow,
        }),
    ),
    // The timing of merged pages (KSM) reveals what other runs have in memory.
    (libc::SYS_prctl, refuse_if!(ArgumentCondition::Equals(0, PR_SET_MEMORY_MERGE))),
    (libc::SYS_madvise, refuse_if!(ArgumentCondition::Equals(2, libc::MADV_MERGEABLE as u32))),
    // Allows queries (0xffffffff), plain Linux, and UNAME26 variants. Allows ADDR_NO_RANDOMIZE,
    // which debuggers and sanitizers need (ThreadSanitizer where the kernel randomizes much); it
    // only weakens programs that the command itself executes. Refuses READ_IMPLIES_EXEC.
    (
        libc::SYS_personality,
        SyscallAction::Decide(ArgumentDecision {
            tests: &[
                ArgumentTest {
                    all: &[ArgumentCondition::Equals(0, 0)],
                    then: SyscallVerdict::Allow,
                },
                ArgumentTest {
                    all: &[ArgumentCondition::Equals(0, 8)],
                    then: SyscallVerdict::Allow,
                },
                ArgumentTest {
                    all: &[ArgumentCondition::Equals(0, 0x2_0000)],
                    then: SyscallVerdict::Allow,
                },
                ArgumentTest {
                    all: &[ArgumentCondition::Equals(0, 0x2_0008)],
                    then: SyscallVerdict::Allow,
                },
                ArgumentTest {
                    all: &[ArgumentCondition::Equals(0, 0x4_0000)],
                    then: SyscallVerdict::Allow,
                },
                ArgumentTest {
                    all: &[ArgumentCondition::Equals(0, 0xffff_ffff)],
                    then: SyscallVerdict::Allow,
                },
            ],
            otherwise: REFUSE_EPERM,
        }),
    ),
    (libc::SYS_fchmod, refuse_if!(ArgumentCondition::AnyOf(1, SET_ID_BITS))),
    (libc::SYS_fchmodat, refuse_if!(ArgumentCondition::AnyOf(2, SET_ID_BITS))),
    (recent::FCHMODAT2, refuse_if!(ArgumentCondition::AnyOf(2, SET_ID_BITS))),
    (
        libc::SYS_openat,
        SyscallAction::Decide(ArgumentDecision {
            tests: &[ArgumentTest {
                all: &[
                    ArgumentCondition::AnyOf(2, CREATE_FLAGS),
                    ArgumentCondition::AnyOf(3, SET_ID_BITS),
                ],
                then: REFUSE_EPERM,
            }],
            otherwise: SyscallVerdict::Allow,
        }),
    ),
    (
        libc::SYS_mknodat,
        refuse_if!(
            ArgumentCondition::MaskedEquals(2, FILE_TYPE, CHARACTER_DEVICE),
            ArgumentCondition::MaskedEquals(2, FILE_TYPE, BLOCK_DEVICE),
            ArgumentCondition::AnyOf(2, SET_ID_BITS),
        ),
    ),
    (libc::SYS_mkdirat, SyscallAction::Allow),
    // Process 1 is the sandbox's init. Limiting, starving or moving it would affect the daemon,
    // which waits for it.
    (libc::SYS_prlimit64, refuse_if!(ArgumentCondition::Equals(0, 1))),
    (libc::SYS_sched_setattr, refuse_if!(ArgumentCondition::Equals(0, 1))),
    (libc::SYS_sched_setscheduler, refuse_if!(ArgumentCondition::Equals(0, 1))),
    (libc::SYS_sched_setparam, refuse_if!(ArgumentCondition::Equals(0, 1))),
    (libc::SYS_sched_setaffinity, refuse_if!(ArgumentCondition::Equals(0, 1))),
    // In the group of the init, a command could change the init's priority with its own group's.
    (libc::SYS_setpgid, refuse_if!(ArgumentCondition::Equals(1, 1))),
    // These two calls also reach the init by its group and its user: PRIO_PROCESS, PRIO_PGRP, and
    // all of PRIO_USER. A command can still tune itself and its children.
    (libc::SYS_setpriority, not_of_init!(0, 1, 2)),
    // IOPRIO_WHO_PROCESS, IOPRIO_WHO_PGRP, IOPRIO_WHO_USER.
    (libc::SYS_ioprio_set, not_of_init!(1, 2, 3)),
];

/// Calls with which one process inspects another. They stay within the run's process namespace, and
/// debuggers need them. Not process_madvise(2), which could mark pages as mergeable.
const INSPECTION_SYSCALLS: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
];

/// Calls that change the owner of files, with the index of the argument for the user.
const CHOWN_SYSCALLS: &[(i64, u32)] = &[(libc::SYS_fchown, 1), (libc::SYS_fchownat, 2)];

/// Allows only the files' own user and group. Other ids are not mapped in this namespace, and the
/// kernel would return EINVAL, which fakeroot and others do not expect. EPERM is what an ordinary
/// user gets everywhere.
fn chown_only_to((uid, gid): (u32, u32), argument: u32) -> SyscallAction {
    let unchanged = u32::MAX;
    let ids = [(uid, gid), (uid, unchanged), (unchanged, gid), (unchanged, unchanged)];
    let tests = ids.map(|(uid, gid)| ArgumentTest {
        // Filters are made once per process.
        all: Box::leak(Box::new([
            ArgumentCondition::Equals(argument, uid),
            ArgumentCondition::Equals(argument + 1, gid),
        ])),
        then: SyscallVerdict::Allow,
    });
    SyscallAction::Decide(ArgumentDecision {
        tests: Box::leak(Box::new(tests)),
        otherwise: REFUSE_EPERM,
    })
}

/// Reports recvmsg(2), except the calls with which a command's process receives its request.
fn report_unless_marked(mark: ReceiveMark) -> SyscallAction {
    // Filters are made once per process.
    let halves = [(0, mark.socket), (2, mark.flags)];
    let all = Box::leak(Box::new([ArgumentCondition::UpperHalvesEqual(halves)]));
    SyscallAction::Decide(ArgumentDecision {
        tests: Box::leak(Box::new([ArgumentTest { all, then: SyscallVerdict::Allow }])),
        otherwise: SyscallVerdict::Report,
    })
}

/// Calls that building a sandbox needs and commands must not have. clone(2) is refused only with
/// namespace flags.
const BUILD_SYSCALLS: &[(i64, SyscallAction)] = &[
    (
        libc::SYS_clone,
        refuse_if!(
            ArgumentCondition::AnyOf(0, NAMESPACE_FLAGS),
            // A thread with its own descriptors: open files are counted per process.
            ArgumentCondition::MaskedEquals(0, THREAD_FLAGS, libc::CLONE_THREAD.cast_unsigned()),
        ),
    ),
    (libc::SYS_mount, SyscallAction::Refuse(Errno::PERM)),
    (libc::SYS_setns, SyscallAction::Refuse(Errno::PERM)),
    (libc::SYS_unshare, SyscallAction::Refuse(Errno::PERM)),
];

/// Calls after which a run may leave what its init cannot see:
///
/// * a descriptor that it gave to another run, or received from one and bound to its own files, as
///   inotify(7) does (unix(7), SCM_RIGHTS),
/// * the address of a signal in an open file that the daemon or another run holds (fcntl(2),
///   F_SETOWN): process groups of the next run have the same numbers,
/// * a POSIX message queue,
/// * another priority, limit or schedule of the template of a warm shell ([`super::warm_shell`]),
///   which later runs would inherit.
///
/// recvmsg(2) is one of them, but see [`report_unless_marked`].
const REPORTED_SYSCALLS: &[(i64, SyscallAction)] = &[
    (libc::SYS_sendmsg, SyscallAction::Report),
    (libc::SYS_sendmmsg, SyscallAction::Report),
    (libc::SYS_recvmmsg, SyscallAction::Report),
    (libc::SYS_mq_open, SyscallAction::Report),
    (
        libc::SYS_fcntl,
        report_if!(
            ArgumentCondition::Equals(1, F_SETOWN),
            ArgumentCondition::Equals(1, F_SETOWN_EX)
        ),
    ),
    (
        libc::SYS_ioctl,
        report_if!(
            ArgumentCondition::Equals(1, FIOSETOWN),
            ArgumentCondition::Equals(1, SIOCSPGRP)
        ),
    ),
    (libc::SYS_prlimit64, report_if!(ArgumentCondition::AnyOf(0, ANY_BIT))),
    (libc::SYS_sched_setattr, report_if!(ArgumentCondition::AnyOf(0, ANY_BIT))),
    (libc::SYS_sched_setscheduler, report_if!(ArgumentCondition::AnyOf(0, ANY_BIT))),
    (libc::SYS_sched_setparam, report_if!(ArgumentCondition::AnyOf(0, ANY_BIT))),
    (libc::SYS_sched_setaffinity, report_if!(ArgumentCondition::AnyOf(0, ANY_BIT))),
    (libc::SYS_setpriority, report_if!(ArgumentCondition::AnyOf(1, ANY_BIT))),
    (libc::SYS_ioprio_set, report_if!(ArgumentCondition::AnyOf(1, ANY_BIT))),
];
/// The number of a process or group. The caller itself is 0.
const ANY_BIT: u32 = u32::MAX;
const F_SETOWN: u32 = 8;
const F_SETOWN_EX: u32 = 15;
const FIOSETOWN: u32 = 0x8901;
const SIOCSPGRP: u32 = 0x8902;

/// The two parts of the filter.
#[derive(Debug)]
pub(crate) struct SeccompFilters {
    /// Loaded by the template and inherited: everything except [`BUILD_SYSCALLS`].
    pub(crate) inherited: Vec<Instruction>,
    /// Loaded by each sandbox: refuses [`BUILD_SYSCALLS`].
    pub(crate) closing: Vec<Instruction>,
    /// The same, for sandboxes that are recycled. It also reports [`REPORTED_SYSCALLS`].
    pub(crate) closing_and_reporting: Vec<Instruction>,
    /// The mark of the calls of recvmsg(2) that it does not report.
    pub(crate) receive_mark: ReceiveMark,
}

impl SeccompFilters {
    /// Assembles the filters for commands of one user and group. `allow_ptrace` allows
    /// [`INSPECTION_SYSCALLS`].
    pub(crate) fn new(allow_ptrace: bool, user: (u32, u32), mark: ReceiveMark) -> Self {
        let mut inherited = action_table();
        let mut set = |number: i64, action| {
            if let Some(entry) = inherited.get_mut(action_index(number)) {
                *entry = action;
            }
        };
        if allow_ptrace {
            for number in INSPECTION_SYSCALLS {
                set(*number, SyscallAction::Allow);
            }
        }
        for (number, argument) in CHOWN_SYSCALLS.iter().chain(arch::CHOWN_SYSCALLS) {
            set(*number, chown_only_to(user, *argument));
        }
        for (number, _) in BUILD_SYSCALLS {
            set(*number, SyscallAction::Allow);
        }

        let mut closing = vec![SyscallAction::Allow; action_index(LAST_KNOWN_SYSCALL) + 1];
        for (number, action) in BUILD_SYSCALLS {
            if let Some(entry) = closing.get_mut(action_index(*number)) {
                *entry = *action;
            }
        }

        let mut reporting = closing.clone();
        let marked = (libc::SYS_recvmsg, report_unless_marked(mark));
        for (number, action) in REPORTED_SYSCALLS.iter().chain([&marked]) {
            if let Some(entry) = reporting.get_mut(action_index(*number)) {
                *entry = *action;
            }
        }

        Self {
            inherited: assemble(&inherited, SyscallAction::Refuse(Errno::NOSYS)),
            closing: assemble(&closing, SyscallAction::Allow),
            closing_and_reporting: assemble(&reporting, SyscallAction::Allow),
            receive_mark: mark,
        }
    }
}

/// The action for each call number, without [`INSPECTION_SYSCALLS`] and [`BUILD_SYSCALLS`].
fn action_table() -> Vec<SyscallAction> {
    let mut actions =
        vec![SyscallAction::Refuse(Errno::PERM); action_index(LAST_KNOWN_SYSCALL) + 1];
    let allowed = ALLOWED_SYSCALLS
        .iter()
        .chain(arch::ALLOWED_SYSCALLS)
        .flat_map(|group| group.calls)
        .map(|number| (*number, SyscallAction::Allow));
    let absent = ABSENT_SYSCALLS
        .iter()
        .flat_map(|group| group.calls)
        .map(|number| (*number, SyscallAction::Refuse(Errno::NOSYS)));
    let decided = ARGUMENT_DECIDED_SYSCALLS.iter().chain(arch::ARGUMENT_DECIDED_SYSCALLS).copied();

    for (number, action) in allowed.chain(absent).chain(decided) {
        if let Some(entry) = actions.get_mut(action_index(number)) {
            *entry = action;
        }
    }
    actions
}

fn action_index(number: i64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
