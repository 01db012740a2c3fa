//! Network of commands: its mode, and the hosts that the proxy allows.

use super::{Config, file};
use crate::daemon::{
    netpolicy::rules::{
        DEFAULT_PORTS, NetworkRules, RulesLabels, address::AddressRange, host::HostRule,
    },
    sandbox::plan::NetworkMode,
};

const WARN_NO_ALLOWED_HOSTS: &str =
    "commands can connect to no host: proxy.allow_hosts of the configuration file is empty";
const WARN_SHARED_NETWORK: &str = "commands have the daemon's network: they can reach services on 127.0.0.1 and the metadata service of a cloud";
/// Added to [`WARN_SHARED_NETWORK`] if the daemon listens on TCP.
const WARN_DAEMON_REACHABLE: &str = "commands can connect to the daemon itself on its TCP port, and call it if they obtain a key: listen on a Unix socket instead (--listen unix:/path)";

/// Terms for error messages of the proxy.
const PROXY_LABELS: RulesLabels = RulesLabels {
    connector: "commands",
    hosts_setting: "proxy.allow_hosts",
    addresses_setting: "proxy.allow_addresses",
};

/// Checks the mode and the `[proxy]` table.
pub(super) fn parse_network(
    mode: Option<&str>,
    proxy: Option<file::ProxyTable>,
    problems: &mut Vec<String>,
) -> (NetworkMode, NetworkRules) {
    let network = match mode {
        None | Some("none") => NetworkMode::None,
        Some("host") => NetworkMode::Host,
        Some("proxy") => NetworkMode::Proxy,
        Some(other) => {
            problems.push(format!("--network {other}: give none, host or proxy"));
            // So that problems of the table are reported too.
            NetworkMode::Proxy
        }
    };
    if proxy.is_some() && network != NetworkMode::Proxy {
        let name = network.name();
        problems.push(format!(
            "[proxy] requires the network of commands to be the proxy, but their network is {name}: give --network proxy (sandbox.network = \"proxy\"), or remove [proxy]"
        ));
    }

    let file::ProxyTable { allow_hosts, allow_addresses } = proxy.unwrap_or_default();
    let hosts = parse_each(PROXY_LABELS.hosts_setting, &allow_hosts, HostRule::parse, problems);
    let addresses =
        parse_each(PROXY_LABELS.addresses_setting, &allow_addresses, AddressRange::parse, problems);
    let rules =
        NetworkRules { labels: &PROXY_LABELS, hosts, ports: DEFAULT_PORTS.to_vec(), addresses };
    (network, rules)
}

impl Config {
    /// Warnings about the network of commands, for the operator.
    pub(crate) fn network_warnings(&self) -> Vec<&'static str> {
        match self.network {
            NetworkMode::Proxy if self.egress.hosts.is_empty() => vec![WARN_NO_ALLOWED_HOSTS],
            NetworkMode::None | NetworkMode::Proxy => Vec::new(),
            NetworkMode::Host
                if self.listeners.iter().any(|listener| listener.address.is_tcp()) =>
            {
                vec![WARN_SHARED_NETWORK, WARN_DAEMON_REACHABLE]
            }
            NetworkMode::Host => vec![WARN_SHARED_NETWORK],
        }
    }

    /// Returns the lines of `--check` about the network of commands.
    pub(crate) fn network_report(&self) -> String {
        let mut report = format!("network: {}\n", self.network.name());
        if self.network == NetworkMode::Proxy {
            let hosts = self.egress.hosts.iter().map(ToString::to_string);
            let addresses = self.egress.addresses.iter().map(ToString::to_string);
            for (name, rules) in [
                ("allow_hosts", hosts.collect::<Vec<_>>()),
                ("allow_addresses", addresses.collect()),
            ] {
                if !rules.is_empty() {
                    report += &format!("  {name:<18} {}\n", rules.join(" "));
                }
            }
        }
        for warning in self.network_warnings() {
            report += &format!("  warning: {warning}\n");
        }
        report
    }
}

/// Parses each text of the list `key`. Reports the invalid ones and returns the others.
pub(super) fn parse_each<T>(
    key: &str,
    texts: &[String],
    parse: impl Fn(&str) -> Result<T, String>,
    problems: &mut Vec<String>,
) -> Vec<T> {
    let mut values = Vec::new();
    for text in texts {
        match parse(text) {
            Ok(value) => values.push(value),
            Err(problem) => problems.push(format!("{key} {text:?}: {problem}")),
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn every_wrong_rule_is_reported() {
        let mut problems = Vec::new();
        let proxy = file::ProxyTable {
            allow_hosts: strings(&["a.example", "https://b.example", "*"]),
            allow_addresses: strings(&["10.0.0.0/8", "c.example"]),
        };
        let (network, policy) = parse_network(Some("proxy"), Some(proxy), &mut problems);
        assert_eq!(network, NetworkMode::Proxy);
        assert_eq!((policy.hosts.len(), policy.addresses.len()), (1, 1));
        for (problem, prefix) in problems.iter().zip([
            "proxy.allow_hosts \"https://b.example\": ",
            "proxy.allow_hosts \"*\": ",
            "proxy.allow_addresses \"c.example\": ",
        ]) {
            assert!(problem.starts_with(prefix), "{problem}");
        }
        assert_eq!(problems.len(), 3);
    }

    #[test]
    fn the_proxy_table_requires_the_proxy_mode() {
        for (mode, expected, complaint) in [
            (None, NetworkMode::None, Some("their network is none")),
            (Some("none"), NetworkMode::None, Some("their network is none")),
            (Some("host"), NetworkMode::Host, Some("their network is host")),
            (Some("proxy"), NetworkMode::Proxy, None),
            (Some("Proxy"), NetworkMode::Proxy, Some("--network Proxy: give")),
        ] {
            let mut problems = Vec::new();
            let (network, _) =
                parse_network(mode, Some(file::ProxyTable::default()), &mut problems);
            assert_eq!(network, expected, "{mode:?}");
            assert_eq!(problems.len(), usize::from(complaint.is_some()));
            let problem = problems.first().map_or("", String::as_str);
            assert!(problem.contains(complaint.unwrap_or_default()), "{problem}");
        }
    }
}
