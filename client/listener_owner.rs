//! Finds the owner of the daemon at a default address.
//!
//! The daemon receives commands, files and the key. So jig first asks the kernel for the owner of
//! the listening socket, and connects only to this user's or root's.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
};

use rustix::process::geteuid;

/// Default port of a daemon.
pub(crate) const DEFAULT_PORT: u16 = 50051;
/// State of a listening socket in `/proc/net/tcp`.
const TCP_LISTEN_STATE: &str = "0A";

/// Owner of the listening socket at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerOwner {
    None,
    /// This user, or root.
    Trusted,
    /// Another user.
    Foreign(u32),
}

/// Returns whether the listener at the address belongs to this user or root.
pub(crate) fn is_trusted(address: &str) -> bool {
    listener_owner(address) == ListenerOwner::Trusted
}

/// Asks the kernel for the owner of the listener at `unix:/PATH`, or otherwise at [`DEFAULT_PORT`].
pub(crate) fn listener_owner(address: &str) -> ListenerOwner {
    let owners = match address.strip_prefix("unix:") {
        Some(path) => socket_owner(Path::new(path)).into_iter().collect(),
        None => port_owners(DEFAULT_PORT),
    };

    let own = geteuid().as_raw();
    match owners.iter().find(|owner| ![0, own].contains(owner)) {
        _ if owners.is_empty() => ListenerOwner::None,
        Some(foreign) => ListenerOwner::Foreign(*foreign),
        None => ListenerOwner::Trusted,
    }
}

/// Returns the owner of a socket. `None` for other files and symbolic links.
fn socket_owner(path: &Path) -> Option<u32> {
    let metadata = path.symlink_metadata().ok()?;
    metadata.file_type().is_socket().then(|| metadata.uid())
}

/// Returns the users that listen at a port of this machine, on any of its addresses.
fn port_owners(port: u16) -> Vec<u32> {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| parse_port_owners(&table, port))
        .collect()
}

/// Parses `/proc/net/tcp`: number, local address, remote address, state, queues, timer,
/// retransmissions, user (proc_net_tcp in the kernel's documentation).
fn parse_port_owners(table: &str, port: u16) -> Vec<u32> {
    let port = format!("{port:04X}");
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_ours =
            fields.get(1)?.ends_with(&format!(":{port}")) && *fields.get(3)? == TCP_LISTEN_STATE;
        // An unreadable user id counts as a foreign user.
        is_ours.then(|| fields.get(7).and_then(|user| user.parse().ok()).unwrap_or(u32::MAX))
    };
    table.lines().skip(1).filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_table_names_the_listeners() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:C383 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0\n\
            1: 0100007F:C383 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1001        0 2 1 0 100 0 0 10 0\n\
            2: 0100007F:C384 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1002        0 3 1 0 100 0 0 10 0\n\
            3: 00000000:C383 00000000:0000 0A 00000000:00000000 00:00000000 00000000  x        0 3 1 0 100 0 0 10 0\n";
        assert_eq!(parse_port_owners(table, 50051), [1000, u32::MAX]);
        assert_eq!(parse_port_owners(table, 50052), [1002]);
        assert_eq!(parse_port_owners("", 50051), [0; 0]);

        let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listening.local_addr().unwrap().port();
        assert_eq!(port_owners(port), [geteuid().as_raw()]);
    }

    #[test]
    fn only_sockets_have_an_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path_of = |name: &str| directory.path().join(name);
        let address = |name: &str| format!("unix:{}", path_of(name).display());
        let _socket = std::os::unix::net::UnixListener::bind(path_of("socket")).unwrap();
        std::os::unix::fs::symlink("socket", path_of("link")).unwrap();
        fs::write(path_of("file"), "").unwrap();

        assert!(is_trusted(&address("socket")));
        for name in ["link", "file", "none"] {
            assert_eq!(listener_owner(&address(name)), ListenerOwner::None, "{name}");
        }
    }
}
