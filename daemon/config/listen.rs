//! Addresses to listen on.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

/// An address that only this machine can reach. Others need keys or client certificates, which this
/// version does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A port of the loopback interface.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Address {
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
            Some(port) => port
                .parse()
                .ok()
                .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
            None => text.parse().ok(),
        };
        match address {
            None => Err(format!(
                "--listen {text} is no address: give 127.0.0.1:50051, [::1]:50051 or unix:/path"
            )),
            Some(address) if address.ip().is_loopback() => Ok(Self::Tcp(address)),
            Some(_) => Err(format!(
                "--listen {text} can be reached from other machines, and this version has no keys to tell callers apart: give a loopback address or \
                 --listen unix:/path"
            )),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn addresses_that_others_can_reach_are_refused() {
        for (text, shown) in [
            ("127.0.0.1:50051", "127.0.0.1:50051"),
            ("localhost:0", "127.0.0.1:0"),
            ("[::1]:1", "[::1]:1"),
            ("127.9.9.9:1", "127.9.9.9:1"),
            ("unix:/a", "unix:/a"),
            ("unix:///a/b", "unix:/a/b"),
        ] {
            assert_eq!(
                Address::parse(text).map(|address| address.to_string()),
                Ok(shown.to_owned()),
                "{text}"
            );
        }
        for text in ["0.0.0.0:50051", "[::]:1", "10.0.0.1:1", "192.168.1.1:1"] {
            assert!(
                Address::parse(text).is_err_and(|problem| problem.contains("unix:/path")),
                "{text}"
            );
        }
        for text in [
            "",
            "50051",
            ":50051",
            "unix:a",
            "unix:",
            "127.0.0.1",
            "host:1",
        ] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }
}
