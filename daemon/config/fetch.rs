//! The `[fetch]` table: hosts that `fetch_url` can fetch from.
//!
//! Without hosts, the tool does not exist.

use super::{Config, file, network::parse_each};
use crate::daemon::netpolicy::rules::{
    DEFAULT_PORTS, NetworkRules, RulesLabels, address::AddressRange, host::HostRule,
};

pub(crate) const FETCH_URL: &str = "fetch_url";

/// Terms for error messages of `fetch_url`.
const FETCH_LABELS: RulesLabels = RulesLabels {
    connector: "calls of fetch_url",
    hosts_setting: "fetch.hosts",
    addresses_setting: "fetch.allow_addresses",
};

/// Checks the table.
pub(super) fn parse_fetch(table: file::FetchTable, problems: &mut Vec<String>) -> NetworkRules {
    let file::FetchTable { hosts, ports, allow_addresses } = table;
    let ports = ports.unwrap_or_else(|| DEFAULT_PORTS.to_vec());
    if ports.contains(&0) {
        problems.push("fetch.ports 0: give ports from 1 to 65535".to_owned());
    }

    NetworkRules {
        labels: &FETCH_LABELS,
        hosts: parse_each(FETCH_LABELS.hosts_setting, &hosts, HostRule::parse, problems),
        ports,
        addresses: parse_each(
            FETCH_LABELS.addresses_setting,
            &allow_addresses,
            AddressRange::parse,
            problems,
        ),
    }
}

impl Config {
    /// Tools that cannot work with this configuration, such as `fetch_url` without `[fetch]`.
    pub(crate) fn unconfigured_tools(&self) -> &'static [&'static str] {
        if self.fetch.hosts.is_empty() { &[FETCH_URL] } else { &[] }
    }

    /// Returns the lines of `--check` about `fetch_url`.
    pub(crate) fn fetch_report(&self) -> String {
        let NetworkRules { labels: _, hosts, ports, addresses } = &self.fetch;
        if hosts.is_empty() {
            return String::new();
        }

        let mut report = String::from("fetch_url\n");
        for (name, values) in [
            ("hosts", to_strings(hosts)),
            ("ports", to_strings(ports)),
            ("allow_addresses", to_strings(addresses)),
        ] {
            if !values.is_empty() {
                report += &format!("  {name:<18} {}\n", values.join(" "));
            }
        }
        report
    }
}

fn to_strings<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_value_is_reported() {
        let strings = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let table = file::FetchTable {
            hosts: strings(&["a.example", "http://b.example"]),
            ports: Some(vec![0, 8080]),
            allow_addresses: strings(&["127.0.0.1/8"]),
        };
        let mut problems = Vec::new();
        let policy = parse_fetch(table, &mut problems);
        assert_eq!((policy.hosts.len(), policy.addresses.len()), (1, 0));
        assert_eq!(problems.len(), 3);
        for (problem, prefix) in problems.iter().zip([
            "fetch.ports 0: ",
            "fetch.hosts \"http://b.example\": ",
            "fetch.allow_addresses \"127.0.0.1/8\": ",
        ]) {
            assert!(problem.starts_with(prefix), "{problem}");
        }
    }

    #[test]
    fn defaults_are_no_hosts_and_the_ports_of_http() {
        let mut problems = Vec::new();
        let policy = parse_fetch(file::FetchTable::default(), &mut problems);
        assert_eq!((policy.hosts.len(), policy.ports), (0, vec![80, 443]));
        assert_eq!(problems, Vec::<String>::new());
    }
}
