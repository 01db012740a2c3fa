//! Addresses to listen on.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenAddr {
    /// A port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl ListenAddr {
    /// Reads an address.
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
                "--listen {text} is no address: give 127.0.0.1:50051, [::1]:50051 or unix:/path"
            )),
            Some(address) => Ok(Self::Tcp(address)),
        }
    }

    /// Whether only this machine can reach it.
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
    fn addresses_that_others_can_reach_are_told_apart() {
        for (text, shown) in [
            ("127.0.0.1:50051", "127.0.0.1:50051"),
            ("localhost:0", "127.0.0.1:0"),
            ("[::1]:1", "[::1]:1"),
            ("127.9.9.9:1", "127.9.9.9:1"),
            ("unix:/a", "unix:/a"),
            ("unix:///a/b", "unix:/a/b"),
        ] {
            let address = ListenAddr::parse(text).unwrap();
            assert_eq!(address.to_string(), shown, "{text}");
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
