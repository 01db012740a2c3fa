//! Brings up the loopback interface of a new network namespace.

use std::os::fd::AsRawFd as _;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{Errno, from_nix};

nix::ioctl_write_ptr_bad!(set_interface_flags, libc::SIOCSIFFLAGS, libc::ifreq);

/// Brings up `lo` in this process's network namespace (netdevice(7)). Needs CAP_NET_ADMIN there.
pub(crate) fn bring_up_loopback() -> Result<(), Errno> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let up = libc::__c_anonymous_ifr_ifru { ifru_flags: (libc::IFF_UP | libc::IFF_RUNNING) as i16 };
    let mut request = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: up };
    request.ifr_name[..2].copy_from_slice(&b"lo".map(|byte| byte as libc::c_char));

    // SAFETY: SIOCSIFFLAGS reads one ifreq, and of its union the flags.
    unsafe { set_interface_flags(socket.as_raw_fd(), &raw const request) }
        .map(|_| ())
        .map_err(from_nix)
}
