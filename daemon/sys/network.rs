//! Brings up the loopback interface of a new network namespace.

use std::os::fd::AsRawFd as _;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{Errno, syscall::syscall};

#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: i16,
    rest: [u8; 22],
}

/// Brings up `lo` in this process's network namespace (netdevice(7)). Needs CAP_NET_ADMIN there.
pub(crate) fn bring_up_loopback() -> Result<(), Errno> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut request = InterfaceRequest {
        name: [0; libc::IFNAMSIZ],
        flags: (libc::IFF_UP | libc::IFF_RUNNING) as i16,
        rest: [0; 22],
    };
    request.name[..2].copy_from_slice(b"lo");

    // SAFETY: SIOCSIFFLAGS reads one ifreq, which is 40 bytes as here.
    unsafe {
        syscall(
            libc::SYS_ioctl,
            [
                socket.as_raw_fd() as usize,
                libc::SIOCSIFFLAGS as usize,
                (&raw const request) as usize,
                0,
                0,
                0,
            ],
        )
    }
    .map(|_| ())
}
