//! The probe that verifies the isolation. It runs at startup in a real sandbox, in the process that
//! would become a command.
//!
//! Like everything in that process, it allocates nothing. It reports one bit for each failed check.
//! The level of the sandbox decides which checks apply.

use std::{
    ffi::{CStr, CString},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use rustix::{
    fs::{Access, AtFlags, CWD, Mode, OFlags, access, open, statat},
    mount::{MountFlags, mount},
    net::{
        AddressFamily, RawAddressFamily, SocketFlags, SocketType, connect, socket_with, socketpair,
    },
    process::{Pid, chroot, getgid, getpid, getppid, getuid, test_kill_process},
    system::uname,
    thread::{SecureComputingMode, secure_computing_mode},
};

use super::{
    capabilities,
    level::IsolationLevel,
    plan::{self, NetworkMode, SandboxPlan},
    proxy_listener::PROXY_PORT,
    stage::{Stage, StageFailure},
};
use crate::daemon::sys::{Errno, denied_syscalls, process::run_in_fork};

#[derive(Debug)]
struct ProbeCheck {
    name: &'static str,
    passes: fn() -> bool,
}

/// Skipped with the daemon's network.
const NO_ROUTE_CHECK: &str = "there is no route to the metadata address";
/// The host name is a convenience, not a boundary: if this check fails, the level stays and the
/// layer `uts_namespace` reports it.
pub(super) const HOST_NAME_CHECK: &str = "the host name is jig";
/// Only with the network `proxy`.
const PROXY_CHECK: &str = "the proxy can be connected to";

const COMMON_CHECKS: &[ProbeCheck] = &[
    ProbeCheck {
        name: "the command is not root",
        passes: || !getuid().is_root() && !getgid().is_root(),
    },
    ProbeCheck {
        name: "a seccomp filter is on",
        passes: || secure_computing_mode() == Ok(SecureComputingMode::Filter),
    },
    ProbeCheck {
        name: "unshare(CLONE_NEWUSER) returns EPERM",
        passes: || denied_syscalls::unshare_user_namespace() == Errno::PERM,
    },
    ProbeCheck {
        name: "mount returns EPERM",
        passes: || {
            mount(c"tmpfs", c"/tmp", c"tmpfs", MountFlags::empty(), None) == Err(Errno::PERM)
        },
    },
    ProbeCheck {
        name: "clone3 returns ENOSYS",
        passes: || denied_syscalls::clone3() == Errno::NOSYS,
    },
    ProbeCheck {
        name: "keyctl returns EPERM",
        passes: || denied_syscalls::keyctl() == Errno::PERM,
    },
    ProbeCheck {
        name: "io_uring_setup returns ENOSYS",
        passes: || denied_syscalls::io_uring_setup() == Errno::NOSYS,
    },
    ProbeCheck { name: "bpf returns EPERM", passes: || denied_syscalls::bpf() == Errno::PERM },
    ProbeCheck {
        name: "ioctl(TIOCSTI) returns EPERM",
        passes: || denied_syscalls::tiocsti() == Errno::PERM,
    },
    ProbeCheck {
        name: "AF_VSOCK sockets cannot be made",
        passes: || socket_is_refused(libc::AF_VSOCK),
    },
    ProbeCheck {
        name: "AF_ALG sockets cannot be made",
        passes: || socket_is_refused(libc::AF_ALG),
    },
    ProbeCheck {
        name: "AF_PACKET sockets cannot be made",
        passes: || socket_is_refused(libc::AF_PACKET),
    },
    ProbeCheck {
        name: "only the standard streams and the control socket are open",
        passes: has_only_expected_descriptors,
    },
    ProbeCheck { name: "chroot returns EPERM", passes: || chroot(c"/") == Err(Errno::PERM) },
];

/// Checks of sandboxes with their own namespaces (L2, L3).
const NAMESPACE_CHECKS: &[ProbeCheck] = &[
    ProbeCheck {
        name: "the command is process 2 of its own process namespace",
        passes: || getpid().as_raw_nonzero().get() == 2,
    },
    ProbeCheck {
        name: "all capability sets are empty and no_new_privs is on",
        passes: || capabilities::check_all_sets_empty().is_ok(),
    },
    ProbeCheck { name: NO_ROUTE_CHECK, passes: has_no_route },
    ProbeCheck { name: PROXY_CHECK, passes: proxy_is_reachable },
    ProbeCheck {
        name: HOST_NAME_CHECK,
        passes: || uname().nodename().to_bytes() == plan::SANDBOX_HOST_NAME.as_bytes(),
    },
    ProbeCheck {
        name: "the root directory is read-only",
        passes: || cannot_create(c"/.probe", Errno::ROFS),
    },
    ProbeCheck { name: "/usr is read-only", passes: || cannot_create(c"/usr/.probe", Errno::ROFS) },
    ProbeCheck { name: "/sys does not exist", passes: || is_absent(c"/sys") },
];

/// Checks of the run's own `/proc` (L3).
const FRESH_PROC_CHECKS: &[ProbeCheck] = &[
    ProbeCheck {
        name: "the init's memory, descriptors and environment cannot be opened",
        passes: || {
            check_in_fork(|| {
                [c"/proc/1/mem", c"/proc/1/fd/3", c"/proc/1/environ"]
                    .iter()
                    .all(|file| cannot_open(file))
            })
        },
    },
    ProbeCheck { name: "there is no third process", passes: || is_absent(c"/proc/3") },
];

/// Checks of the daemon's `/proc` in the sandbox (L1, L2).
const SHARED_PROC_CHECKS: &[ProbeCheck] = &[ProbeCheck {
    name: "nothing in /proc can be written",
    passes: || {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        matches!(
            open(c"/proc/self/oom_score_adj", flags, Mode::empty()),
            Err(Errno::ROFS | Errno::ACCESS)
        )
    },
}];

/// Checks of sandboxes in the daemon's own namespaces (L1).
const NO_NAMESPACES_CHECKS: &[ProbeCheck] = &[
    ProbeCheck {
        name: "no capability is held and no_new_privs is on",
        passes: || capabilities::check_dropped().is_ok(),
    },
    ProbeCheck {
        name: "no socket can be made",
        passes: || {
            [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]
                .into_iter()
                .all(socket_is_refused)
        },
    },
    ProbeCheck {
        name: "no pair of datagram sockets can be made",
        passes: || {
            let pair =
                socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
            matches!(pair, Err(Errno::AFNOSUPPORT))
        },
    },
    ProbeCheck { name: "the root directory cannot be listed", passes: || cannot_open(c"/") },
    ProbeCheck {
        name: "nothing can be made in the system's directories",
        passes: || {
            [c"/.probe", c"/usr/.probe", c"/etc/.probe", c"/tmp/.probe"]
                .iter()
                .all(|path| cannot_create(path, Errno::ROFS))
        },
    },
    ProbeCheck {
        name: "message passing returns EPERM",
        passes: || {
            denied_syscalls::shmget() == Errno::PERM && denied_syscalls::mq_open() == Errno::PERM
        },
    },
    ProbeCheck {
        name: "ptrace and process_vm_readv return EPERM",
        passes: || {
            denied_syscalls::ptrace() == Errno::PERM
                && denied_syscalls::process_vm_readv() == Errno::PERM
        },
    },
    ProbeCheck {
        name: "tuning another process returns EPERM",
        passes: || getppid().is_some_and(|parent| denied_syscalls::process_tuning(parent).is_ok()),
    },
    ProbeCheck {
        name: "the L1 init cannot be signalled",
        passes: || getppid().is_some_and(|parent| test_kill_process(parent) == Err(Errno::PERM)),
    },
];

/// Files and processes of the daemon that commands can name but must not reach.
#[derive(Debug, Default)]
pub(super) struct GuardedTargets {
    files: Vec<CString>,
    processes: Vec<Pid>,
}

/// Files in `/proc/PID` that reveal a process's data or change what it does.
const GUARDED_PROC_FILES: &[&str] =
    &["mem", "environ", "maps", "auxv", "fd/0", "fd/2", "root", "cwd", "exe", "io", "ns/net"];

impl GuardedTargets {
    /// Collects the targets for levels where the sandbox shows the daemon's `/proc`. Processes are
    /// included at L1 only, where process ids mean the same in the sandbox.
    pub(super) fn collect(plan: &SandboxPlan, level: IsolationLevel) -> Result<Self, StageFailure> {
        let proc_files = |process: &u32| {
            let directory = format!("/proc/{process}");
            GUARDED_PROC_FILES.iter().map(move |file| format!("{directory}/{file}"))
        };
        let state_dir = plan.state_dir.clone().into_os_string().into_encoded_bytes();
        let files = plan
            .daemon_processes
            .iter()
            .flat_map(proc_files)
            .map(String::into_bytes)
            .chain([state_dir])
            .map(CString::new)
            .collect::<Result<_, _>>()
            .map_err(|_| StageFailure::other(Stage::Probe, "a path holds a NUL"))?;

        let processes = plan
            .daemon_processes
            .iter()
            .filter(|_| !level.has_namespaces())
            .filter_map(|process| Pid::from_raw(i32::try_from(*process).ok()?))
            .collect();
        Ok(Self { files, processes })
    }
}

/// Checks of [`GuardedTargets`]. Their bits follow those of the lists.
const GUARDED_CHECKS: [&str; 2] =
    ["files of the daemon cannot be opened", "the daemon cannot be signalled"];

fn check_lists(level: IsolationLevel) -> [&'static [ProbeCheck]; 3] {
    match level {
        IsolationLevel::L3 => [COMMON_CHECKS, NAMESPACE_CHECKS, FRESH_PROC_CHECKS],
        IsolationLevel::L2 => [COMMON_CHECKS, NAMESPACE_CHECKS, SHARED_PROC_CHECKS],
        IsolationLevel::L1 | IsolationLevel::L0 => {
            [COMMON_CHECKS, NO_NAMESPACES_CHECKS, SHARED_PROC_CHECKS]
        }
    }
}

/// Names of the checks at a level, in the order of the probe's bits.
fn check_names(level: IsolationLevel) -> impl Iterator<Item = &'static str> {
    let checks = check_lists(level).into_iter().flatten();
    checks.map(|check| check.name).chain(GUARDED_CHECKS)
}

/// Runs the checks of `level` that apply with this network. Returns a bit for each failed check.
pub(super) fn run_checks(
    level: IsolationLevel,
    guarded: &GuardedTargets,
    network: NetworkMode,
) -> u64 {
    let mut failed_checks = 0;
    let mut bit = 0;
    let mut add = |passes: bool| {
        failed_checks |= u64::from(!passes) << bit;
        bit += 1;
    };

    for check in check_lists(level).into_iter().flatten() {
        let applies = match check.name {
            NO_ROUTE_CHECK => network != NetworkMode::Host,
            PROXY_CHECK => network == NetworkMode::Proxy,
            _ => true,
        };
        add(!applies || (check.passes)());
    }

    add(check_in_fork(|| guarded.files.iter().all(|file| cannot_open(file) || is_absent(file))));
    let cannot_signal =
        |process: &Pid| matches!(test_kill_process(*process), Err(Errno::PERM | Errno::SRCH));
    add(guarded.processes.iter().all(cannot_signal));

    failed_checks
}

/// Names of the checks of `level` whose bits are set in `failed_checks`.
pub(crate) fn failed_checks(
    level: IsolationLevel,
    failed_checks: u64,
) -> impl Iterator<Item = &'static str> {
    let has_failed = move |(bit, _): &(usize, &str)| failed_checks & (1 << bit) != 0;
    check_names(level).enumerate().filter(has_failed).map(|(_, name)| name)
}

const MAX_CHECKS: usize = COMMON_CHECKS.len()
    + NAMESPACE_CHECKS.len()
    + NO_NAMESPACES_CHECKS.len()
    + FRESH_PROC_CHECKS.len()
    + SHARED_PROC_CHECKS.len()
    + GUARDED_CHECKS.len();
const _: () = assert!(MAX_CHECKS <= 64, "the report has 64 bits");

/// Runs a check in a process with its own memory. This process shares memory with its init, and
/// processes that share memory may inspect each other; a command may not.
fn check_in_fork(passes: impl FnOnce() -> bool) -> bool {
    run_in_fork(passes).unwrap_or(false)
}

fn socket_is_refused(family: i32) -> bool {
    let Ok(family) = RawAddressFamily::try_from(family) else {
        return false;
    };
    let family = AddressFamily::from_raw(family);
    matches!(
        socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None),
        Err(Errno::AFNOSUPPORT)
    )
}

fn has_no_route() -> bool {
    let Ok(socket) =
        socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
    else {
        return false;
    };
    let metadata = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), 80);
    connect(&socket, &metadata) == Err(Errno::NETUNREACH)
}

fn proxy_is_reachable() -> bool {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let Ok(socket) = socket_with(family, kind, SocketFlags::CLOEXEC, None) else {
        return false;
    };
    let proxy = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PROXY_PORT);
    connect(&socket, &proxy).is_ok()
}

fn cannot_create(path: &CStr, expected: Errno) -> bool {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    matches!(open(path, flags, Mode::RUSR), Err(errno) if errno == expected || errno == Errno::ACCESS)
}

fn cannot_open(path: &CStr) -> bool {
    matches!(
        open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()),
        Err(Errno::ACCESS | Errno::PERM)
    )
}

fn is_absent(path: &CStr) -> bool {
    access(path, Access::EXISTS) == Err(Errno::NOENT)
}

/// Whether no descriptor from 4 to 255 is open. The processes that make a sandbox never hold that
/// many.
fn has_only_expected_descriptors() -> bool {
    let mut path = *b"/proc/self/fd/000\0";
    for number in 4u8..=255 {
        let digits = [number / 100, number / 10 % 10, number % 10];
        let significant = if number >= 100 {
            0
        } else if number >= 10 {
            1
        } else {
            2
        };

        let mut end = 14;
        for digit in digits.into_iter().skip(significant) {
            if let Some(byte) = path.get_mut(end) {
                *byte = b'0' + digit;
            }
            end += 1;
        }
        if let Some(byte) = path.get_mut(end) {
            *byte = 0;
        }

        let is_open = CStr::from_bytes_until_nul(&path)
            .is_ok_and(|path| statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok());
        if is_open {
            return false;
        }
    }
    true
}
