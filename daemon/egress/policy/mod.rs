//! Where commands may connect to: which hosts by name, and which addresses a name may lead to. Pure:
//! nothing here asks anybody anything.
//!
//! A connection passes two gates. The host and port that the command names must be allowed
//! ([`Policy::check_host`]); then each address that the name leads to must be one that the world can
//! have, or be listed ([`Policy::check_address`]). The second gate is what keeps a name that anybody
//! may point anywhere from leading to the daemon's own machine, its network, or the metadata service
//! of its cloud.

pub(crate) mod address;
pub(crate) mod host;

use std::{fmt, net::IpAddr};

use self::{
    address::{Range, special_purpose},
    host::{Host, HostRule},
};

/// What the operator allows. Without rules for hosts, nothing is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Hosts that commands may name.
    pub(crate) hosts: Vec<HostRule>,
    /// Addresses to which names may lead although they are no public ones.
    pub(crate) addresses: Vec<Range>,
}

/// Why a connection is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Denial {
    /// No rule has this host.
    Host,
    /// A rule has this host, but on other ports.
    Port,
    /// The host is an address in a form that programs read differently.
    Form,
    /// Every address that the name leads to is of a kind that is refused: the first, and its kind.
    Address(IpAddr, &'static str),
    /// The daemon itself listens there.
    Daemon,
}

impl Policy {
    /// Checks what a command names.
    ///
    /// # Errors
    ///
    /// The host is not allowed, or not on this port.
    pub(crate) fn check_host(&self, host: &Host, port: u16) -> Result<(), Denial> {
        if host.is_ambiguous() {
            return Err(Denial::Form);
        }
        let mut of_host = self.hosts.iter().filter(|rule| rule.has_host(host));
        match of_host.next() {
            None => Err(Denial::Host),
            Some(first) if first.has_port(port) || of_host.any(|rule| rule.has_port(port)) => {
                Ok(())
            }
            Some(_) => Err(Denial::Port),
        }
    }

    /// Checks an address that a name leads to.
    ///
    /// # Errors
    ///
    /// What kind of address it is, where it is refused.
    pub(crate) fn check_address(&self, address: IpAddr) -> Result<(), &'static str> {
        if self.addresses.iter().any(|range| range.contains(address)) {
            return Ok(());
        }
        special_purpose(address).map_or(Ok(()), Err)
    }

    /// Whether what is allowed can lead to the loopback interface of this host.
    pub(crate) fn reaches_loopback(&self) -> bool {
        self.addresses.iter().any(Range::reaches_loopback)
    }
}

impl Denial {
    /// Its name in records and spans.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Host => "host_not_allowed",
            Self::Port => "port_not_allowed",
            Self::Form => "ambiguous_address",
            Self::Address(..) => "address_not_allowed",
            Self::Daemon => "daemon",
        }
    }

    /// What the command is told about `host` on `port`, and what the operator could set.
    pub(crate) fn explain(&self, host: &Host, port: u16) -> String {
        match self {
            Self::Host => format!(
                "{host}:{port} is not among the hosts that commands may connect to. The operator of jigd can allow it: proxy.allow_hosts = [\"{}\"]",
                Rule(host, port)
            ),
            Self::Port => format!(
                "{host} may be connected to, but not on port {port}. The operator of jigd can allow it: proxy.allow_hosts = [\"{}\"]",
                Rule(host, port)
            ),
            Self::Form => format!(
                "{host} is an address in a form that programs read differently: give four decimal numbers, or a name"
            ),
            Self::Daemon => {
                format!("{host}:{port} is jigd itself, to which commands are never connected")
            }
            Self::Address(address, kind) => format!(
                "{host} leads to {address}, a {kind} address. The operator of jigd can allow it: proxy.allow_addresses = [\"{address}\"]"
            ),
        }
    }
}

/// A rule that would allow a host on a port, as short as it can be.
struct Rule<'a>(&'a Host, u16);

impl fmt::Display for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(host, port) = self;
        match port {
            80 | 443 => write!(f, "{host}"),
            _ => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(hosts: &[&str], addresses: &[&str]) -> Policy {
        Policy {
            hosts: hosts
                .iter()
                .map(|text| HostRule::parse(text).unwrap())
                .collect(),
            addresses: addresses
                .iter()
                .map(|text| Range::parse(text).unwrap())
                .collect(),
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
            ("0xc0000207", 80, Err(Denial::Form)),
            ("3221225991", 80, Err(Denial::Form)),
            ("0300.0.2.7", 80, Err(Denial::Form)),
            ("192.0.519", 80, Err(Denial::Form)),
            ("a.files.example.1", 80, Err(Denial::Form)),
        ] {
            let parsed = Host::parse(host).unwrap();
            assert_eq!(policy.check_host(&parsed, port), expected, "{host}:{port}");
        }
        let nothing = Policy::default();
        let host = Host::parse("packages.example").unwrap();
        assert_eq!(nothing.check_host(&host, 443), Err(Denial::Host));
    }

    #[test]
    fn addresses_that_are_listed_are_no_others() {
        let policy = policy(&[], &["10.1.2.3", "192.168.0.0/16", "fd00:1::/32"]);
        for (address, allowed) in [
            ("10.1.2.3", true),
            ("10.1.2.4", false),
            ("192.168.255.1", true),
            ("192.169.0.1", true),
            ("169.254.169.254", false),
            ("fd00:1:2::3", true),
            ("fd00:2::3", false),
            // What is listed is the address, not what others embed it in.
            ("::ffff:10.1.2.3", false),
            ("64:ff9b::10.1.2.3", false),
            ("2002:a01:203::1", false),
        ] {
            let parsed = address.parse().unwrap();
            assert_eq!(policy.check_address(parsed).is_ok(), allowed, "{address}");
        }
    }

    #[test]
    fn a_denial_says_what_the_operator_could_set() {
        let host = Host::parse("Files.Example.").unwrap();
        let address = Denial::Address("10.0.0.1".parse().unwrap(), "private");
        for (denial, port, part) in [
            (Denial::Host, 443, "proxy.allow_hosts = [\"files.example\"]"),
            (
                Denial::Host,
                22,
                "proxy.allow_hosts = [\"files.example:22\"]",
            ),
            (
                Denial::Port,
                22,
                "proxy.allow_hosts = [\"files.example:22\"]",
            ),
            (address, 443, "proxy.allow_addresses = [\"10.0.0.1\"]"),
        ] {
            let text = denial.explain(&host, port);
            assert!(text.contains(part), "{text}");
        }
        let host = Host::parse("[fd00::1]").unwrap();
        let text = Denial::Host.explain(&host, 8080);
        assert!(text.contains("[\"[fd00::1]:8080\"]"), "{text}");
    }
}
