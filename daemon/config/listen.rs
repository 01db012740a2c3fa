//! Listeners: a TCP port, possibly with TLS, or a Unix socket.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    ops::Range,
    path::PathBuf,
};

use super::{
    file::ListenerTable,
    tls::{TlsFiles, TlsPaths},
};

const DEFAULT_LISTEN_ADDR: &str = "127.0.0.1:50051";
/// First descriptor that the service manager passes (sd_listen_fds(3)).
const FIRST_INHERITED_FD: i32 = 3;
/// Descriptors that the service manager may pass.
const MAX_INHERITED_FDS: i32 = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenAddr {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// What a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerProtocol {
    /// gRPC and the ways in beside it.
    Jig,
    /// The process service of the Kubernetes agent-sandbox runtime.
    AgentSandboxGrpc,
    /// The file API of that runtime.
    AgentSandboxRest,
    /// Health checks alone.
    Health,
    /// Metrics for Prometheus alone.
    Metrics,
}

/// A listener to bind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListenerConfig {
    pub(crate) address: ListenAddr,
    pub(crate) protocol: ListenerProtocol,
    /// `None`: plaintext.
    pub(crate) tls: Option<TlsFiles>,
}

/// Whether callers of addresses that other machines reach are authenticated and encrypted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemoteAccess {
    pub(crate) has_keys: bool,
    /// Whether such an address may lack TLS.
    pub(crate) allow_plaintext: bool,
}

/// The listeners as they were written.
pub(super) struct ListenerSettings<'a> {
    /// Values of `--listen`. They replace the other two.
    pub(super) flags: &'a [String],
    pub(super) list: &'a [String],
    pub(super) tables: Vec<ListenerTable>,
    /// TLS for `flags` and `list`.
    pub(super) tls: Option<&'a TlsFiles>,
    /// Whether the service manager has passed listeners: then there is no default address.
    pub(super) has_inherited: bool,
}

/// Returns the descriptors that the service manager has passed to this process (`LISTEN_FDS`).
///
/// Variables that were meant for another process are ignored (sd_listen_fds(3)).
pub(crate) fn inherited_descriptors() -> Range<i32> {
    inherited_from(std::process::id(), |name| std::env::var(name).ok())
}

fn inherited_from(pid: u32, variable: impl Fn(&str) -> Option<String>) -> Range<i32> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let count = number("LISTEN_FDS").filter(|_| number("LISTEN_PID") == Some(pid));
    let count = i32::try_from(count.unwrap_or_default()).unwrap_or(MAX_INHERITED_FDS);
    FIRST_INHERITED_FD..FIRST_INHERITED_FD + count.min(MAX_INHERITED_FDS)
}

/// Checks the listeners. Returns the valid ones.
pub(super) fn parse_listeners(
    settings: ListenerSettings<'_>,
    remote: RemoteAccess,
    problems: &mut Vec<String>,
) -> Vec<ListenerConfig> {
    let default = [DEFAULT_LISTEN_ADDR.to_owned()];
    let tables = if settings.flags.is_empty() { settings.tables } else { Vec::new() };
    let texts = match (settings.flags, settings.list) {
        ([], []) if tables.is_empty() && !settings.has_inherited => default.as_slice(),
        ([], list) => list,
        (flags, _) => flags,
    };

    let mut listeners = Vec::new();
    for text in texts {
        let address = ListenAddr::parse("--listen", text);
        listeners.extend(
            address
                .map(|address| {
                    let tls = settings.tls.filter(|_| address.is_tcp()).cloned();
                    ListenerConfig { address, protocol: ListenerProtocol::Jig, tls }
                })
                .map_err(|problem| problems.push(problem)),
        );
    }
    for table in tables {
        listeners.extend(parse_table(table, problems));
    }
    for listener in &listeners {
        problems.extend(remote.problems(listener));
    }
    listeners
}

/// Checks a `[[listeners]]` table.
fn parse_table(table: ListenerTable, problems: &mut Vec<String>) -> Option<ListenerConfig> {
    let paths =
        TlsPaths { cert: table.tls_cert, key: table.tls_key, client_ca: table.tls_client_ca };
    let name = |part: &str| format!("listeners: {}: tls_{}", table.address, part.replace('-', "_"));
    let tls = paths.complete(name, problems);

    match ListenAddr::parse("--listen", &table.address) {
        Ok(ListenAddr::Unix(_)) if tls.is_some() => {
            problems.push(format!(
                "listeners: {}: a Unix socket has no TLS: remove tls_cert and tls_key",
                table.address
            ));
            None
        }
        Ok(address) => Some(ListenerConfig { address, protocol: ListenerProtocol::Jig, tls }),
        Err(problem) => {
            problems.push(problem);
            None
        }
    }
}

impl RemoteAccess {
    /// Returns the problems of a listener that other machines reach.
    pub(crate) fn problems(self, listener: &ListenerConfig) -> Vec<String> {
        let mut problems = Vec::new();
        let ListenerConfig { address, protocol, tls } = listener;
        let tls_settings = match protocol {
            _ if address.is_local() => return problems,
            ListenerProtocol::Health | ListenerProtocol::Metrics => return problems,
            ListenerProtocol::Jig => "--tls-cert and --tls-key",
            ListenerProtocol::AgentSandboxGrpc | ListenerProtocol::AgentSandboxRest => {
                "agent_sandbox.tls_cert and tls_key"
            }
        };
        let setting = protocol.setting();
        if !self.has_keys {
            problems.push(format!(
                "{setting} {address} is reachable from other machines, and there are no keys to authenticate callers: name a key file with --keys (`jig key new` creates one), or give a loopback address or unix:/path"
            ));
        }
        if tls.is_none() && !self.allow_plaintext {
            problems.push(format!(
                "{setting} {address} is reachable from other machines, and without TLS they can read keys and files on the way: give {tls_settings}, or --allow-plaintext if a proxy or a private network protects the connections"
            ));
        }
        problems
    }
}

impl ListenerProtocol {
    /// The setting with the address of the listener.
    pub(crate) fn setting(self) -> &'static str {
        match self {
            Self::Jig => "--listen",
            Self::AgentSandboxGrpc => "agent_sandbox.grpc_listen",
            Self::AgentSandboxRest => "agent_sandbox.rest_listen",
            Self::Health => "--health-listen",
            Self::Metrics => "--metrics-listen",
        }
    }
}

impl ListenAddr {
    /// Reads `HOST:PORT`, with an IP address or `localhost`, or `unix:/path`.
    ///
    /// Problems name `setting`.
    pub(super) fn parse(setting: &str, text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') {
                Ok(Self::Unix(PathBuf::from(path)))
            } else {
                Err(format!(
                    "{setting} {text}: the path of a Unix socket must be absolute: unix:/path"
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
                "{setting} {text} is not an address: give 127.0.0.1:50051, [::1]:50051 or unix:/path"
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

    pub(super) fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp(_))
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
    use std::path::PathBuf;

    use super::*;

    fn settings<'a>(flags: &'a [String], list: &'a [String]) -> ListenerSettings<'a> {
        ListenerSettings { flags, list, tables: Vec::new(), tls: None, has_inherited: false }
    }

    fn addresses(settings: ListenerSettings<'_>) -> Vec<String> {
        let mut problems = Vec::new();
        let remote = RemoteAccess { has_keys: false, allow_plaintext: false };
        let listeners = parse_listeners(settings, remote, &mut problems);
        assert_eq!(problems, Vec::<String>::new());
        listeners.iter().map(|listener| listener.address.to_string()).collect()
    }

    #[test]
    fn flags_replace_the_listeners_of_the_file() {
        let flag = ["127.0.0.1:1".to_owned()];
        let list = ["127.0.0.1:2".to_owned()];
        let table = || {
            let text = "address = \"127.0.0.1:3\"";
            vec![toml::from_str::<ListenerTable>(text).unwrap()]
        };
        assert_eq!(addresses(settings(&[], &[])), [DEFAULT_LISTEN_ADDR]);
        let inherited = ListenerSettings { has_inherited: true, ..settings(&[], &[]) };
        assert_eq!(addresses(inherited), [""; 0]);
        let both = ListenerSettings { tables: table(), ..settings(&[], &list) };
        assert_eq!(addresses(both), ["127.0.0.1:2", "127.0.0.1:3"]);
        let only_table = ListenerSettings { tables: table(), ..settings(&[], &[]) };
        assert_eq!(addresses(only_table), ["127.0.0.1:3"]);
        let all = ListenerSettings { tables: table(), ..settings(&flag, &list) };
        assert_eq!(addresses(all), ["127.0.0.1:1"]);
    }

    #[test]
    fn tls_applies_to_tcp_and_only_to_its_listeners() {
        let files = TlsFiles { cert: PathBuf::from("c"), key: PathBuf::from("k"), client_ca: None };
        let list = ["127.0.0.1:1".to_owned(), "unix:/a".to_owned()];
        let table = "address = \"0.0.0.0:2\"\ntls_cert = \"c2\"\ntls_key = \"k2\"";
        let tables = vec![toml::from_str(table).unwrap()];
        let all = ListenerSettings { tables, tls: Some(&files), ..settings(&[], &list) };
        let mut problems = Vec::new();
        let remote = RemoteAccess { has_keys: true, allow_plaintext: false };
        let listeners = parse_listeners(all, remote, &mut problems);
        assert_eq!(problems, Vec::<String>::new());
        let certs = listeners.iter().map(|listener| {
            listener.tls.as_ref().map_or(String::new(), |tls| tls.cert.display().to_string())
        });
        assert_eq!(certs.collect::<Vec<_>>(), ["c", "", "c2"]);

        for (table, expected) in [
            ("address = \"unix:/a\"\ntls_cert = \"c\"\ntls_key = \"k\"", "has no TLS"),
            ("address = \"127.0.0.1:1\"\ntls_cert = \"c\"", "tls_cert needs"),
            ("address = \"0.0.0.0:1\"", "without TLS"),
            ("address = \"x\"", "is not an address"),
        ] {
            let tables = vec![toml::from_str(table).unwrap()];
            let settings = ListenerSettings { tables, ..settings(&[], &[]) };
            let mut problems = Vec::new();
            parse_listeners(settings, remote, &mut problems);
            assert!(problems.concat().contains(expected), "{problems:?}");
        }
    }

    #[test]
    fn descriptors_of_this_process_are_inherited() {
        for (pid, count, expected) in [
            (Some("7"), Some("2"), 3..5),
            (Some("8"), Some("2"), 3..3),
            (None, Some("2"), 3..3),
            (Some("7"), None, 3..3),
            (Some("7"), Some("x"), 3..3),
            (Some("7"), Some("-1"), 3..3),
            (Some("7"), Some("4294967295"), 3..67),
        ] {
            let variable = |name: &str| {
                let value = if name == "LISTEN_PID" { pid } else { count };
                value.map(str::to_owned)
            };
            assert_eq!(inherited_from(7, variable), expected, "{pid:?} {count:?}");
        }
    }

    #[test]
    fn remote_addresses_need_keys_and_tls() {
        let remote = ListenAddr::parse("--listen", "0.0.0.0:1").unwrap();
        let local = ListenAddr::parse("--listen", "127.0.0.1:1").unwrap();
        for (has_keys, allow_plaintext, has_tls, expected) in [
            (false, false, false, 2),
            (true, false, false, 1),
            (true, true, false, 0),
            (true, false, true, 0),
            (false, false, true, 1),
        ] {
            let access = RemoteAccess { has_keys, allow_plaintext };
            let files =
                TlsFiles { cert: PathBuf::from("c"), key: PathBuf::from("k"), client_ca: None };
            let listener = |address: &ListenAddr, protocol| ListenerConfig {
                address: address.clone(),
                protocol,
                tls: has_tls.then(|| files.clone()),
            };
            for protocol in [ListenerProtocol::Jig, ListenerProtocol::AgentSandboxRest] {
                assert_eq!(access.problems(&listener(&remote, protocol)).len(), expected);
                assert_eq!(access.problems(&listener(&local, protocol)), Vec::<String>::new());
            }
        }
    }

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
            let address = ListenAddr::parse("--listen", text).unwrap();
            assert_eq!(address.to_string(), expected, "{text}");
            assert!(address.is_local(), "{text}");
        }
        for text in ["0.0.0.0:50051", "[::]:1", "10.0.0.1:1", "192.168.1.1:1"] {
            assert!(!ListenAddr::parse("--listen", text).unwrap().is_local(), "{text}");
        }
        for text in ["", "50051", ":50051", "unix:a", "unix:", "127.0.0.1", "host:1"] {
            assert!(ListenAddr::parse("--listen", text).is_err(), "{text}");
        }
    }
}
