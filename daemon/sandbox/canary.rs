//! The probe that proves the isolation: run at start in a real sandbox, by the very process that
//! would become a command.
//!
//! Like everything in that process it allocates nothing. It answers with one bit for each check
//! that failed. Which checks there are is decided by the level that the sandbox is to give.

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
    entrance::PORT,
    level::Level,
    plan::{self, Network, Plan},
    stage::{Failure, Stage},
};
use crate::daemon::sys::{
    Errno,
    process::{in_copy, unshare},
    refused,
};

/// A check: what it shows, and whether it holds.
#[derive(Debug)]
struct Check {
    /// What a failure means.
    name: &'static str,
    holds: fn() -> bool,
}

/// The check that does not hold with the daemon's network.
const NO_ROUTE: &str = "there is no route to the metadata address";
/// The check of the host name. It is a convenience and no boundary: where it does not hold, the level
/// stays and the layer `uts_namespace` says so.
pub(super) const HOST_NAME: &str = "the host name is jig";
/// The check that is about the network `proxy`.
const PROXY: &str = "the proxy can be connected to";

/// Checks that hold at every level.
const ALWAYS: &[Check] = &[
    Check { name: "the command is not root", holds: || !getuid().is_root() && !getgid().is_root() },
    Check {
        name: "a seccomp filter is on",
        holds: || secure_computing_mode() == Ok(SecureComputingMode::Filter),
    },
    Check {
        name: "unshare(CLONE_NEWUSER) answers EPERM",
        holds: || unshare(libc::CLONE_NEWUSER) == Err(Errno::PERM),
    },
    Check {
        name: "mount answers EPERM",
        holds: || mount(c"tmpfs", c"/tmp", c"tmpfs", MountFlags::empty(), None) == Err(Errno::PERM),
    },
    Check { name: "clone3 answers ENOSYS", holds: || refused::clone3() == Errno::NOSYS },
    Check { name: "keyctl answers EPERM", holds: || refused::keyctl() == Errno::PERM },
    Check {
        name: "io_uring_setup answers ENOSYS",
        holds: || refused::io_uring_setup() == Errno::NOSYS,
    },
    Check { name: "bpf answers EPERM", holds: || refused::bpf() == Errno::PERM },
    Check { name: "ioctl(TIOCSTI) answers EPERM", holds: || refused::tiocsti() == Errno::PERM },
    Check { name: "AF_VSOCK sockets cannot be made", holds: || cannot_make(libc::AF_VSOCK) },
    Check { name: "AF_ALG sockets cannot be made", holds: || cannot_make(libc::AF_ALG) },
    Check { name: "AF_PACKET sockets cannot be made", holds: || cannot_make(libc::AF_PACKET) },
    Check {
        name: "no descriptor is open but the standard streams and the control socket",
        holds: only_known_descriptors,
    },
    Check { name: "chroot answers EPERM", holds: || chroot(c"/") == Err(Errno::PERM) },
];

/// Checks of a sandbox with namespaces of its own.
const IN_NAMESPACES: &[Check] = &[
    Check {
        name: "the command is process 2 of its own process namespace",
        holds: || getpid().as_raw_nonzero().get() == 2,
    },
    Check {
        name: "all capability sets are empty and no_new_privs is on",
        holds: || capabilities::check_none().is_ok(),
    },
    Check { name: NO_ROUTE, holds: no_route },
    Check { name: PROXY, holds: proxy_listens },
    Check {
        name: HOST_NAME,
        holds: || uname().nodename().to_bytes() == plan::HOST_NAME.as_bytes(),
    },
    Check {
        name: "the root directory is read-only",
        holds: || cannot_create(c"/.canary", Errno::ROFS),
    },
    Check { name: "/usr is read-only", holds: || cannot_create(c"/usr/.canary", Errno::ROFS) },
    Check { name: "/sys is not there", holds: || is_absent(c"/sys") },
];

/// Checks of a `/proc` of the run's own.
const FRESH_PROC: &[Check] = &[
    Check {
        name: "the init's memory, descriptors and environment cannot be opened",
        holds: || {
            elsewhere(|| {
                [c"/proc/1/mem", c"/proc/1/fd/3", c"/proc/1/environ"]
                    .iter()
                    .all(|file| cannot_open(file))
            })
        },
    },
    Check { name: "no third process is there", holds: || is_absent(c"/proc/3") },
];

/// Checks of a `/proc` that is the daemon's too.
const SHARED_PROC: &[Check] = &[Check {
    name: "nothing in /proc can be written",
    holds: || {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        matches!(
            open(c"/proc/self/oom_score_adj", flags, Mode::empty()),
            Err(Errno::ROFS | Errno::ACCESS)
        )
    },
}];

/// Checks of a sandbox in the daemon's own namespaces.
const IN_PLACE: &[Check] = &[
    Check {
        name: "no capability is held and no_new_privs is on",
        holds: || capabilities::check_given_up().is_ok(),
    },
    Check {
        name: "no socket can be made",
        holds: || {
            [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]
                .into_iter()
                .all(cannot_make)
        },
    },
    Check {
        name: "no pair of datagram sockets can be made",
        holds: || {
            let pair =
                socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
            matches!(pair, Err(Errno::AFNOSUPPORT))
        },
    },
    Check { name: "the root directory cannot be listed", holds: || cannot_open(c"/") },
    Check {
        name: "nothing can be made in the system's directories",
        holds: || {
            [c"/.canary", c"/usr/.canary", c"/etc/.canary", c"/tmp/.canary"]
                .iter()
                .all(|path| cannot_create(path, Errno::ROFS))
        },
    },
    Check {
        name: "message passing answers EPERM",
        holds: || refused::shmget() == Errno::PERM && refused::mq_open() == Errno::PERM,
    },
    Check {
        name: "ptrace and process_vm_readv answer EPERM",
        holds: || refused::ptrace() == Errno::PERM && refused::process_vm_readv() == Errno::PERM,
    },
    Check {
        name: "tuning another process answers EPERM",
        holds: || getppid().is_some_and(|parent| refused::tuning(parent).is_ok()),
    },
    Check {
        name: "the supervisor cannot be signalled",
        holds: || getppid().is_some_and(|parent| test_kill_process(parent) == Err(Errno::PERM)),
    },
];

/// What commands must not reach although they can name it.
#[derive(Debug, Default)]
pub(super) struct Guarded {
    /// Files that they cannot open.
    files: Vec<CString>,
    /// Processes that they cannot signal.
    processes: Vec<Pid>,
}

/// Files of a process that show what it knows, or change what it does.
const OF_PROCESSES: &[&str] =
    &["mem", "environ", "maps", "auxv", "fd/0", "fd/2", "root", "cwd", "exe", "io", "ns/net"];

impl Guarded {
    /// What of the daemon's own can be named where `/proc` is the daemon's too, and at L1 the numbers
    /// of processes mean the same.
    pub(super) fn of(plan: &Plan, level: Level) -> Result<Self, Failure> {
        let of = |process: &u32| {
            let folder = format!("/proc/{process}");
            OF_PROCESSES.iter().map(move |file| format!("{folder}/{file}"))
        };
        let files = plan.processes.iter().flat_map(of).map(String::into_bytes);
        let state = plan.state_dir.clone().into_os_string().into_encoded_bytes();
        let files = files.chain([state]).map(CString::new);
        let files = files.collect::<Result<_, _>>();
        let files = files.map_err(|_| Failure::other(Stage::Canary, "a path holds a NUL"))?;
        let processes = plan.processes.iter().filter(|_| !level.has_namespaces());
        let processes =
            processes.filter_map(|process| Pid::from_raw(i32::try_from(*process).ok()?));
        Ok(Self { files, processes: processes.collect() })
    }
}

/// The checks of what is guarded; their bits follow those of the lists.
const GUARDED: [&str; 2] =
    ["what is the daemon's own cannot be opened", "the daemon cannot be signalled"];

/// The lists of checks that hold at a level.
fn lists(level: Level) -> [&'static [Check]; 3] {
    match level {
        Level::L3 => [ALWAYS, IN_NAMESPACES, FRESH_PROC],
        Level::L2 => [ALWAYS, IN_NAMESPACES, SHARED_PROC],
        Level::L1 | Level::L0 => [ALWAYS, IN_PLACE, SHARED_PROC],
    }
}

/// Names of the checks that hold at a level, by the bits of the probe's answer.
fn names(level: Level) -> impl Iterator<Item = &'static str> {
    let checks = lists(level).into_iter().flatten();
    checks.map(|check| check.name).chain(GUARDED)
}

/// Runs the checks of `level`, those that there are with this network.
pub(super) fn run(level: Level, guarded: &Guarded, network: Network) -> u64 {
    let mut failed = 0;
    let mut bit = 0;
    let mut add = |holds: bool| {
        failed |= u64::from(!holds) << bit;
        bit += 1;
    };
    for check in lists(level).into_iter().flatten() {
        let is_meant = match check.name {
            NO_ROUTE => network != Network::Host,
            PROXY => network == Network::Proxy,
            _ => true,
        };
        add(!is_meant || (check.holds)());
    }
    add(elsewhere(|| {
        let mut files = guarded.files.iter();
        files.all(|file| cannot_open(file) || is_absent(file))
    }));
    let mut processes = guarded.processes.iter();
    add(processes
        .all(|process| matches!(test_kill_process(*process), Err(Errno::PERM | Errno::SRCH))));
    failed
}

/// Names of the checks of `level` whose bits are set in `failed`.
pub(crate) fn failed_checks(level: Level, failed: u64) -> impl Iterator<Item = &'static str> {
    let set = move |(bit, _): &(usize, &str)| failed & (1 << bit) != 0;
    names(level).enumerate().filter(set).map(|(_, name)| name)
}

const MOST: usize = ALWAYS.len()
    + IN_NAMESPACES.len()
    + IN_PLACE.len()
    + FRESH_PROC.len()
    + SHARED_PROC.len()
    + GUARDED.len();
const _: () = assert!(MOST <= 64, "the answer has 64 bits");

/// Has a process with memory of its own see: this one shares that of its init, as the command that
/// it would become does not, and whoever shares memory may look into it.
fn elsewhere(holds: impl FnOnce() -> bool) -> bool {
    in_copy(holds).unwrap_or(false)
}

fn cannot_make(family: i32) -> bool {
    let Ok(family) = RawAddressFamily::try_from(family) else {
        return false;
    };
    let family = AddressFamily::from_raw(family);
    matches!(
        socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None),
        Err(Errno::AFNOSUPPORT)
    )
}

fn no_route() -> bool {
    let Ok(socket) =
        socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
    else {
        return false;
    };
    let metadata = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), 80);
    connect(&socket, &metadata) == Err(Errno::NETUNREACH)
}

fn proxy_listens() -> bool {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let Ok(socket) = socket_with(family, kind, SocketFlags::CLOEXEC, None) else {
        return false;
    };
    let proxy = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
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

/// Numbers 0 to 3 are open; nothing is up to 255, far beyond what the sandbox's makers ever hold.
fn only_known_descriptors() -> bool {
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
            if let Some(place) = path.get_mut(end) {
                *place = b'0' + digit;
            }
            end += 1;
        }
        if let Some(place) = path.get_mut(end) {
            *place = 0;
        }
        let open = CStr::from_bytes_until_nul(&path)
            .is_ok_and(|path| statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok());
        if open {
            return false;
        }
    }
    true
}
