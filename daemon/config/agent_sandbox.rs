//! The `[agent_sandbox]` table: the listeners of the Kubernetes agent-sandbox runtime, and the
//! environment variables that it serves as metadata.

use std::{collections::BTreeMap, env};

use super::{
    file::AgentSandboxTable,
    listen::{ListenAddr, ListenerConfig, ListenerProtocol, RemoteAccess},
    tls::{TlsFiles, TlsPaths},
};

/// The ports of the standard, on the loopback interface.
const DEFAULT_GRPC_ADDR: &str = "127.0.0.1:9090";
const DEFAULT_REST_ADDR: &str = "127.0.0.1:8080";
/// Parts of names of environment variables that hold credentials. The standard forbids to serve
/// those.
const CREDENTIAL_MARKERS: [&str; 6] =
    ["CREDENTIAL", "KEY", "PASSWD", "PASSWORD", "SECRET", "TOKEN"];

/// Checked settings of the table.
#[derive(Debug, Default)]
pub(super) struct AgentSandboxSettings {
    pub(super) listeners: Vec<ListenerConfig>,
    /// The variables that are set, with their values.
    pub(super) metadata: BTreeMap<String, String>,
}

/// Checks the table.
pub(super) fn parse_agent_sandbox(
    table: AgentSandboxTable,
    remote: RemoteAccess,
    problems: &mut Vec<String>,
) -> AgentSandboxSettings {
    let paths =
        TlsPaths { cert: table.tls_cert, key: table.tls_key, client_ca: table.tls_client_ca };
    let name = |part: &str| format!("agent_sandbox.tls_{}", part.replace('-', "_"));
    let tls = paths.complete(name, problems);

    let mut settings = AgentSandboxSettings::default();
    for (protocol, text, default) in [
        (ListenerProtocol::AgentSandboxGrpc, &table.grpc_listen, DEFAULT_GRPC_ADDR),
        (ListenerProtocol::AgentSandboxRest, &table.rest_listen, DEFAULT_REST_ADDR),
    ] {
        let text = text.as_deref().unwrap_or(default);
        match parse_listener(text, protocol, tls.as_ref()) {
            Ok(listener) => {
                problems.extend(remote.problems(&listener));
                settings.listeners.push(listener);
            }
            Err(problem) => problems.push(problem),
        }
    }

    for name in table.metadata {
        if let Err(problem) = check_name(&name) {
            problems.push(problem);
        } else if let Ok(value) = env::var(&name) {
            settings.metadata.insert(name, value);
        }
    }
    settings
}

fn parse_listener(
    text: &str,
    protocol: ListenerProtocol,
    tls: Option<&TlsFiles>,
) -> Result<ListenerConfig, String> {
    let address = ListenAddr::parse(protocol.setting(), text)?;
    let tls = tls.filter(|_| address.is_tcp()).cloned();
    Ok(ListenerConfig { address, protocol, tls })
}

/// Checks that a variable has a name, and that it holds no credential by its name.
fn check_name(name: &str) -> Result<(), String> {
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(is_name_byte) {
        return Err(format!(
            "agent_sandbox.metadata {name:?}: give the whole name of an environment variable"
        ));
    }
    let upper = name.to_ascii_uppercase();
    match CREDENTIAL_MARKERS.iter().find(|marker| upper.contains(*marker)) {
        Some(marker) => Err(format!(
            "agent_sandbox.metadata {name:?}: a name with {marker} stands for a credential, which callers must not read: remove it"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (AgentSandboxSettings, Vec<String>) {
        let mut problems = Vec::new();
        let remote = RemoteAccess { has_keys: false, allow_plaintext: false };
        let table = toml::from_str(text).unwrap();
        (parse_agent_sandbox(table, remote, &mut problems), problems)
    }

    #[test]
    fn listeners_are_local_by_default() {
        let (settings, problems) = parse("");
        let addresses: Vec<_> =
            settings.listeners.iter().map(|listener| listener.address.to_string()).collect();
        assert_eq!(addresses, ["127.0.0.1:9090", "127.0.0.1:8080"]);
        assert_eq!(problems, [""; 0]);

        for (text, expected) in [
            ("grpc_listen = \"0.0.0.0:9090\"", "agent_sandbox.grpc_listen 0.0.0.0:9090"),
            ("rest_listen = \"[::]:8080\"", "no keys"),
            ("rest_listen = \"8080\"", "agent_sandbox.rest_listen 8080 is not an address"),
            ("tls_cert = \"c\"", "agent_sandbox.tls_cert needs agent_sandbox.tls_key"),
        ] {
            let problems = parse(text).1.concat();
            assert!(problems.contains(expected), "{text}: {problems}");
        }
    }

    #[test]
    fn metadata_has_listed_variables_without_credentials() {
        // Cargo sets it.
        let (settings, problems) = parse("metadata = [\"CARGO_PKG_NAME\", \"NO_SUCH_VARIABLE\"]");
        assert_eq!(settings.metadata["CARGO_PKG_NAME"], "jig");
        assert_eq!((settings.metadata.len(), problems.len()), (1, 0));

        for name in ["SANDBOX_API_KEY", "sandbox_token", "DB_PASSWORD", "SANDBOX_*", "", "A=B"] {
            let (settings, problems) = parse(&format!("metadata = [{name:?}]"));
            assert_eq!((settings.metadata.len(), problems.len()), (0, 1), "{name}");
        }
    }
}
