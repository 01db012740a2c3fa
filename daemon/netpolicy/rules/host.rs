//! Hosts, as named by requests and by rules.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Limit of RFC 1035, without the final dot.
const MAX_NAME_BYTES: usize = 253;
/// Limit of RFC 1035 for the parts between dots.
const MAX_LABEL_BYTES: usize = 63;

/// The host of a connection target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    /// A name in lower case without a final dot: letters, digits, hyphens and underscores between
    /// dots.
    Name(String),
    /// A literal address.
    Address(IpAddr),
}

/// A rule that allows hosts: `name`, `*.name` or an address, optionally with a port (`name:8443`).
///
/// `*.name` matches subdomains at any depth, not the name itself. Without a port, the rule allows
/// the ports of its policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostRule {
    host: HostPattern,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    Exact(Host),
    /// The parent name.
    Subdomains(String),
}

impl Host {
    /// Parses the host of a URI, with an IPv6 address in brackets. Returns `None` if it cannot be
    /// connected to.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(inner) = text.strip_prefix('[') {
            let address = inner.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?;
            return Some(Self::Address(address.into()));
        }

        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Self::Address(address.into()));
        }

        let name = text.strip_suffix('.').unwrap_or(text);
        let valid = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.split('.').all(is_label);
        valid.then(|| Self::Name(name.to_ascii_lowercase()))
    }

    /// Returns true for a name that ends in a number. Some programs read it as an address
    /// (inet_aton(3): `127.1`, `0x7f000001`), so it must not be treated as a name.
    pub(crate) fn is_ambiguous(&self) -> bool {
        let Self::Name(name) = self else {
            return false;
        };
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        last.bytes().all(|byte| byte.is_ascii_digit())
            || last.strip_prefix("0x").is_some_and(is_hex)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

fn is_label(label: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=MAX_LABEL_BYTES).contains(&label.len())
        && label.bytes().all(allowed)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

impl HostRule {
    /// Parses a rule.
    ///
    /// # Errors
    ///
    /// Returns what is wrong, and what to give.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        const HOST_HINT: &str = "give a name (\"packages.example\"), everything below one (\"*.packages.example\") or an address, and after a colon a port, unless it is 80 or 443";
        if text.contains("://") || text.contains('/') {
            return Err(format!("a rule names hosts, not URLs or networks: {HOST_HINT}"));
        }
        if !text.is_ascii() {
            return Err(format!(
                "names are compared as they are sent: give its ASCII form, which begins with \"xn--\"; {HOST_HINT}"
            ));
        }

        // Without brackets, an IPv6 address has no port.
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(Self {
                host: HostPattern::Exact(Host::Address(address.into())),
                port: None,
            });
        }

        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let number = port.parse().ok().filter(|number| *number != 0);
                let number = number
                    .ok_or_else(|| format!("port {port:?} must be from 1 to 65535: {HOST_HINT}"))?;
                (host, Some(number))
            }
            _ => (text, None),
        };

        let parent = host.strip_prefix("*.");
        let parsed = Host::parse(parent.unwrap_or(host))
            .filter(|host| !host.is_ambiguous())
            .ok_or_else(|| format!("{host:?} names no host: {HOST_HINT}"))?;
        let host = match (parent, parsed) {
            (None, host) => HostPattern::Exact(host),
            (Some(_), Host::Name(name)) => HostPattern::Subdomains(name),
            (Some(_), Host::Address(_)) => {
                return Err(format!("nothing is below an address: {HOST_HINT}"));
            }
        };
        Ok(Self { host, port })
    }

    /// Whether the rule matches the host, on whatever port.
    pub(super) fn matches(&self, host: &Host) -> bool {
        match (&self.host, host) {
            (HostPattern::Exact(own), host) => own == host,
            (HostPattern::Subdomains(parent), Host::Name(name)) => name
                .strip_suffix(parent.as_str())
                .is_some_and(|front| front.len() > 1 && front.ends_with('.')),
            (HostPattern::Subdomains(_), Host::Address(_)) => false,
        }
    }

    /// Returns the rule's own port, if it has one.
    pub(super) fn port(&self) -> Option<u16> {
        self.port
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            HostPattern::Exact(host) => write!(f, "{host}")?,
            HostPattern::Subdomains(name) => write!(f, "*.{name}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_hosts_are_rejected() {
        for (text, expected) in [
            ("Example.COM", "example.com"),
            ("example.com.", "example.com"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("_dmarc.a-b.example", "_dmarc.a-b.example"),
            ("localhost", "localhost"),
            ("10.0.0.1", "10.0.0.1"),
            ("[::1]", "[::1]"),
            ("[::FFFF:10.0.0.1]", "[::ffff:10.0.0.1]"),
        ] {
            let host = Host::parse(text).map(|host| host.to_string());
            assert_eq!(host.as_deref(), Some(expected), "{text}");
        }
        let long_name = format!("{}.example", "a.".repeat(125));
        for text in [
            "",
            ".",
            "a..b",
            ".a",
            "a..",
            "-a.example",
            "a-.example",
            "a b",
            "a%2eb",
            "a@b",
            "a:80",
            "bücher.example",
            "::1",
            "[::1",
            "[fe80::1%eth0]",
            "[10.0.0.1]",
            "*.example",
            &"a".repeat(64),
            &long_name,
        ] {
            assert_eq!(Host::parse(text), None, "{text}");
        }
    }

    #[test]
    fn names_that_programs_read_as_addresses_are_ambiguous() {
        for (text, ambiguous) in [
            ("127.1", true),
            ("2130706433", true),
            ("0x7f000001", true),
            ("0x7f.1", true),
            ("127.0.0.01", true),
            ("0x", true),
            ("example.0x7f", true),
            ("example.1", true),
            ("1.example", false),
            ("0x7f.example", false),
            ("127.0.0.1", false),
            ("deadbeef", false),
        ] {
            let host = Host::parse(text).unwrap();
            assert_eq!(host.is_ambiguous(), ambiguous, "{text}");
        }
    }

    #[test]
    fn rules_are_displayed_in_canonical_form() {
        for (text, expected) in [
            ("Packages.Example.", "packages.example"),
            ("*.Example", "*.example"),
            ("a.example:8443", "a.example:8443"),
            ("*.a.example:1", "*.a.example:1"),
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:65535", "192.0.2.1:65535"),
            ("2001:db8::1", "[2001:db8::1]"),
            ("[2001:db8::1]", "[2001:db8::1]"),
            ("[2001:db8::1]:8080", "[2001:db8::1]:8080"),
        ] {
            let rule = HostRule::parse(text).unwrap();
            assert_eq!(rule.to_string(), expected, "{text}");
            assert_eq!(HostRule::parse(expected).unwrap(), rule, "{text}");
        }
    }

    #[test]
    fn invalid_rules_are_rejected_with_a_hint() {
        for (text, part) in [
            ("", "names no host"),
            ("*", "names no host"),
            ("*.", "names no host"),
            ("a.*.example", "names no host"),
            ("*a.example", "names no host"),
            ("https://a.example", "not URLs"),
            ("a.example/path", "not URLs"),
            ("10.0.0.0/8", "not URLs or networks"),
            ("a.example:", "must be from 1 to 65535"),
            ("a.example:0", "must be from 1 to 65535"),
            ("a.example:65536", "must be from 1 to 65535"),
            ("a.example:https", "must be from 1 to 65535"),
            ("bücher.example", "xn--"),
            ("*.10.0.0.1", "below an address"),
            ("127.1", "names no host"),
            ("user@a.example", "names no host"),
        ] {
            let problem = HostRule::parse(text).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
            assert!(problem.contains("give "), "{text}: {problem}");
        }
    }
}
