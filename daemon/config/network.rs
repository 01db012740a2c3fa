//! The network of commands: its mode, and where they may connect to.

use super::{Config, file, listen::ListenAddr};
use crate::daemon::{
    netpolicy::rules::{
        DEFAULT_PORTS, NetworkRules, RulesLabels, address::AddressRange, host::HostRule,
    },
    sandbox::plan::NetworkMode,
};

/// What a daemon says that has nothing to allow.
const WARN_NO_ALLOWED_HOSTS: &str =
    "commands can connect to nothing: proxy.allow_hosts of the configuration file lists no hosts";
/// What a daemon says that shares its network.
const WARN_SHARED_NETWORK: &str = "commands have the daemon's network: what listens on 127.0.0.1, and the metadata service of a cloud, can be reached by them";
/// What it says beside that, if it can be called there.
const WARN_DAEMON_REACHABLE: &str = "commands can connect to the daemon itself on its TCP port, and call it if they come by a key: listen on a Unix socket instead (--listen unix:/path)";

/// How the policy of the proxy is spoken of.
const PROXY_POLICY_TERMS: RulesLabels = RulesLabels {
    connector: "commands",
    hosts_setting: "proxy.allow_hosts",
    addresses_setting: "proxy.allow_addresses",
};

/// Reads the mode and the `[proxy]` table.
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
            // What is wrong with the table is of interest all the same.
            NetworkMode::Proxy
        }
    };
    if proxy.is_some() && network != NetworkMode::Proxy {
        let name = network.name();
        problems.push(format!(
            "[proxy] says where commands may connect to, but their network is {name}: give --network proxy (sandbox.network = \"proxy\"), or leave [proxy] out"
        ));
    }
    let file::ProxyTable { allow_hosts, allow_addresses } = proxy.unwrap_or_default();
    let hosts =
        parse_each(PROXY_POLICY_TERMS.hosts_setting, &allow_hosts, HostRule::parse, problems);
    let addresses = parse_each(
        PROXY_POLICY_TERMS.addresses_setting,
        &allow_addresses,
        AddressRange::parse,
        problems,
    );
    let policy = NetworkRules {
        labels: &PROXY_POLICY_TERMS,
        hosts,
        ports: DEFAULT_PORTS.to_vec(),
        addresses,
    };
    (network, policy)
}

impl Config {
    /// What an operator should know of the network that commands have.
    pub(crate) fn network_warnings(&self) -> Vec<&'static str> {
        let is_tcp = |address: &ListenAddr| matches!(address, ListenAddr::Tcp(_));
        match self.network {
            NetworkMode::Proxy if self.egress.hosts.is_empty() => vec![WARN_NO_ALLOWED_HOSTS],
            NetworkMode::None | NetworkMode::Proxy => Vec::new(),
            NetworkMode::Host if self.listen.iter().any(is_tcp) => {
                vec![WARN_SHARED_NETWORK, WARN_DAEMON_REACHABLE]
            }
            NetworkMode::Host => vec![WARN_SHARED_NETWORK],
        }
    }

    /// Lines that say which network commands have.
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

/// Reads each of the texts of a setting.
pub(super) fn parse_each<T>(
    key: &str,
    texts: &[String],
    parse: impl Fn(&str) -> Result<T, String>,
    problems: &mut Vec<String>,
) -> Vec<T> {
    let mut read = Vec::new();
    for text in texts {
        match parse(text) {
            Ok(value) => read.push(value),
            Err(problem) => problems.push(format!("{key} {text:?}: {problem}")),
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn each_wrong_rule_is_named() {
        let mut problems = Vec::new();
        let proxy = file::ProxyTable {
            allow_hosts: strings(&["a.example", "https://b.example", "*"]),
            allow_addresses: strings(&["10.0.0.0/8", "c.example"]),
        };
        let (network, policy) = parse_network(Some("proxy"), Some(proxy), &mut problems);
        assert_eq!(network, NetworkMode::Proxy);
        assert_eq!((policy.hosts.len(), policy.addresses.len()), (1, 1));
        for (problem, begins) in problems.iter().zip([
            "proxy.allow_hosts \"https://b.example\": ",
            "proxy.allow_hosts \"*\": ",
            "proxy.allow_addresses \"c.example\": ",
        ]) {
            assert!(problem.starts_with(begins), "{problem}");
        }
        assert_eq!(problems.len(), 3);
    }

    #[test]
    fn rules_without_the_proxy_are_a_mistake() {
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
            let told = problems.first().map_or("", String::as_str);
            assert!(told.contains(complaint.unwrap_or_default()), "{told}");
        }
    }
}
