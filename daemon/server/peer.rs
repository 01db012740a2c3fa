//! Whose process is at the other end of a connection: the kernel tells, for Unix sockets by their
//! credentials, for the loopback interface by the owner of the peer's socket (sock_diag(7)).

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
/// The kernel's own choice, should it not say: linux/highuid.h.
const DEFAULT_OVERFLOWUID: u32 = 65534;
/// Bytes of `struct nlmsghdr`.
const NLMSG_HEADER_BYTES: usize = 16;
/// Bytes of `struct inet_diag_sockid`.
const DIAG_SOCKET_ID_BYTES: usize = 48;
/// Bytes of a whole question: `nlmsghdr`, and `inet_diag_req_v2`.
const DIAG_REQUEST_BYTES: usize = NLMSG_HEADER_BYTES + 8 + DIAG_SOCKET_ID_BYTES;
/// Bytes of an answer that are looked at: `nlmsghdr`, and `inet_diag_msg`.
const DIAG_RESPONSE_BYTES: usize = NLMSG_HEADER_BYTES + 4 + DIAG_SOCKET_ID_BYTES + 20;

/// Where a Unix connection comes from.
pub(super) fn unix_origin(socket: &UnixStream) -> PeerOrigin {
    match socket.peer_cred() {
        // Only a daemon for one call connects to itself. No other process has its number, while a user
        // may have the number of others (see `own_user`).
        Ok(credentials) if credentials.pid() == Some(own_process()) => PeerOrigin::Itself,
        Ok(credentials) if is_parent_namespace_root(credentials.uid(), socket) => {
            PeerOrigin::Socket { uid: 0 }
        }
        Ok(credentials) => PeerOrigin::Socket { uid: credentials.uid() },
        Err(_) => PeerOrigin::Elsewhere,
    }
}

/// This process, as the kernel numbers it for its own processes.
fn own_process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Whether a peer that has no number in the daemon's user namespace must be root of one above: nobody else
/// gets past the mode of a socket that is its owner's alone (unix(7), path_resolution(7)).
fn is_parent_namespace_root(uid: u32, socket: &UnixStream) -> bool {
    if *UID_MAPPING != UidMapping::Partial(uid) {
        return false;
    }
    let address = socket.local_addr().ok();
    let path = address.as_ref().and_then(|address| address.as_pathname());
    let metadata = path.and_then(|path| fs::symlink_metadata(path).ok());
    // Without a mode for others, access lists give them nothing either (acl(5), "mask").
    metadata.is_some_and(|metadata| {
        metadata.file_type().is_socket()
            && metadata.uid() == geteuid().as_raw()
            && metadata.uid() != uid
            && metadata.mode() & 0o077 == 0
    })
}

/// Which users have numbers in this user namespace, as long as it lasts. It is first looked at when the
/// daemon starts, which has all its descriptors then.
static UID_MAPPING: LazyLock<UidMapping> = LazyLock::new(|| {
    let map = fs::read_to_string("/proc/self/uid_map").ok();
    let number = fs::read_to_string("/proc/sys/kernel/overflowuid");
    parse_uid_mapping(map.as_deref(), number.ok().as_deref())
});

/// Which users have numbers of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UidMapping {
    /// Each.
    Full,
    /// Some: all others have this one (user_namespaces(7), "overflowuid").
    Partial(u32),
    /// Nobody says: some may have this one, and nothing follows from it.
    Unknown(u32),
}

fn parse_uid_mapping(map: Option<&str>, overflow: Option<&str>) -> UidMapping {
    let read = overflow.and_then(|text| text.trim().parse().ok());
    let number = read.unwrap_or(DEFAULT_OVERFLOWUID);
    match map.filter(|map| !map.trim().is_empty()) {
        Some(map) if map.split_whitespace().eq(["0", "0", "4294967295"]) => UidMapping::Full,
        Some(_) if read.is_some() => UidMapping::Partial(number),
        Some(_) | None => UidMapping::Unknown(number),
    }
}

/// Where a TCP connection comes from.
pub(super) fn tcp_origin(socket: &TcpStream) -> PeerOrigin {
    let ends = socket.peer_addr().and_then(|peer| Ok((peer, socket.local_addr()?)));
    match ends {
        Ok((peer, local)) if is_loopback(peer.ip()) && is_loopback(local.ip()) => {
            let uid = socket_owner(socket, peer, local);
            PeerOrigin::Loopback {
                // Where there are no keys, its first call is refused, and the connection is closed: who
                // connects again is asked for again.
                uid: uid
                    .inspect_err(|error| {
                        tracing::debug!(%error, "the owner of a connection is not known");
                    })
                    .ok(),
            }
        }
        Ok(_) | Err(_) => PeerOrigin::Elsewhere,
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// The user whose socket is connected from `peer` to `local`.
fn socket_owner(socket: &TcpStream, peer: SocketAddr, local: SocketAddr) -> io::Result<u32> {
    let uid = query_sock_diag(peer, local)?;
    // Had the peer gone meanwhile, and another one got its port, this end would have been reset.
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
    let question = encode_diag_request(peer, local);
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(&netlink, &question, SendFlags::empty(), &kernel)?;
    // The kernel has answered before it returns from that.
    let mut answer = [0; 1024];
    let (length, _) = recv(&netlink, &mut answer, RecvFlags::empty())?;
    let answer = answer.get(..length).unwrap_or_default();
    parse_diag_response(answer, peer, local).ok_or_else(|| io::Error::other("no such connection"))
}

/// Asks for the socket that is bound to `peer` and connected to `local`.
fn encode_diag_request(peer: SocketAddr, local: SocketAddr) -> [u8; DIAG_REQUEST_BYTES] {
    let mut text = Vec::with_capacity(DIAG_REQUEST_BYTES);
    let length = u32::try_from(DIAG_REQUEST_BYTES).unwrap_or_default();
    text.extend(length.to_ne_bytes());
    text.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    text.extend(NLM_F_REQUEST.to_ne_bytes());
    text.extend([0; 8]); // sequence, port
    let (peer_ip, local_ip) = (peer.ip().to_canonical(), local.ip().to_canonical());
    let family = if peer_ip.is_ipv4() { AF_INET } else { AF_INET6 };
    text.extend([family, IPPROTO_TCP, 0, 0]);
    text.extend(u32::MAX.to_ne_bytes()); // in all states
    text.extend(peer.port().to_be_bytes());
    text.extend(local.port().to_be_bytes());
    text.extend(ip_octets(peer_ip));
    text.extend(ip_octets(local_ip));
    text.extend([0; 4]); // on any interface
    text.extend([0xff; 8]); // whatever its cookie
    let mut question = [0; DIAG_REQUEST_BYTES];
    for (to, from) in question.iter_mut().zip(text) {
        *to = from;
    }
    question
}

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

/// An address of a socket of this family: one of IPv6 may be connected by IPv4.
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

/// Reads the user from an answer, if it is about the socket that was asked for and this belongs to a
/// process: one that was closed counts as root's.
fn parse_diag_response(answer: &[u8], peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let answer = answer.get(..DIAG_RESPONSE_BYTES)?;
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let [family, state, ..] = answer.get(NLMSG_HEADER_BYTES..)? else {
        return None;
    };
    let id = answer.get(NLMSG_HEADER_BYTES + 4..)?;
    let port = |at: usize| Some(u16::from_be_bytes(id.get(at..at + 2)?.try_into().ok()?));
    let ends = [(peer, port(0)?, 4), (local, port(2)?, 20)];
    let is_the_same = ends.into_iter().all(|(end, port, at)| {
        let ip = parse_ip(*family, id.get(at..).unwrap_or_default());
        end.port() == port && ip == Some(end.ip().to_canonical())
    });
    let after = answer.get(NLMSG_HEADER_BYTES + 4 + DIAG_SOCKET_ID_BYTES..)?;
    // idiag_expires, idiag_rqueue, idiag_wqueue come before.
    let uid = u32::from_ne_bytes(after.get(12..16)?.try_into().ok()?);
    let inode = u32::from_ne_bytes(after.get(16..20)?.try_into().ok()?);
    let is_held = *state == TCP_ESTABLISHED && inode != 0;
    (kind == SOCK_DIAG_BY_FAMILY && is_the_same && is_held).then_some(uid)
}

/// The user that the daemon runs as, unless the kernel tells others by the same number.
pub(crate) fn own_uid() -> Option<u32> {
    let own = geteuid().as_raw();
    match *UID_MAPPING {
        UidMapping::Partial(number) | UidMapping::Unknown(number) if number == own => None,
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
    async fn the_owner_of_a_connection_is_found() {
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
    async fn nobody_is_found_for_a_socket_that_was_closed() {
        // Half closed, and closed with data under way: the kernel counts both as root's.
        for half in [true, false] {
            let (mut client, server) = connection("127.0.0.1:0", "127.0.0.1").await;
            io::Write::write_all(&mut client, b"PRI").unwrap();
            if half {
                client.shutdown(std::net::Shutdown::Write).unwrap();
            }
            let kept = half.then_some(client);
            assert_eq!(tcp_origin(&server), PeerOrigin::Loopback { uid: None });
            drop(kept);
        }
    }

    #[test]
    fn where_nobody_says_which_users_have_numbers_nobody_is_privileged() {
        let whole = "         0          0 4294967295\n";
        for (map, overflow, expected) in [
            (Some(whole), Some("65534\n"), UidMapping::Full),
            (Some(whole), None, UidMapping::Full),
            (Some("0 1000 1\n"), Some("7\n"), UidMapping::Partial(7)),
            (Some("0 1000 1\n"), None, UidMapping::Unknown(DEFAULT_OVERFLOWUID)),
            (Some(""), Some("7\n"), UidMapping::Unknown(7)),
            (None, Some("7\n"), UidMapping::Unknown(7)),
        ] {
            assert_eq!(parse_uid_mapping(map, overflow), expected, "{map:?} {overflow:?}");
        }
    }

    #[test]
    fn an_address_of_another_machine_is_none_of_loopback() {
        assert!(is_loopback(IpAddr::from([127, 1, 2, 3])));
        assert!(is_loopback("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!is_loopback("::ffff:10.0.0.1".parse().unwrap()));
        assert!(!is_loopback("192.0.2.1".parse().unwrap()));
    }
}
