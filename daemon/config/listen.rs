//! Addresses that the daemon listens on: a TCP port or a Unix socket.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenAddr {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl ListenAddr {
    /// Reads `HOST:PORT`, with an IP address or `localhost`, or `unix:/path`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') {
                Ok(Self::Unix(PathBuf::from(path)))
            } else {
                Err(format!(
                    "--listen {text}: the path of a Unix socket must be absolute: unix:/path"
                ))
            };
        }

        let address = match text.strip_prefix("localhost:") {
            Some(port) => {
                port.parse().ok().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
            }
            None => text.parse().ok(),
        };
        match address {
            None => Err(format!(
                "--listen {text} is not an address: give 127.0.0.1:50051, [::1]:50051 or unix:/path"
            )),
            Some(address) => Ok(Self::Tcp(address)),
        }
    }

    /// Whether other machines cannot reach the address.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ListenAddr;

    #[test]
    fn addresses_are_local_or_reachable_from_other_machines() {
        for (text, expected) in [
            ("127.0.0.1:50051", "127.0.0.1:50051"),
            ("localhost:0", "127.0.0.1:0"),
            ("[::1]:1", "[::1]:1"),
            ("127.9.9.9:1", "127.9.9.9:1"),
            ("unix:/a", "unix:/a"),
            ("unix:///a/b", "unix:/a/b"),
        ] {
            let address = ListenAddr::parse(text).unwrap();
            assert_eq!(address.to_string(), expected, "{text}");
            assert!(address.is_local(), "{text}");
        }
        for text in ["0.0.0.0:50051", "[::]:1", "10.0.0.1:1", "192.168.1.1:1"] {
            assert!(!ListenAddr::parse(text).unwrap().is_local(), "{text}");
        }
        for text in ["", "50051", ":50051", "unix:a", "unix:", "127.0.0.1", "host:1"] {
            assert!(ListenAddr::parse(text).is_err(), "{text}");
        }
    }
}
