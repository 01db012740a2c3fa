//! The probe that proves the isolation: run at start in a real sandbox, by the very process that
//! would become a command.
//!
//! Like everything in that process it allocates nothing. It answers with one bit for each check
//! that failed.

use std::{
    ffi::CStr,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use rustix::{
    fs::{Access, AtFlags, CWD, Mode, OFlags, access, open, statat},
    mount::{MountFlags, mount},
    net::{AddressFamily, RawAddressFamily, SocketFlags, SocketType, connect, socket_with},
    process::{getgid, getpid, getuid},
    thread::{SecureComputingMode, secure_computing_mode},
};

use super::{capabilities, entrance::PORT, plan::Network};
use crate::daemon::sys::{Errno, process::unshare, refused};

/// A check: what it shows, and whether it holds.
#[derive(Debug)]
pub(crate) struct Check {
    /// What a failure means.
    pub(crate) name: &'static str,
    holds: fn() -> bool,
}

/// The check that does not hold with the daemon's network.
const NO_ROUTE: &str = "there is no route to the metadata address";
/// The check that is about the network `proxy`.
const PROXY: &str = "the proxy can be connected to";

/// The checks; bit n of the probe's answer stands for entry n.
pub(crate) const CHECKS: &[Check] = &[
    Check {
        name: "the command is not root",
        holds: || !getuid().is_root() && !getgid().is_root(),
    },
    Check {
        name: "the command is process 2 of its own process namespace",
        holds: || getpid().as_raw_nonzero().get() == 2,
    },
    Check {
        name: "all capability sets are empty and no_new_privs is on",
        holds: || capabilities::check_none().is_ok(),
    },
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
    Check {
        name: "clone3 answers ENOSYS",
        holds: || refused::clone3() == Errno::NOSYS,
    },
    Check {
        name: "keyctl answers EPERM",
        holds: || refused::keyctl() == Errno::PERM,
    },
    Check {
        name: "io_uring_setup answers ENOSYS",
        holds: || refused::io_uring_setup() == Errno::NOSYS,
    },
    Check {
        name: "bpf answers EPERM",
        holds: || refused::bpf() == Errno::PERM,
    },
    Check {
        name: "ioctl(TIOCSTI) answers EPERM",
        holds: || refused::tiocsti() == Errno::PERM,
    },
    Check {
        name: "AF_VSOCK sockets cannot be made",
        holds: || cannot_make(libc::AF_VSOCK),
    },
    Check {
        name: "AF_ALG sockets cannot be made",
        holds: || cannot_make(libc::AF_ALG),
    },
    Check {
        name: "AF_PACKET sockets cannot be made",
        holds: || cannot_make(libc::AF_PACKET),
    },
    Check {
        name: NO_ROUTE,
        holds: no_route,
    },
    Check {
        name: PROXY,
        holds: proxy_listens,
    },
    Check {
        name: "the root directory is read-only",
        holds: || cannot_create(c"/.canary", Errno::ROFS),
    },
    Check {
        name: "/usr is read-only",
        holds: || cannot_create(c"/usr/.canary", Errno::ROFS),
    },
    Check {
        name: "/sys is not there",
        holds: || is_absent(c"/sys"),
    },
    Check {
        name: "the init's memory cannot be opened",
        holds: || cannot_open(c"/proc/1/mem"),
    },
    Check {
        name: "the init's descriptors cannot be listed",
        holds: || cannot_open(c"/proc/1/fd"),
    },
    Check {
        name: "the init's environment cannot be read",
        holds: || cannot_open(c"/proc/1/environ"),
    },
    Check {
        name: "no third process is there",
        holds: || is_absent(c"/proc/3"),
    },
    Check {
        name: "no descriptor is open but the standard streams and the control socket",
        holds: only_known_descriptors,
    },
];

/// Runs the checks that there are with this network.
pub(super) fn run(network: Network) -> u64 {
    let mut failed = 0;
    for (bit, check) in CHECKS.iter().enumerate() {
        let is_meant = match check.name {
            NO_ROUTE => network != Network::Host,
            PROXY => network == Network::Proxy,
            _ => true,
        };
        if is_meant && !(check.holds)() {
            failed |= 1 << bit;
        }
    }
    failed
}

/// Names of the checks whose bits are set in `failed`.
pub(crate) fn failed_checks(failed: u64) -> impl Iterator<Item = &'static str> {
    CHECKS
        .iter()
        .enumerate()
        .filter(move |(bit, _)| failed & (1 << bit) != 0)
        .map(|(_, check)| check.name)
}

const _: () = assert!(CHECKS.len() <= 64, "the answer has 64 bits");

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
    let Ok(socket) = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    ) else {
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
