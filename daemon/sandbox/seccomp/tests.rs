//! Evaluates the filters as the kernel does.

use std::collections::HashSet;

use super::{
    SeccompFilters,
    absent::ABSENT_SYSCALLS,
    allowed::{ALLOWED_SYSCALLS, LAST_KNOWN_SYSCALL, recent},
    arch, no_namespaces,
};
use crate::daemon::sys::{arch::AUDIT_ARCH, bpf::Instruction, marked_receive::ReceiveMark};

/// A call with arguments that the filter decides by: the case, the call, its first four arguments,
/// and the error number that it returns, or 0 if it is allowed.
pub(super) type ArgumentCase = (&'static str, i64, [u64; 4], i32);

const USER: (u32, u32) = (1000, 1001);
const MARK: ReceiveMark = ReceiveMark { socket: 7, flags: 9 };

/// What other programs can be on the same kernels: their architectures in seccomp(2).
const FOREIGN_ARCHITECTURES: &[(&str, u32)] = &[
    ("i386", 0x4000_0003),
    ("x86-64", 0xc000_003e),
    ("arm", 0x4000_0028),
    ("arm64", 0xc000_00b7),
    ("riscv64", 0xc000_00f3),
];

const ARGUMENT_CASES: &[ArgumentCase] = &[
    ("chmod u+s", libc::SYS_fchmodat, [0, 0, 0o4755, 0], libc::EPERM),
    ("chmod g+s", libc::SYS_fchmodat, [0, 0, 0o2755, 0], libc::EPERM),
    ("chmod, more bits", libc::SYS_fchmodat, [0, 0, 0x7fff_0000_09ed, 0], libc::EPERM),
    ("chmod", libc::SYS_fchmodat, [0, 0, 0o1777, 0], 0),
    ("fchmod u+s", libc::SYS_fchmod, [3, 0o4755, 0, 0], libc::EPERM),
    ("fchmodat2 u+s", recent::FCHMODAT2, [0, 0, 0o4755, 0], libc::EPERM),
    ("open u+s", libc::SYS_openat, [0, 0, 0o102, 0o4755], libc::EPERM),
    ("open nameless u+s", libc::SYS_openat, [0, 0, 0o20_200_002, 0o4755], libc::EPERM),
    ("open existing", libc::SYS_openat, [0, 0, 0o2, 0o4755], 0),
    ("creat u+s", libc::SYS_openat, [0, 0, 0o1101, 0o4755], libc::EPERM),
    ("creat", libc::SYS_openat, [0, 0, 0o1101, 0o755], 0),
    ("mknod u+s", libc::SYS_mknodat, [0, 0, 0o104_755, 0], libc::EPERM),
    ("mknod block device", libc::SYS_mknodat, [0, 0, 0o060_600, 0x800], libc::EPERM),
    ("mknod character device", libc::SYS_mknodat, [0, 0, 0o020_600, 0x103], libc::EPERM),
    ("mknod", libc::SYS_mknodat, [0, 0, 0o010_600, 0], 0),
    ("chown to root", libc::SYS_fchownat, [0, 0, 0, 0], libc::EPERM),
    ("chown to itself", libc::SYS_fchownat, [0, 0, 1000, 1001], 0),
    ("lchown to root", libc::SYS_fchownat, [0, 0, 0, 0], libc::EPERM),
    ("fchown to root", libc::SYS_fchown, [3, 0, 0, 0], libc::EPERM),
    ("setpgid to the group of init", libc::SYS_setpgid, [0, 1, 0, 0], libc::EPERM),
    ("setpgid, more bits", libc::SYS_setpgid, [0, 0x1_0000_0001, 0, 0], libc::EPERM),
    ("setpgid to a group of its own", libc::SYS_setpgid, [0, 0, 0, 0], 0),
    ("clone of a process", libc::SYS_clone, [17, 0, 0, 0], 0),
    ("clone of a thread", libc::SYS_clone, [0x3d_0f00, 0, 0, 0], 0),
    ("clone with a user namespace", libc::SYS_clone, [0x1000_0011, 0, 0, 0], libc::EPERM),
    ("clone of a thread with files", libc::SYS_clone, [0x3d_0b00, 0, 0, 0], libc::EPERM),
    ("clone3", libc::SYS_clone3, [0, 0, 0, 0], libc::ENOSYS),
    ("unshare", libc::SYS_unshare, [0, 0, 0, 0], libc::EPERM),
    ("setns", libc::SYS_setns, [3, 0, 0, 0], libc::EPERM),
    ("mount", libc::SYS_mount, [0, 0, 0, 0], libc::EPERM),
    ("open_tree", libc::SYS_open_tree, [0, 0, 0, 0], libc::ENOSYS),
    ("openat2", libc::SYS_openat2, [0, 0, 0, 0], libc::ENOSYS),
    ("io_uring_setup", libc::SYS_io_uring_setup, [1, 0, 0, 0], libc::ENOSYS),
    ("io_pgetevents", arch::IO_PGETEVENTS, [0, 0, 0, 0], libc::ENOSYS),
    ("bpf", libc::SYS_bpf, [0, 0, 0, 0], libc::EPERM),
    ("ptrace", libc::SYS_ptrace, [0, 0, 0, 0], libc::EPERM),
    ("keyctl", libc::SYS_keyctl, [0, 0, 0, 0], libc::EPERM),
    ("AF_INET", libc::SYS_socket, [2, 1, 0, 0], 0),
    ("AF_ALG", libc::SYS_socket, [38, 5, 0, 0], libc::EAFNOSUPPORT),
    ("AF_ALG, more bits", libc::SYS_socket, [0x1_0000_0026, 5, 0, 0], libc::EAFNOSUPPORT),
    ("AF_ALG pair", libc::SYS_socketpair, [38, 5, 0, 0], libc::EAFNOSUPPORT),
    ("raw socket", libc::SYS_socket, [2, 3, 1, 0], libc::EPERM),
    ("TCP_ULP", libc::SYS_setsockopt, [3, 6, 31, 0], libc::EPERM),
    ("TIOCSTI", libc::SYS_ioctl, [0, 0x5412, 0, 0], libc::EPERM),
    ("TIOCSTI, more bits", libc::SYS_ioctl, [0, 0x1_0000_5412, 0, 0], libc::EPERM),
    ("FS_IOC_FSSETXATTR", libc::SYS_ioctl, [0, 0x401c_5820, 0, 0], libc::EPERM),
    ("FIONREAD", libc::SYS_ioctl, [0, 0x541b, 0, 0], 0),
    ("limits of process 1", libc::SYS_prlimit64, [1, 0, 0, 0], libc::EPERM),
    ("own limits", libc::SYS_prlimit64, [0, 0, 0, 0], 0),
    ("READ_IMPLIES_EXEC", libc::SYS_personality, [0x40_0000, 0, 0, 0], libc::EPERM),
    ("a call of the future", LAST_KNOWN_SYSCALL + 1, [0, 0, 0, 0], libc::ENOSYS),
    ("the largest number", 0xffff_ffff, [0, 0, 0, 0], libc::ENOSYS),
];

/// The value that `filter` returns for a call: bpf(4), as far as the filters use it.
fn evaluate(filter: &[Instruction], arch: u32, number: i64, arguments: [u64; 4]) -> u32 {
    let mut data = [0; 64];
    let number = u32::try_from(number).unwrap();
    data[..4].copy_from_slice(&number.to_le_bytes());
    data[4..8].copy_from_slice(&arch.to_le_bytes());
    for (place, argument) in data[16..].chunks_exact_mut(8).zip(arguments) {
        place.copy_from_slice(&argument.to_le_bytes());
    }

    let (mut accumulator, mut index) = (0, 0);
    let mut next = 0;
    loop {
        let Instruction { code, jump_true, jump_false, operand } = filter[next];
        next += 1;
        let holds = match code {
            0x20 => {
                let offset = operand as usize;
                accumulator = u32::from_le_bytes(data[offset..offset + 4].try_into().unwrap());
                continue;
            }
            0x54 => {
                accumulator &= operand;
                continue;
            }
            0xa4 => {
                accumulator ^= operand;
                continue;
            }
            0x4c => {
                accumulator |= index;
                continue;
            }
            0x07 => {
                index = accumulator;
                continue;
            }
            0x05 => {
                next += operand as usize;
                continue;
            }
            0x06 => return operand,
            0x15 => accumulator == operand,
            0x35 => accumulator >= operand,
            0x45 => accumulator & operand != 0,
            _ => panic!("unknown instruction {code:#x}"),
        };
        next += usize::from(if holds { jump_true } else { jump_false });
    }
}

/// The error number that both parts of the filter return together, or 0. The kernel applies the
/// stricter of the two.
fn errno_of(filters: &SeccompFilters, number: i64, arguments: [u64; 4]) -> i32 {
    let values = [&filters.inherited, &filters.closing]
        .map(|filter| evaluate(filter, AUDIT_ARCH, number, arguments));
    match values.into_iter().min().unwrap() {
        libc::SECCOMP_RET_ALLOW => 0,
        value => {
            assert_eq!(value & 0xffff_0000, libc::SECCOMP_RET_ERRNO, "{number}: {value:#x}");
            (value & 0xffff).cast_signed()
        }
    }
}

#[test]
fn filters_decide_by_arguments() {
    let filters = SeccompFilters::new(false, USER, MARK);
    for (case, number, arguments, expected) in ARGUMENT_CASES.iter().chain(arch::ARGUMENT_CASES) {
        assert_eq!(errno_of(&filters, *number, *arguments), *expected, "{case}");
    }
}

/// A sandbox that is recycled refuses what others refuse, and reports what could outlive a run.
#[test]
fn recycled_sandboxes_report_what_could_outlive_a_run() {
    let filters = SeccompFilters::new(false, USER, MARK);
    let verdict =
        |number, arguments| evaluate(&filters.closing_and_reporting, AUDIT_ARCH, number, arguments);
    for (call, number, arguments) in [
        ("sendmsg", libc::SYS_sendmsg, [0; 4]),
        ("sendmmsg", libc::SYS_sendmmsg, [0; 4]),
        ("recvmsg", libc::SYS_recvmsg, [0; 4]),
        ("recvmsg, half of the mark", libc::SYS_recvmsg, [7 << 32, 0, 0, 0]),
        ("recvmsg, the other half", libc::SYS_recvmsg, [0, 0, 9 << 32, 0]),
        ("recvmsg, more than the mark", libc::SYS_recvmsg, [0x8000_0007 << 32, 0, 9 << 32, 0]),
        ("recvmmsg", libc::SYS_recvmmsg, [0; 4]),
        ("mq_open", libc::SYS_mq_open, [0; 4]),
        ("F_SETOWN", libc::SYS_fcntl, [0, 8, 0, 0]),
        ("F_SETOWN, more bits", libc::SYS_fcntl, [0, 0x1_0000_0008, 0, 0]),
        ("F_SETOWN_EX", libc::SYS_fcntl, [0, 15, 0, 0]),
        ("FIOSETOWN", libc::SYS_ioctl, [0, 0x8901, 0, 0]),
        ("SIOCSPGRP", libc::SYS_ioctl, [0, 0x8902, 0, 0]),
    ] {
        assert_eq!(verdict(number, arguments), libc::SECCOMP_RET_USER_NOTIF, "{call}");
    }
    let marked = [7 << 32 | 3, 0x1000, 9 << 32 | 0x4000_0000, 0];
    assert_eq!(verdict(libc::SYS_recvmsg, marked), libc::SECCOMP_RET_ALLOW);
    assert_eq!(verdict(libc::SYS_sendmsg, marked), libc::SECCOMP_RET_USER_NOTIF);
    for number in [libc::SYS_read, libc::SYS_fcntl, libc::SYS_ioctl, libc::SYS_sendto] {
        assert_eq!(verdict(number, [0; 4]), libc::SECCOMP_RET_ALLOW, "{number}");
    }
    for (number, _) in super::BUILD_SYSCALLS {
        let arguments = [u64::from(super::NAMESPACE_FLAGS), 0, 0, 0];
        let expected = evaluate(&filters.closing, AUDIT_ARCH, *number, arguments);
        assert_eq!(verdict(*number, arguments), expected, "{number}");
    }
}

#[test]
fn calls_of_other_architectures_kill_the_process() {
    let filters = SeccompFilters::new(true, USER, MARK);
    let programs = [
        filters.inherited,
        filters.closing,
        filters.closing_and_reporting,
        no_namespaces::assemble_filter(),
    ];
    let mut foreign = 0;
    for (name, architecture) in FOREIGN_ARCHITECTURES.iter().filter(|(_, id)| *id != AUDIT_ARCH) {
        foreign += 1;
        for filter in &programs {
            for number in [libc::SYS_getpid, libc::SYS_read, 0x4000_0000 | libc::SYS_getpid] {
                let value = evaluate(filter, *architecture, number, [0; 4]);
                assert_eq!(value, libc::SECCOMP_RET_KILL_PROCESS, "{name} {number}");
            }
        }
    }
    assert_eq!(foreign, FOREIGN_ARCHITECTURES.len() - 1, "this architecture is in the list");
}

/// The calls that only this architecture has have no case, and give no right, that another
/// architecture lacks.
#[test]
fn calls_of_one_architecture_have_counterparts_on_the_others() {
    let is_common = |number: i64| {
        ALLOWED_SYSCALLS.iter().any(|group| group.calls.contains(&number))
            || super::ARGUMENT_DECIDED_SYSCALLS.iter().any(|(call, _)| *call == number)
            || super::BUILD_SYSCALLS.iter().any(|(call, _)| *call == number)
    };
    let successor_of = |number: i64| {
        arch::SUCCESSORS.iter().find(|(call, _)| *call == number).map(|(_, successor)| *successor)
    };

    for (call, successor) in arch::SUCCESSORS {
        assert!(is_common(*successor), "{successor}, the successor of {call}, is refused");
        assert!(!is_common(*call), "{call} is in the common lists");
    }
    for (call, _) in arch::ARGUMENT_DECIDED_SYSCALLS {
        assert!(successor_of(*call).is_some(), "{call} has no successor");
    }
    for (call, _) in arch::CHOWN_SYSCALLS {
        assert!(successor_of(*call).is_some(), "{call} has no successor");
    }
    for (case, call, _, expected) in arch::ARGUMENT_CASES {
        let successor = successor_of(*call).unwrap();
        assert!(
            ARGUMENT_CASES.iter().any(|(other, number, _, errno)| other == case
                && *number == successor
                && errno == expected),
            "{case}: the successor {successor} has no such case"
        );
    }
}

#[test]
fn every_call_is_allowed_or_absent_once_with_a_reason() {
    let mut seen = HashSet::new();
    for group in ALLOWED_SYSCALLS.iter().chain(arch::ALLOWED_SYSCALLS).chain(ABSENT_SYSCALLS) {
        assert!(!group.reason.is_empty());
        for call in group.calls {
            assert!((0..=LAST_KNOWN_SYSCALL).contains(call), "{call}");
            assert!(seen.insert(*call), "{call} is listed twice");
        }
    }
}
