//! The seccomp filter of L1 commands. Besides what every command is refused, it refuses what
//! namespaces isolate at the higher levels: sockets, message queues, and every call that tunes or
//! inspects processes by id.

use super::{
    BUILD_SYSCALLS, INSPECTION_SYSCALLS, action_index, action_table,
    program::{
        ArgumentCondition, ArgumentDecision, ArgumentTest, REFUSE_EPERM, SyscallAction,
        SyscallVerdict, assemble,
    },
    sockets::SOCKET_TYPE_MASK,
};
use crate::daemon::sys::{Errno, bpf::Instruction};

/// Allows a call only for the calling process: the id in this argument must be 0.
macro_rules! own_only {
    ($argument:literal) => {
        SyscallAction::Decide(ArgumentDecision {
            tests: &[ArgumentTest {
                all: &[ArgumentCondition::Equals($argument, 0)],
                then: SyscallVerdict::Allow,
            }],
            otherwise: REFUSE_EPERM,
        })
    };
}

/// Allows a call only for the calling process or its group (0 as the second argument), for these
/// kinds of target.
macro_rules! own_of_kind {
    ($($kind:literal),+) => {
        SyscallAction::Decide(ArgumentDecision {
            tests: &[$(ArgumentTest {
                all: &[ArgumentCondition::Equals(0, $kind), ArgumentCondition::Equals(1, 0)],
                then: SyscallVerdict::Allow,
            }),+],
            otherwise: REFUSE_EPERM,
        })
    };
}

const REFUSE_FAMILY: SyscallVerdict = SyscallVerdict::Refuse(Errno::AFNOSUPPORT);

/// Actions that replace those of the higher levels.
const OVERRIDDEN_SYSCALLS: &[(i64, SyscallAction)] = &[
    // Landlock mediates neither sockets with a path nor UDP.
    (libc::SYS_socket, SyscallAction::Refuse(Errno::AFNOSUPPORT)),
    // Pairs of connected sockets stay connected. Datagram pairs are refused: they could be
    // reconnected.
    (
        libc::SYS_socketpair,
        SyscallAction::Decide(ArgumentDecision {
            tests: &[
                ArgumentTest {
                    all: &[
                        ArgumentCondition::Equals(0, libc::AF_UNIX as u32),
                        ArgumentCondition::MaskedEquals(
                            1,
                            SOCKET_TYPE_MASK,
                            libc::SOCK_STREAM as u32,
                        ),
                    ],
                    then: SyscallVerdict::Allow,
                },
                ArgumentTest {
                    all: &[
                        ArgumentCondition::Equals(0, libc::AF_UNIX as u32),
                        ArgumentCondition::MaskedEquals(
                            1,
                            SOCKET_TYPE_MASK,
                            libc::SOCK_SEQPACKET as u32,
                        ),
                    ],
                    then: SyscallVerdict::Allow,
                },
            ],
            otherwise: REFUSE_FAMILY,
        }),
    ),
    (libc::SYS_connect, SyscallAction::Refuse(Errno::PERM)),
    (libc::SYS_bind, SyscallAction::Refuse(Errno::PERM)),
    (libc::SYS_listen, SyscallAction::Refuse(Errno::PERM)),
    (libc::SYS_accept, SyscallAction::Refuse(Errno::PERM)),
    (libc::SYS_accept4, SyscallAction::Refuse(Errno::PERM)),
    // The daemon may have the commands' user. These calls could then reach it.
    (libc::SYS_prlimit64, own_only!(0)),
    (libc::SYS_sched_setattr, own_only!(0)),
    (libc::SYS_sched_setscheduler, own_only!(0)),
    (libc::SYS_sched_setparam, own_only!(0)),
    (libc::SYS_sched_setaffinity, own_only!(0)),
    // PRIO_PROCESS, PRIO_PGRP (a command's group is its own). Not PRIO_USER.
    (libc::SYS_setpriority, own_of_kind!(0, 1)),
    // IOPRIO_WHO_PROCESS, IOPRIO_WHO_PGRP; not IOPRIO_WHO_USER.
    (libc::SYS_ioprio_set, own_of_kind!(1, 2)),
    (libc::SYS_process_mrelease, SyscallAction::Refuse(Errno::PERM)),
];

/// System V and POSIX message passing: the objects outlive the run, in a namespace shared with the
/// daemon.
const MESSAGE_QUEUE_SYSCALLS: &[i64] = &[
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
];

pub(in super::super) fn assemble_filter() -> Vec<Instruction> {
    let mut actions = action_table();
    let refused = MESSAGE_QUEUE_SYSCALLS
        .iter()
        .chain(INSPECTION_SYSCALLS)
        .map(|number| (*number, SyscallAction::Refuse(Errno::PERM)));
    let overridden = OVERRIDDEN_SYSCALLS.iter().chain(BUILD_SYSCALLS).copied();

    for (number, action) in refused.chain(overridden) {
        if let Some(entry) = actions.get_mut(action_index(number)) {
            *entry = action;
        }
    }
    assemble(&actions, SyscallAction::Refuse(Errno::NOSYS))
}
