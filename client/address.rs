//! Parses the address of a daemon.

use std::{fmt, path::PathBuf, str::FromStr};

use tonic::codegen::http::Uri;

/// Address of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DaemonAddress {
    /// Host and port, for example `127.0.0.1:50051`.
    Tcp(String),
    /// Host and port of a daemon that speaks TLS, for example `build.example.org:50051`.
    Tls(String),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

/// A malformed address. `Display` lists the valid forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{address}` is not an address: {problem}")]
pub struct InvalidAddress {
    address: String,
    problem: &'static str,
}

impl DaemonAddress {
    /// The address as `--listen` of the daemon takes it.
    pub(super) fn listen_argument(&self) -> String {
        match self {
            Self::Tls(authority) => authority.clone(),
            Self::Tcp(_) | Self::Unix(_) => self.to_string(),
        }
    }

    /// Returns the URI for tonic.
    pub(super) fn to_endpoint(&self) -> String {
        match self {
            // The connector speaks TLS, so tonic must not.
            Self::Tcp(authority) | Self::Tls(authority) => format!("http://{authority}"),
            Self::Unix(path) => format!("unix:{}", path.display()),
        }
    }
}

impl FromStr for DaemonAddress {
    type Err = InvalidAddress;

    fn from_str(address: &str) -> Result<Self, InvalidAddress> {
        let invalid = |problem| InvalidAddress { address: address.to_owned(), problem };

        if let Some(rest) = address.strip_prefix("unix:") {
            // `unix://HOST/PATH` names a socket of another machine, which cannot be reached.
            let path = match rest.strip_prefix("//") {
                Some(path) if path.starts_with('/') => path,
                Some(_) => return Err(invalid("write `unix:/path` or `unix:///path`")),
                None => rest,
            };
            if path.is_empty() {
                return Err(invalid("a path must follow `unix:`"));
            }
            return Ok(Self::Unix(path.into()));
        }

        if address.starts_with('/') || address.starts_with("./") {
            return Err(invalid("write `unix:` before the path of a socket"));
        }

        let authority = match address.split_once("://") {
            None => address,
            Some(("http", rest)) => rest.strip_suffix('/').unwrap_or(rest),
            Some(("https", rest)) => rest.strip_suffix('/').unwrap_or(rest),
            Some(_) => return Err(invalid(ADDRESS_HINT)),
        };

        let uri: Uri = format!("http://{authority}").parse().map_err(|_| invalid(ADDRESS_HINT))?;
        if uri.authority().is_none_or(|parsed| parsed != authority) {
            return Err(invalid(ADDRESS_HINT));
        }
        if authority.contains('@') {
            return Err(invalid("set the key in `JIG_KEY`, not in the address"));
        }
        if uri.host().is_none_or(str::is_empty) || uri.port_u16().is_none_or(|port| port == 0) {
            return Err(invalid(ADDRESS_HINT));
        }
        if address.starts_with("https://") {
            return Ok(Self::Tls(authority.to_owned()));
        }
        Ok(Self::Tcp(authority.to_owned()))
    }
}

impl fmt::Display for DaemonAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(authority) => f.write_str(authority),
            Self::Tls(authority) => write!(f, "https://{authority}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

const ADDRESS_HINT: &str =
    "write `host:port`, `http://host:port`, `https://host:port` or `unix:/path`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_forms_are_parsed() {
        for (text, expected) in [
            ("127.0.0.1:50051", "127.0.0.1:50051"),
            ("localhost:1", "localhost:1"),
            ("[::1]:50051", "[::1]:50051"),
            ("http://host.example:80", "host.example:80"),
            ("http://host:80/", "host:80"),
            ("https://host:443", "https://host:443"),
            ("https://[::1]:1/", "https://[::1]:1"),
            ("unix:/run/jig.sock", "unix:/run/jig.sock"),
            ("unix:///run/jig.sock", "unix:/run/jig.sock"),
            ("unix:here.sock", "unix:here.sock"),
        ] {
            let address: DaemonAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn invalid_forms_are_rejected() {
        for text in [
            "",
            "50051",
            ":50051",
            "host",
            "host:",
            "host:0",
            "host:99999",
            "host:80/path",
            "http://host:80/path",
            "http://",
            "user@host:80",
            "https://host",
            "https://host:443/path",
            "https://user@host:443",
            "HTTPS://host:443",
            "ftp://host:21",
            "unix:",
            "unix://",
            "unix://host/path",
            "/run/jig.sock",
            "a b:80",
        ] {
            assert!(text.parse::<DaemonAddress>().is_err(), "{text}");
        }
    }
}
