//! Identifies the user at the other end of a connection, as reported by the kernel.
//!
//! Unix sockets have peer credentials. For loopback TCP, the kernel reports the owner of the peer's
//! socket (sock_diag(7)).

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    os::{
        fd::OwnedFd,
        unix::fs::{FileTypeExt as _, MetadataExt as _},
    },
    sync::LazyLock,
};

use rustix::{
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
        netlink::{self, SocketAddrNetlink},
        recv, sendto, socket_with,
    },
    process::geteuid,
};
use tokio::net::{TcpStream, UnixStream};

use crate::daemon::pipeline::access::PeerOrigin;

// linux/sock_diag.h, linux/inet_diag.h, linux/netlink.h, linux/tcp.h, linux/socket.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const TCP_ESTABLISHED: u8 = 1;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// The kernel's default, in case it cannot be read: linux/highuid.h.
const DEFAULT_OVERFLOWUID: u32 = 65534;
/// Size of `struct nlmsghdr`.
const NLMSG_HEADER_BYTES: usize = 16;
/// Size of `struct inet_diag_sockid`.
const DIAG_SOCKET_ID_BYTES: usize = 48;
/// Size of a request: `nlmsghdr` and `inet_diag_req_v2`.
const DIAG_REQUEST_BYTES: usize = NLMSG_HEADER_BYTES + 8 + DIAG_SOCKET_ID_BYTES;
/// Size of the used part of a response: `nlmsghdr` and `inet_diag_msg`.
const DIAG_RESPONSE_BYTES: usize = NLMSG_HEADER_BYTES + 4 + DIAG_SOCKET_ID_BYTES + 20;

/// The origin of a connection to a Unix socket.
pub(super) fn unix_origin(socket: &UnixStream) -> PeerOrigin {
    match socket.peer_cred() {
        // Only an embedded daemon connects to itself. A process id is unique, while several users
        // may appear under one uid (see `own_uid`).
        Ok(credentials) if credentials.pid() == Some(own_pid()) => PeerOrigin::Itself,
        Ok(credentials) if is_parent_namespace_root(credentials.uid(), socket) => {
            PeerOrigin::Socket { uid: 0 }
        }
        Ok(credentials) => PeerOrigin::Socket { uid: credentials.uid() },
        Err(_) => PeerOrigin::Elsewhere,
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Whether a peer without a uid in the daemon's user namespace must be root of a parent namespace.
///
/// Only root passes the mode of a socket that gives access to its owner alone (unix(7),
/// path_resolution(7)).
fn is_parent_namespace_root(uid: u32, socket: &UnixStream) -> bool {
    if *UID_MAPPING != UidMapping::Partial(uid) {
        return false;
    }

    let address = socket.local_addr().ok();
    let path = address.as_ref().and_then(|address| address.as_pathname());
    let metadata = path.and_then(|path| fs::symlink_metadata(path).ok());
    // If the mode gives nothing to group and others, access lists give them nothing either (acl(5),
    // "mask").
    metadata.is_some_and(|metadata| {
        metadata.file_type().is_socket()
            && metadata.uid() == geteuid().as_raw()
            && metadata.uid() != uid
            && metadata.mode() & 0o077 == 0
    })
}

/// The uid mapping of this user namespace. It never changes.
///
/// First read when the daemon starts, while it has all its file descriptors.
static UID_MAPPING: LazyLock<UidMapping> = LazyLock::new(|| {
    let map = fs::read_to_string("/proc/self/uid_map").ok();
    let overflow_uid = fs::read_to_string("/proc/sys/kernel/overflowuid");
    parse_uid_mapping(map.as_deref(), overflow_uid.ok().as_deref())
});

/// Which users are mapped into this user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UidMapping {
    /// All users.
    Full,
    /// Some users. All others appear as this uid (user_namespaces(7), "overflowuid").
    Partial(u32),
    /// Unknown. Unmapped users may appear as this uid, so it proves nothing.
    Unknown(u32),
}

fn parse_uid_mapping(map: Option<&str>, overflow_uid: Option<&str>) -> UidMapping {
    let parsed = overflow_uid.and_then(|text| text.trim().parse().ok());
    let overflow_uid = parsed.unwrap_or(DEFAULT_OVERFLOWUID);
    match map.filter(|map| !map.trim().is_empty()) {
        Some(map) if map.split_whitespace().eq(["0", "0", "4294967295"]) => UidMapping::Full,
        Some(_) if parsed.is_some() => UidMapping::Partial(overflow_uid),
        Some(_) | None => UidMapping::Unknown(overflow_uid),
    }
}

/// The origin of a TCP connection.
pub(super) fn tcp_origin(socket: &TcpStream) -> PeerOrigin {
    let ends = socket.peer_addr().and_then(|peer| Ok((peer, socket.local_addr()?)));
    match ends {
        Ok((peer, local)) if is_loopback(peer.ip()) && is_loopback(local.ip()) => {
            // If the uid is unknown and there are no keys, the first call is rejected and the
            // connection closed. A client that reconnects is looked up again.
            let uid = socket_owner(socket, peer, local).inspect_err(
                |error| tracing::debug!(%error, "the owner of a connection is not known"),
            );
            PeerOrigin::Loopback { uid: uid.ok() }
        }
        Ok(_) | Err(_) => PeerOrigin::Elsewhere,
    }
}

pub(super) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// The user whose socket is connected from `peer` to `local`.
fn socket_owner(socket: &TcpStream, peer: SocketAddr, local: SocketAddr) -> io::Result<u32> {
    let uid = query_sock_diag(peer, local)?;
    // If the peer had disconnected and another process had got its port, this end would be reset.
    match socket.take_error()? {
        Some(error) => Err(error),
        None => Ok(uid),
    }
}

fn query_sock_diag(peer: SocketAddr, local: SocketAddr) -> io::Result<u32> {
    let netlink: OwnedFd = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(netlink::SOCK_DIAG),
    )?;
    let request = encode_diag_request(peer, local);
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(&netlink, &request, SendFlags::empty(), &kernel)?;

    // The kernel queues its response before sendto(2) returns.
    let mut buffer = [0; 1024];
    let (length, _) = recv(&netlink, &mut buffer, RecvFlags::empty())?;
    let response = buffer.get(..length).unwrap_or_default();
    parse_diag_response(response, peer, local).ok_or_else(|| io::Error::other("no such connection"))
}

/// Encodes a request for the socket that is bound to `peer` and connected to `local`.
fn encode_diag_request(peer: SocketAddr, local: SocketAddr) -> [u8; DIAG_REQUEST_BYTES] {
    let mut encoded = Vec::with_capacity(DIAG_REQUEST_BYTES);
    let length = u32::try_from(DIAG_REQUEST_BYTES).unwrap_or_default();
    encoded.extend(length.to_ne_bytes());
    encoded.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    encoded.extend(NLM_F_REQUEST.to_ne_bytes());
    encoded.extend([0; 8]); // sequence, port

    let (peer_ip, local_ip) = (peer.ip().to_canonical(), local.ip().to_canonical());
    let family = if peer_ip.is_ipv4() { AF_INET } else { AF_INET6 };
    encoded.extend([family, IPPROTO_TCP, 0, 0]);
    encoded.extend(u32::MAX.to_ne_bytes()); // all states
    encoded.extend(peer.port().to_be_bytes());
    encoded.extend(local.port().to_be_bytes());
    encoded.extend(ip_octets(peer_ip));
    encoded.extend(ip_octets(local_ip));
    encoded.extend([0; 4]); // any interface
    encoded.extend([0xff; 8]); // any cookie (INET_DIAG_NOCOOKIE)

    let mut request = [0; DIAG_REQUEST_BYTES];
    for (to, from) in request.iter_mut().zip(encoded) {
        *to = from;
    }
    request
}

/// The octets of an address, padded to the length of IPv6.
fn ip_octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            for (to, from) in bytes.iter_mut().zip(ip.octets()) {
                *to = from;
            }
            bytes
        }
    }
}

/// Parses the address of a socket of this family. An IPv6 socket may have an IPv4-mapped address.
fn parse_ip(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => Some(IpAddr::from(<[u8; 4]>::try_from(bytes.get(..4)?).ok()?)),
        AF_INET6 => {
            let bytes: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
            Some(IpAddr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

/// Returns the uid in a response, if it describes the requested socket and a process holds that.
///
/// The kernel reports closed sockets as root's, so they are excluded by state and inode.
fn parse_diag_response(response: &[u8], peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let response = response.get(..DIAG_RESPONSE_BYTES)?;
    let kind = u16::from_ne_bytes(response.get(4..6)?.try_into().ok()?);
    let [family, state, ..] = response.get(NLMSG_HEADER_BYTES..)? else {
        return None;
    };

    let socket_id = response.get(NLMSG_HEADER_BYTES + 4..)?;
    let port = |at: usize| Some(u16::from_be_bytes(socket_id.get(at..at + 2)?.try_into().ok()?));
    let ends = [(peer, port(0)?, 4), (local, port(2)?, 20)];
    let is_requested = ends.into_iter().all(|(end, port, at)| {
        let ip = parse_ip(*family, socket_id.get(at..).unwrap_or_default());
        end.port() == port && ip == Some(end.ip().to_canonical())
    });

    let rest = response.get(NLMSG_HEADER_BYTES + 4 + DIAG_SOCKET_ID_BYTES..)?;
    // After idiag_expires, idiag_rqueue and idiag_wqueue.
    let uid = u32::from_ne_bytes(rest.get(12..16)?.try_into().ok()?);
    let inode = u32::from_ne_bytes(rest.get(16..20)?.try_into().ok()?);
    let is_open = *state == TCP_ESTABLISHED && inode != 0;
    (kind == SOCK_DIAG_BY_FAMILY && is_requested && is_open).then_some(uid)
}

/// The uid of the daemon, unless unmapped users appear under the same uid.
pub(crate) fn own_uid() -> Option<u32> {
    let own = geteuid().as_raw();
    match *UID_MAPPING {
        UidMapping::Partial(overflow) | UidMapping::Unknown(overflow) if overflow == own => None,
        UidMapping::Full | UidMapping::Partial(_) | UidMapping::Unknown(_) => Some(own),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    async fn connection(listen: &str, connect: &str) -> (std::net::TcpStream, TcpStream) {
        let listener = TcpListener::bind(listen).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = std::net::TcpStream::connect(format!("{connect}:{port}")).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        (client, TcpStream::from_std(server).unwrap())
    }

    #[tokio::test]
    async fn owner_of_a_loopback_connection_is_found() {
        let own = rustix::process::geteuid().as_raw();
        for (listen, connect) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "[::1]"),
            ("[::]:0", "127.0.0.1"),
            ("[::]:0", "[::ffff:127.0.0.1]"),
            ("0.0.0.0:0", "127.0.0.2"),
        ] {
            let (client, server) = connection(listen, connect).await;
            let origin = tcp_origin(&server);
            assert_eq!(origin, PeerOrigin::Loopback { uid: Some(own) }, "{connect}");
            drop(client);
        }
    }

    #[tokio::test]
    async fn closed_socket_has_no_owner() {
        // Half closed, and closed with unread data: the kernel reports both as root's.
        for half in [true, false] {
            let (mut client, server) = connection("127.0.0.1:0", "127.0.0.1").await;
            io::Write::write_all(&mut client, b"PRI").unwrap();
            if half {
                client.shutdown(std::net::Shutdown::Write).unwrap();
            }
            let open = half.then_some(client);
            assert_eq!(tcp_origin(&server), PeerOrigin::Loopback { uid: None });
            drop(open);
        }
    }

    #[test]
    fn unreadable_uid_map_gives_an_unknown_mapping() {
        let full = "         0          0 4294967295\n";
        for (map, overflow, expected) in [
            (Some(full), Some("65534\n"), UidMapping::Full),
            (Some(full), None, UidMapping::Full),
            (Some("0 1000 1\n"), Some("7\n"), UidMapping::Partial(7)),
            (Some("0 1000 1\n"), None, UidMapping::Unknown(DEFAULT_OVERFLOWUID)),
            (Some(""), Some("7\n"), UidMapping::Unknown(7)),
            (None, Some("7\n"), UidMapping::Unknown(7)),
        ] {
            assert_eq!(parse_uid_mapping(map, overflow), expected, "{map:?} {overflow:?}");
        }
    }

    #[test]
    fn only_loopback_addresses_are_loopback() {
        assert!(is_loopback(IpAddr::from([127, 1, 2, 3])));
        assert!(is_loopback("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!is_loopback("::ffff:10.0.0.1".parse().unwrap()));
        assert!(!is_loopback("192.0.2.1".parse().unwrap()));
    }
}
