//! The network of commands: its mode, and where they may connect to.

use super::{Config, file, listen::Address};
use crate::daemon::{
    outside::policy::{DEFAULT_PORTS, Policy, Words, address::Range, host::HostRule},
    sandbox::plan::Network,
};

/// What a daemon says that has nothing to allow.
const NOTHING_ALLOWED: &str =
    "commands can connect to nothing: proxy.allow_hosts of the configuration file lists no hosts";
/// What a daemon says that shares its network.
const SHARED: &str = "commands have the daemon's network: what listens on 127.0.0.1, and the metadata service of a cloud, can be reached by them";
/// What it says beside that, if it can be called there.
const CALLABLE: &str = "commands can connect to the daemon itself on its TCP port, and call it if they come by a key: listen on a Unix socket instead (--listen unix:/path)";

/// How the policy of the proxy is spoken of.
const WORDS: Words =
    Words { who: "commands", hosts: "proxy.allow_hosts", addresses: "proxy.allow_addresses" };

/// Reads the mode and the `[proxy]` table.
pub(super) fn network(
    mode: Option<&str>,
    proxy: Option<file::Proxy>,
    problems: &mut Vec<String>,
) -> (Network, Policy) {
    let network = match mode {
        None | Some("none") => Network::None,
        Some("host") => Network::Host,
        Some("proxy") => Network::Proxy,
        Some(other) => {
            problems.push(format!("--network {other}: give none, host or proxy"));
            // What is wrong with the table is of interest all the same.
            Network::Proxy
        }
    };
    if proxy.is_some() && network != Network::Proxy {
        let name = network.name();
        problems.push(format!(
            "[proxy] says where commands may connect to, but their network is {name}: give --network proxy (sandbox.network = \"proxy\"), or leave [proxy] out"
        ));
    }
    let file::Proxy { allow_hosts, allow_addresses } = proxy.unwrap_or_default();
    let hosts = each(WORDS.hosts, &allow_hosts, HostRule::parse, problems);
    let addresses = each(WORDS.addresses, &allow_addresses, Range::parse, problems);
    let policy = Policy { words: &WORDS, hosts, ports: DEFAULT_PORTS.to_vec(), addresses };
    (network, policy)
}

impl Config {
    /// What an operator should know of the network that commands have.
    pub(crate) fn network_warnings(&self) -> Vec<&'static str> {
        let is_tcp = |address: &Address| matches!(address, Address::Tcp(_));
        match self.network {
            Network::Proxy if self.egress.hosts.is_empty() => vec![NOTHING_ALLOWED],
            Network::None | Network::Proxy => Vec::new(),
            Network::Host if self.listen.iter().any(is_tcp) => vec![SHARED, CALLABLE],
            Network::Host => vec![SHARED],
        }
    }

    /// Lines that say which network commands have.
    pub(crate) fn network_report(&self) -> String {
        let mut report = format!("network: {}\n", self.network.name());
        if self.network == Network::Proxy {
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
pub(super) fn each<T>(
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
        let proxy = file::Proxy {
            allow_hosts: strings(&["a.example", "https://b.example", "*"]),
            allow_addresses: strings(&["10.0.0.0/8", "c.example"]),
        };
        let (network, policy) = network(Some("proxy"), Some(proxy), &mut problems);
        assert_eq!(network, Network::Proxy);
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
            (None, Network::None, Some("their network is none")),
            (Some("none"), Network::None, Some("their network is none")),
            (Some("host"), Network::Host, Some("their network is host")),
            (Some("proxy"), Network::Proxy, None),
            (Some("Proxy"), Network::Proxy, Some("--network Proxy: give")),
        ] {
            let mut problems = Vec::new();
            let (network, _) = network(mode, Some(file::Proxy::default()), &mut problems);
            assert_eq!(network, expected, "{mode:?}");
            assert_eq!(problems.len(), usize::from(complaint.is_some()));
            let told = problems.first().map_or("", String::as_str);
            assert!(told.contains(complaint.unwrap_or_default()), "{told}");
        }
    }
}
