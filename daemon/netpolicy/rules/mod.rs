//! The rules of a network policy. Pure: no lookups, no I/O.
//!
//! A connection must pass two checks. The target's host and port must be allowed
//! ([`NetworkRules::check_host`]). Then each address that its name resolves to must be public or
//! listed ([`NetworkRules::check_address`]). The second check matters because any party can point a
//! name of its own to any address. It keeps such names from leading to the daemon's machine, its
//! network, or the metadata service of its cloud.

pub(crate) mod address;
pub(crate) mod host;

use std::net::IpAddr;

use self::{
    address::{AddressRange, special_purpose},
    host::{Host, HostRule},
};

/// Ports of rules without a port, by default: HTTP and HTTPS.
pub(crate) const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// What the operator allows. Without `hosts`, everything is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetworkRules {
    pub(crate) labels: &'static RulesLabels,
    pub(crate) hosts: Vec<HostRule>,
    /// Ports of the rules without a port.
    pub(crate) ports: Vec<u16>,
    /// Addresses that names may resolve to although they are not public.
    pub(crate) addresses: Vec<AddressRange>,
}

/// Terms of the texts that explain denials.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RulesLabels {
    /// The party that connects, in the plural: "commands".
    pub(crate) connector: &'static str,
    /// The setting that lists hosts: "proxy.allow_hosts".
    pub(crate) hosts_setting: &'static str,
    /// The setting that lists addresses.
    pub(crate) addresses_setting: &'static str,
}

/// Why a connection is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Denial {
    /// No rule matches the host.
    Host,
    /// Rules match the host, on other ports.
    Port,
    /// The host is an address in a form that programs read differently.
    AmbiguousHost,
    /// All addresses of the name are denied. With the first of them, and its kind.
    Address(IpAddr, &'static str),
    /// The daemon itself listens there.
    Daemon,
}

impl NetworkRules {
    /// Checks the host and port of a target.
    ///
    /// # Errors
    ///
    /// The host is not allowed, or not on this port.
    pub(crate) fn check_host(&self, host: &Host, port: u16) -> Result<(), Denial> {
        if host.is_ambiguous() {
            return Err(Denial::AmbiguousHost);
        }

        let mut matching = self.hosts.iter().filter(|rule| rule.matches(host));
        match matching.next() {
            None => Err(Denial::Host),
            Some(first)
                if self.allows_port(first, port)
                    || matching.any(|rule| self.allows_port(rule, port)) =>
            {
                Ok(())
            }
            Some(_) => Err(Denial::Port),
        }
    }

    fn allows_port(&self, rule: &HostRule, port: u16) -> bool {
        match rule.port() {
            Some(own) => own == port,
            None => self.ports.contains(&port),
        }
    }

    /// Checks an address that a name resolves to.
    ///
    /// # Errors
    ///
    /// Returns the kind of a denied address.
    pub(crate) fn check_address(&self, address: IpAddr) -> Result<(), &'static str> {
        if self.addresses.iter().any(|range| range.contains(address)) {
            return Ok(());
        }
        special_purpose(address).map_or(Ok(()), Err)
    }

    /// Whether a listed range includes the loopback interface of this host.
    pub(crate) fn reaches_loopback(&self) -> bool {
        self.addresses.iter().any(AddressRange::reaches_loopback)
    }
}

impl Denial {
    /// Returns the denial's name in records and spans.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Host => "host_not_allowed",
            Self::Port => "port_not_allowed",
            Self::AmbiguousHost => "ambiguous_address",
            Self::Address(..) => "address_not_allowed",
            Self::Daemon => "daemon",
        }
    }

    /// Explains the denial of a connection to `host` on `port`, with the setting that would allow it.
    pub(crate) fn explain(&self, rules: &NetworkRules, host: &Host, port: u16) -> String {
        let RulesLabels { connector, hosts_setting, addresses_setting } = rules.labels;
        let rule = || {
            if rules.ports.contains(&port) { host.to_string() } else { format!("{host}:{port}") }
        };
        match self {
            Self::Host => format!(
                "{host}:{port} is not among the hosts that {connector} may connect to. The operator of jigd can allow it: {hosts_setting} = [\"{}\"]",
                rule()
            ),
            Self::Port => format!(
                "{host} is allowed, but not on port {port}. The operator of jigd can allow it: {hosts_setting} = [\"{}\"]",
                rule()
            ),
            Self::AmbiguousHost => format!(
                "{host} is an address in a form that programs read differently: give four decimal numbers, or a name"
            ),
            Self::Daemon => {
                format!("{host}:{port} is jigd itself, to which {connector} must not connect")
            }
            Self::Address(address, kind) => format!(
                "{host} leads to {address}, a {kind} address. The operator of jigd can allow it: {addresses_setting} = [\"{address}\"]"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: RulesLabels = RulesLabels {
        connector: "commands",
        hosts_setting: "proxy.allow_hosts",
        addresses_setting: "proxy.allow_addresses",
    };

    fn policy(hosts: &[&str], addresses: &[&str]) -> NetworkRules {
        NetworkRules {
            labels: &LABELS,
            ports: DEFAULT_PORTS.to_vec(),
            hosts: hosts.iter().map(|text| HostRule::parse(text).unwrap()).collect(),
            addresses: addresses.iter().map(|text| AddressRange::parse(text).unwrap()).collect(),
        }
    }

    #[test]
    fn hosts_are_allowed_by_name_and_port() {
        let policy = policy(
            &[
                "packages.example",
                "*.files.example",
                "odd.example:8443",
                "odd.example:9000",
                "192.0.2.7",
                "[2001:db8::7]:8080",
            ],
            &[],
        );
        for (host, port, expected) in [
            ("packages.example", 443, Ok(())),
            ("packages.example", 80, Ok(())),
            ("PACKAGES.Example", 443, Ok(())),
            ("packages.example.", 443, Ok(())),
            ("packages.example", 22, Err(Denial::Port)),
            ("packages.example", 8443, Err(Denial::Port)),
            ("www.packages.example", 443, Err(Denial::Host)),
            ("notpackages.example", 443, Err(Denial::Host)),
            ("packages.example.evil.example", 443, Err(Denial::Host)),
            ("a.files.example", 443, Ok(())),
            ("a.b.files.example.", 80, Ok(())),
            ("files.example", 443, Err(Denial::Host)),
            ("evilfiles.example", 443, Err(Denial::Host)),
            ("a.files.example", 8443, Err(Denial::Port)),
            ("odd.example", 8443, Ok(())),
            ("odd.example", 9000, Ok(())),
            ("odd.example", 443, Err(Denial::Port)),
            ("192.0.2.7", 80, Ok(())),
            ("192.0.2.8", 80, Err(Denial::Host)),
            ("[2001:db8::7]", 8080, Ok(())),
            ("[2001:DB8:0::7]", 8080, Ok(())),
            ("[2001:db8::7]", 443, Err(Denial::Port)),
            ("[::ffff:192.0.2.7]", 80, Err(Denial::Host)),
            ("0xc0000207", 80, Err(Denial::AmbiguousHost)),
            ("3221225991", 80, Err(Denial::AmbiguousHost)),
            ("0300.0.2.7", 80, Err(Denial::AmbiguousHost)),
            ("192.0.519", 80, Err(Denial::AmbiguousHost)),
            ("a.files.example.1", 80, Err(Denial::AmbiguousHost)),
        ] {
            let parsed = Host::parse(host).unwrap();
            assert_eq!(policy.check_host(&parsed, port), expected, "{host}:{port}");
        }
        let nothing = NetworkRules { hosts: Vec::new(), ..policy };
        let host = Host::parse("packages.example").unwrap();
        assert_eq!(nothing.check_host(&host, 443), Err(Denial::Host));
    }

    #[test]
    fn only_listed_addresses_are_exempt() {
        let policy = policy(&[], &["10.1.2.3", "192.168.0.0/16", "fd00:1::/32"]);
        for (address, allowed) in [
            ("10.1.2.3", true),
            ("10.1.2.4", false),
            ("192.168.255.1", true),
            ("192.169.0.1", true),
            ("169.254.169.254", false),
            ("fd00:1:2::3", true),
            ("fd00:2::3", false),
            // The listed address, not others that embed it.
            ("::ffff:10.1.2.3", false),
            ("64:ff9b::10.1.2.3", false),
            ("2002:a01:203::1", false),
        ] {
            let parsed = address.parse().unwrap();
            assert_eq!(policy.check_address(parsed).is_ok(), allowed, "{address}");
        }
    }

    #[test]
    fn denial_names_the_setting_that_would_allow_it() {
        let host = Host::parse("Files.Example.").unwrap();
        let address = Denial::Address("10.0.0.1".parse().unwrap(), "private");
        let policy = policy(&[], &[]);
        for (denial, port, part) in [
            (Denial::Host, 443, "proxy.allow_hosts = [\"files.example\"]"),
            (Denial::Host, 22, "proxy.allow_hosts = [\"files.example:22\"]"),
            (Denial::Port, 22, "proxy.allow_hosts = [\"files.example:22\"]"),
            (address, 443, "proxy.allow_addresses = [\"10.0.0.1\"]"),
        ] {
            let text = denial.explain(&policy, &host, port);
            assert!(text.contains(part), "{text}");
        }
        let host = Host::parse("[fd00::1]").unwrap();
        let text = Denial::Host.explain(&policy, &host, 8080);
        assert!(text.contains("[\"[fd00::1]:8080\"]"), "{text}");
    }
}
