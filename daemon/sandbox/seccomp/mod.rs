//! Which system calls a command may make.
//!
//! An allowlist: what is neither in [`allowed`] nor decided here by its arguments answers EPERM.
//! What is in [`absent`], or newer than the lists, answers ENOSYS, so that programs fall back to what
//! they knew before.
//!
//! The filter is loaded in two parts, because the kernel compiles one anew for each sandbox: the large
//! part once, by the template, with the calls still open that building a sandbox needs; the small part
//! by each sandbox, closing those.
//!
//! # Kernel flaws that are not reachable
//!
//! Commands share the host's kernel, so that a flaw in it is a way out of any sandbox. The filter keeps
//! them from the parts that had most of them. Three flaws of 2026 let a process write into the page
//! cache of files that it may only read, those of other containers included:
//!
//! | flaw | mechanism | what commands are refused |
//! |---|---|---|
//! | Copy Fail, CVE-2026-31431 | `algif_aead` decrypts in place into pages that splice(2) has put into its socket | AF_ALG by socket(2) and socketpair(2); io_uring, which makes sockets too; 32-bit and x32 calls, whose numbers a filter could mistake |
//! | Dirty Frag, CVE-2026-43284 and CVE-2026-43500 | ESP and RxRPC decrypt in place what MSG_SPLICE_PAGES has put into a packet | NETLINK_XFRM and AF_KEY, without which there is no key for ESP; UDP_ENCAP, by which ESP arrives in UDP; AF_RXRPC; user and network namespaces, in which a command could configure any of them |
//! | Fragnesia, CVE-2026-46300 | ESP in TCP forgets, when it joins packets, that their pages are shared | TCP_ULP, whatever the name of the protocol; NETLINK_XFRM and namespaces as above |
//!
//! The test `cases_n1_n2_and_n3_copy_fail_dirty_frag_and_fragnesia_are_not_reachable` tries all of it, as
//! root and as an ordinary user, at L3, L2 and L1, and with the network `host`.
//! `case_n3b_little_of_the_kernel_is_offered_to_commands` tries the rest: every protocol of AF_INET and
//! AF_INET6 ([`sockets`]), asynchronous contexts and secret memory ([`absent`]), line disciplines, merged
//! pages, and the init's priority.

mod absent;
mod allowed;
pub(super) mod no_namespaces;
mod program;
mod sockets;

use self::{
    absent::ABSENT_SYSCALLS,
    allowed::{ALLOWED_SYSCALLS, LAST_KNOWN_SYSCALL},
    program::{
        ArgumentCondition, ArgumentDecision, ArgumentTest, REFUSE_EPERM, SyscallAction,
        SyscallVerdict, assemble,
    },
};
use crate::daemon::sys::{Errno, bpf::Instruction};

/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. CLONE_NEWTIME does not fit in
/// clone(2)'s flags.
const NAMESPACE_FLAGS: u32 = 0x7e02_0000;
/// S_ISUID and S_ISGID. In a workspace that is mounted id-mapped, a file with one of them would
/// belong to its owner on the host, perhaps root.
const SET_ID_BITS: u32 = 0o6000;
/// S_IFMT, S_IFCHR, S_IFBLK.
const FILE_TYPE: u32 = 0o170_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const BLOCK_DEVICE: u32 = 0o060_000;
/// O_CREAT, and the bit of O_TMPFILE that is not O_DIRECTORY: with neither, open(2) ignores its
/// mode.
const CREATE_FLAGS: u32 = 0o100 | 0o20_000_000;
/// The flags of clone(2) that say whether a thread shares the descriptors of its process.
const THREAD_FLAGS: u32 = (libc::CLONE_THREAD | libc::CLONE_FILES).cast_unsigned();
/// Not in the libc crate yet.
const PR_SET_MEMORY_MERGE: u32 = 67;

macro_rules! refuse_if {
    ($($condition:expr),+ $(,)?) => {
        SyscallAction::Decide(ArgumentDecision { tests: &[$(ArgumentTest { all: &[$condition], then: REFUSE_EPERM }),+], otherwise: SyscallVerdict::Allow })
    };
}

/// Refuses what is about the init (1 as the second argument) for a process or a group as target, and
/// whatever is about all processes of a user.
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

/// Calls decided by their arguments.
const ARGUMENT_DECIDED_SYSCALLS: &[(i64, SyscallAction)] = &[
    (libc::SYS_socket, sockets::SOCKET_ACTION),
    (libc::SYS_socketpair, sockets::SOCKET_ACTION),
    (libc::SYS_setsockopt, sockets::SOCKET_OPTION_ACTION),
    // TIOCSTI types into a terminal, TIOCLINUX pastes into a console. TIOCSETD loads line disciplines
    // by number (n_gsm, n_hdlc, slip and ppp each had a flaw that made root); which one lies behind a
    // pointer that seccomp cannot follow, so that setting N_TTY, which every terminal has already, is
    // refused too.
    (
        libc::SYS_ioctl,
        refuse_if!(
            ArgumentCondition::Equals(1, 0x5412),
            ArgumentCondition::Equals(1, 0x541c),
            ArgumentCondition::Equals(1, 0x5423),
        ),
    ),
    // A thread that takes descriptors of its own with it: what a run has open is counted by process.
    // EINVAL is what a kernel answers that does not know the flag.
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
    // Merging equal pages tells by its timing what other runs have in memory (KSM).
    (libc::SYS_prctl, refuse_if!(ArgumentCondition::Equals(0, PR_SET_MEMORY_MERGE))),
    (libc::SYS_madvise, refuse_if!(ArgumentCondition::Equals(2, libc::MADV_MERGEABLE as u32))),
    // Querying (0xffffffff), plain Linux, and UNAME26 variants; ADDR_NO_RANDOMIZE, which debuggers and
    // sanitizers (ThreadSanitizer where the kernel shuffles much) need, and which makes nothing easier
    // to attack but what the command itself executes; not READ_IMPLIES_EXEC.
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
    (libc::SYS_chmod, refuse_if!(ArgumentCondition::AnyOf(1, SET_ID_BITS))),
    (libc::SYS_fchmod, refuse_if!(ArgumentCondition::AnyOf(1, SET_ID_BITS))),
    (libc::SYS_fchmodat, refuse_if!(ArgumentCondition::AnyOf(2, SET_ID_BITS))),
    (libc::SYS_fchmodat2, refuse_if!(ArgumentCondition::AnyOf(2, SET_ID_BITS))),
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
        libc::SYS_mknod,
        refuse_if!(
            ArgumentCondition::MaskedEquals(1, FILE_TYPE, CHARACTER_DEVICE),
            ArgumentCondition::MaskedEquals(1, FILE_TYPE, BLOCK_DEVICE),
            ArgumentCondition::AnyOf(1, SET_ID_BITS),
        ),
    ),
    (
        libc::SYS_mknodat,
        refuse_if!(
            ArgumentCondition::MaskedEquals(2, FILE_TYPE, CHARACTER_DEVICE),
            ArgumentCondition::MaskedEquals(2, FILE_TYPE, BLOCK_DEVICE),
            ArgumentCondition::AnyOf(2, SET_ID_BITS),
        ),
    ),
    (libc::SYS_mkdir, SyscallAction::Allow),
    (libc::SYS_mkdirat, SyscallAction::Allow),
    // Process 1 is the sandbox's init: limiting, starving or moving it would be felt by the daemon
    // that waits for it.
    (libc::SYS_prlimit64, refuse_if!(ArgumentCondition::Equals(0, 1))),
    (libc::SYS_sched_setattr, refuse_if!(ArgumentCondition::Equals(0, 1))),
    (libc::SYS_sched_setscheduler, refuse_if!(ArgumentCondition::Equals(0, 1))),
    (libc::SYS_sched_setparam, refuse_if!(ArgumentCondition::Equals(0, 1))),
    (libc::SYS_sched_setaffinity, refuse_if!(ArgumentCondition::Equals(0, 1))),
    // These two reach it by its group and by its user as well: PRIO_PROCESS, PRIO_PGRP, and all of
    // PRIO_USER. A command still tunes itself and its children.
    (libc::SYS_setpriority, not_of_init!(0, 1, 2)),
    // IOPRIO_WHO_PROCESS, IOPRIO_WHO_PGRP, IOPRIO_WHO_USER.
    (libc::SYS_ioprio_set, not_of_init!(1, 2, 3)),
];

/// Calls with which one process looks into another. They stay in the run's process namespace, and a
/// debugger needs them. It does not need process_madvise(2), which could mark pages as mergeable.
const INSPECTION_SYSCALLS: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
];

/// Calls that give files to somebody, and which argument names whom.
const CHOWN_SYSCALLS: &[(i64, u32)] =
    &[(libc::SYS_chown, 1), (libc::SYS_lchown, 1), (libc::SYS_fchown, 1), (libc::SYS_fchownat, 2)];

/// Allows giving files to their owner, or nobody else. The kernel has no other user in this namespace
/// and would answer EINVAL, which fakeroot and others do not expect; EPERM is what an ordinary user is
/// answered anywhere.
fn chown_only_to((uid, gid): (u32, u32), argument: u32) -> SyscallAction {
    let same = u32::MAX;
    let tests =
        [(uid, gid), (uid, same), (same, gid), (same, same)].map(|(uid, gid)| ArgumentTest {
            // Filters are made once in a process.
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

/// Calls that building a sandbox needs and its command must not have. clone(2) is closed only with
/// flags that make namespaces.
const BUILD_SYSCALLS: &[(i64, SyscallAction)] = &[
    (
        libc::SYS_clone,
        refuse_if!(
            ArgumentCondition::AnyOf(0, NAMESPACE_FLAGS),
            // A thread with descriptors of its own: what it has open is counted by process.
            ArgumentCondition::MaskedEquals(0, THREAD_FLAGS, libc::CLONE_THREAD.cast_unsigned()),
        ),
    ),
    (libc::SYS_mount, SyscallAction::Refuse(Errno::PERM)),
    (libc::SYS_setns, SyscallAction::Refuse(Errno::PERM)),
    (libc::SYS_unshare, SyscallAction::Refuse(Errno::PERM)),
];

/// The two parts of the filter.
#[derive(Debug)]
pub(crate) struct SeccompFilters {
    /// Loaded by the template and inherited: everything but [`BUILDING`].
    pub(crate) inherited: Vec<Instruction>,
    /// Loaded by each sandbox: closes [`BUILDING`].
    pub(crate) closing: Vec<Instruction>,
}

impl SeccompFilters {
    /// Assembles the filters, for commands that are one user and group; `allow_ptrace` opens
    /// [`INSPECTION`].
    pub(crate) fn new(allow_ptrace: bool, user: (u32, u32)) -> Self {
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
        for (number, argument) in CHOWN_SYSCALLS {
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
        Self {
            inherited: assemble(&inherited, SyscallAction::Refuse(Errno::NOSYS)),
            closing: assemble(&closing, SyscallAction::Allow),
        }
    }
}

/// What is done with each call that the lists know, but for [`INSPECTION`] and [`BUILDING`].
fn action_table() -> Vec<SyscallAction> {
    let mut actions =
        vec![SyscallAction::Refuse(Errno::PERM); action_index(LAST_KNOWN_SYSCALL) + 1];
    let allowed = ALLOWED_SYSCALLS.iter().flat_map(|group| group.calls);
    let allowed = allowed.map(|number| (*number, SyscallAction::Allow));
    let absent = ABSENT_SYSCALLS.iter().flat_map(|group| group.calls);
    let absent = absent.map(|number| (*number, SyscallAction::Refuse(Errno::NOSYS)));
    for (number, action) in allowed.chain(absent).chain(ARGUMENT_DECIDED_SYSCALLS.iter().copied()) {
        if let Some(entry) = actions.get_mut(action_index(number)) {
            *entry = action;
        }
    }
    actions
}

fn action_index(number: i64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
