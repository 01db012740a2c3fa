//! Special-purpose addresses, which names must not resolve to, and ranges of addresses.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A range of addresses, such as `10.0.0.0/8`. A single address has the full prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressRange {
    first: IpAddr,
    prefix: u8,
}

/// Denied ranges of IPv4 addresses and their kinds. They are those of the IANA IPv4 Special-Purpose
/// Address Registry that are not globally reachable, multicast, and the metadata address of Azure.
const SPECIAL_RANGES_V4: &[([u8; 4], u8, &str)] = &[
    ([0, 0, 0, 0], 8, "unspecified"),
    ([10, 0, 0, 0], 8, "private"),
    ([100, 64, 0, 0], 10, "carrier-grade NAT"),
    ([127, 0, 0, 0], 8, "loopback"),
    ([168, 63, 129, 16], 32, "metadata"), // Azure
    ([169, 254, 0, 0], 16, "link-local"), // the metadata services of clouds are at 169.254.169.254
    ([172, 16, 0, 0], 12, "private"),
    ([192, 0, 0, 0], 24, "protocol assignment"),
    ([192, 0, 2, 0], 24, "documentation"),
    ([192, 88, 99, 0], 24, "6to4 relay"),
    ([192, 168, 0, 0], 16, "private"),
    ([198, 18, 0, 0], 15, "benchmarking"),
    ([198, 51, 100, 0], 24, "documentation"),
    ([203, 0, 113, 0], 24, "documentation"),
    ([224, 0, 0, 0], 4, "multicast"),
    ([240, 0, 0, 0], 4, "reserved"), // includes broadcast
];

/// Denied ranges of IPv6 addresses. Embedded IPv4 addresses are checked before. No address outside
/// of 2000::/3 is public.
const SPECIAL_RANGES_V6: &[([u16; 8], u8, &str)] = &[
    ([0, 0, 0, 0, 0, 0, 0, 0], 128, "unspecified"),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, "loopback"),
    ([0, 0, 0, 0, 0, 0xffff, 0, 0], 96, "IPv4-mapped"),
    ([0, 0, 0, 0, 0, 0, 0, 0], 96, "IPv4-compatible"),
    ([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, "NAT64"),
    ([0x100, 0, 0, 0, 0, 0, 0, 0], 64, "discard-only"),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, "protocol assignment"),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, "documentation"),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, "documentation"),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, "private"), // metadata at fd00:ec2::254
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, "link-local"),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, "site-local"),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, "multicast"),
];
/// The only block of public IPv6 addresses (RFC 4291).
const GLOBAL_UNICAST: ([u16; 8], u8) = ([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
/// NAT64 (RFC 6052): the last 32 bits are an IPv4 address.
const NAT64: ([u16; 8], u8) = ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
/// Teredo (RFC 4380): the server's IPv4 address, and at the end the client's with inverted bits.
const TEREDO: ([u16; 8], u8) = ([0x2001, 0, 0, 0, 0, 0, 0, 0], 32);
/// 6to4 (RFC 3056): the next 32 bits are an IPv4 address.
const SIX_TO_FOUR: ([u16; 8], u8) = ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);

/// Returns the kind of an address that no public name should resolve to; `None` for public ones.
pub(super) fn special_purpose(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    SPECIAL_RANGES_V4
        .iter()
        .find(|(first, prefix, _)| {
            same_prefix_v4(u32::from_be_bytes(*first), address.into(), *prefix)
        })
        .map(|(_, _, kind)| *kind)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let within = |(first, prefix): ([u16; 8], u8)| {
        same_prefix_v6(u128::from(Ipv6Addr::from(first)), address.into(), prefix)
    };

    let bits = u128::from(address);
    if within(NAT64) {
        return special_v4(embedded_v4(bits));
    }
    if within(SIX_TO_FOUR) {
        return special_v4(embedded_v4(bits >> 80));
    }
    if within(TEREDO) {
        return special_v4(embedded_v4(bits >> 64)).or_else(|| special_v4(embedded_v4(!bits)));
    }

    let special = SPECIAL_RANGES_V6.iter().find(|(first, prefix, _)| within((*first, *prefix)));
    match special {
        Some((_, _, kind)) => Some(kind),
        None if !within(GLOBAL_UNICAST) => Some("reserved"),
        None => None,
    }
}

/// Returns the IPv4 address in the lowest 32 bits.
fn embedded_v4(bits: u128) -> Ipv4Addr {
    let [.., a, b, c, d] = bits.to_be_bytes();
    Ipv4Addr::new(a, b, c, d)
}

fn same_prefix_v4(one: u32, other: u32, prefix: u8) -> bool {
    (one ^ other).leading_zeros() >= u32::from(prefix)
}

fn same_prefix_v6(one: u128, other: u128, prefix: u8) -> bool {
    (one ^ other).leading_zeros() >= u32::from(prefix)
}

impl AddressRange {
    /// Parses an address (`10.1.2.3`) or a range (`10.0.0.0/8`).
    ///
    /// # Errors
    ///
    /// Returns what is wrong, and what to give.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        const RANGE_HINT: &str =
            "give an address (\"10.1.2.3\") or a range (\"10.0.0.0/8\", \"fd00::/8\")";
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };

        let first: IpAddr =
            address.parse().map_err(|_| format!("{address:?} is not an address: {RANGE_HINT}"))?;
        let max_prefix = match first {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        let prefix = match prefix {
            None => max_prefix,
            Some(digits) => {
                digits.parse().ok().filter(|prefix| *prefix <= max_prefix).ok_or_else(|| {
                    format!("prefix length {digits:?} must be from 0 to {max_prefix}: {RANGE_HINT}")
                })?
            }
        };

        let range = Self { first, prefix };
        if !range.has_no_host_bits() {
            return Err(format!(
                "{address} has bits beyond the first {prefix}, so the range is ambiguous: {RANGE_HINT}"
            ));
        }
        Ok(range)
    }

    /// Whether the range contains the address.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                same_prefix_v4(first.into(), address.into(), self.prefix)
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                same_prefix_v6(first.into(), address.into(), self.prefix)
            }
            _ => false,
        }
    }

    /// Whether the range contains an address of the loopback interface, or the unspecified
    /// address, which stands for this host.
    pub(super) fn reaches_loopback(&self) -> bool {
        let overlaps = |first: IpAddr, prefix: u8| {
            let other = Self { first, prefix };
            self.contains(first) || other.contains(self.first)
        };
        overlaps(Ipv4Addr::new(127, 0, 0, 0).into(), 8)
            || overlaps(Ipv4Addr::UNSPECIFIED.into(), 32)
            || overlaps(Ipv6Addr::LOCALHOST.into(), 128)
            || overlaps(Ipv6Addr::UNSPECIFIED.into(), 128)
            // The IPv4 addresses in IPv6 notation.
            || overlaps(Ipv4Addr::new(127, 0, 0, 0).to_ipv6_mapped().into(), 104)
            || overlaps(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().into(), 128)
    }

    /// Whether no bit is set beyond the prefix.
    fn has_no_host_bits(&self) -> bool {
        let prefix = u32::from(self.prefix);
        match self.first {
            IpAddr::V4(first) => u32::from(first).checked_shl(prefix).unwrap_or(0) == 0,
            IpAddr::V6(first) => u128::from(first).checked_shl(prefix).unwrap_or(0) == 0,
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_single = match self.first {
            IpAddr::V4(_) => self.prefix == 32,
            IpAddr::V6(_) => self.prefix == 128,
        };
        if is_single {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}/{}", self.first, self.prefix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_reach_the_loopback_interface_are_detected() {
        for (range, expected) in [
            ("127.0.0.1", true),
            ("127.8.0.0/13", true),
            ("0.0.0.0/0", true),
            ("0.0.0.0", true),
            ("::1", true),
            ("::/0", true),
            ("::ffff:127.0.0.1", true),
            ("::ffff:0:0/96", true),
            ("10.0.0.0/8", false),
            ("128.0.0.0/1", false),
            ("fd00::/8", false),
            ("::ffff:10.0.0.1", false),
        ] {
            let parsed = AddressRange::parse(range).unwrap();
            assert_eq!(parsed.reaches_loopback(), expected, "{range}");
        }
    }

    #[test]
    fn special_addresses_have_their_kind() {
        for (address, kind) in [
            ("0.0.0.0", Some("unspecified")),
            ("0.1.2.3", Some("unspecified")),
            ("1.0.0.1", None),
            ("8.8.8.8", None),
            ("9.255.255.255", None),
            ("10.0.0.0", Some("private")),
            ("10.255.255.255", Some("private")),
            ("11.0.0.0", None),
            ("100.63.255.255", None),
            ("100.64.0.0", Some("carrier-grade NAT")),
            ("100.100.100.200", Some("carrier-grade NAT")),
            ("100.128.0.0", None),
            ("127.0.0.1", Some("loopback")),
            ("127.255.255.254", Some("loopback")),
            ("168.63.129.15", None),
            ("168.63.129.16", Some("metadata")),
            ("169.254.169.254", Some("link-local")),
            ("169.255.0.0", None),
            ("172.15.255.255", None),
            ("172.16.0.1", Some("private")),
            ("172.31.255.255", Some("private")),
            ("172.32.0.0", None),
            ("192.0.0.192", Some("protocol assignment")),
            ("192.0.1.0", None),
            ("192.0.2.1", Some("documentation")),
            ("192.88.99.1", Some("6to4 relay")),
            ("192.168.1.1", Some("private")),
            ("198.17.255.255", None),
            ("198.18.0.1", Some("benchmarking")),
            ("198.19.255.255", Some("benchmarking")),
            ("198.51.100.7", Some("documentation")),
            ("203.0.113.9", Some("documentation")),
            ("223.255.255.255", None),
            ("224.0.0.1", Some("multicast")),
            ("239.255.255.255", Some("multicast")),
            ("240.0.0.1", Some("reserved")),
            ("255.255.255.255", Some("reserved")),
            ("::", Some("unspecified")),
            ("::1", Some("loopback")),
            ("::2", Some("IPv4-compatible")),
            ("::8.8.8.8", Some("IPv4-compatible")),
            ("::ffff:127.0.0.1", Some("IPv4-mapped")),
            ("::ffff:8.8.8.8", Some("IPv4-mapped")),
            ("::ffff:0:8.8.8.8", Some("reserved")),
            ("64:ff9b::169.254.169.254", Some("link-local")),
            ("64:ff9b::10.0.0.1", Some("private")),
            ("64:ff9b::8.8.8.8", None),
            ("64:ff9b:1::8.8.8.8", Some("NAT64")),
            ("100::1", Some("discard-only")),
            ("2001:2::1", Some("protocol assignment")),
            ("2001:10::1", Some("protocol assignment")),
            ("2001:1ff::1", Some("protocol assignment")),
            ("2001:200::1", None),
            ("2001:db8::1", Some("documentation")),
            ("2001:4860:4860::8888", None),
            // Teredo: the server's address, and the client's with its bits inverted.
            ("2001:0:808:808::f7f7:f7f7", None),
            ("2001:0:a00:1::f7f7:f7f7", Some("private")),
            ("2001:0:808:808::80ff:fffe", Some("loopback")),
            ("2002:808:808::1", None),
            ("2002:7f00:1::1", Some("loopback")),
            ("2002:a9fe:a9fe::", Some("link-local")),
            ("2606:4700::1", None),
            ("3fff::1", Some("documentation")),
            ("3fff:1000::1", None),
            ("4000::1", Some("reserved")),
            ("5f00::1", Some("reserved")),
            ("fc00::1", Some("private")),
            ("fd00:ec2::254", Some("private")),
            ("fe80::1", Some("link-local")),
            ("febf::1", Some("link-local")),
            ("fec0::1", Some("site-local")),
            ("ff02::1", Some("multicast")),
        ] {
            let parsed = address.parse().unwrap();
            assert_eq!(special_purpose(parsed), kind, "{address}");
        }
    }

    #[test]
    fn ranges_are_displayed_in_canonical_form() {
        for (text, expected) in [
            ("10.1.2.3", "10.1.2.3"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("FD00::/8", "fd00::/8"),
            ("::/0", "::/0"),
            ("fd00::1", "fd00::1"),
        ] {
            assert_eq!(AddressRange::parse(text).unwrap().to_string(), expected, "{text}");
        }
        let all = AddressRange::parse("0.0.0.0/0").unwrap();
        assert!(all.contains("255.255.255.255".parse().unwrap()));
        assert!(!all.contains("::1".parse().unwrap()));
    }

    #[test]
    fn invalid_ranges_are_rejected_with_a_hint() {
        for (text, part) in [
            ("", "is not an address"),
            ("example.com", "is not an address"),
            ("10.1.2", "is not an address"),
            ("010.1.2.3", "is not an address"),
            ("10.1.2.3/33", "must be from 0 to "),
            ("10.1.2.3/", "must be from 0 to "),
            ("10.1.2.3/-1", "must be from 0 to "),
            ("::1/129", "must be from 0 to "),
            ("10.1.2.3/8", "beyond the first 8"),
            ("fd00::1/8", "beyond the first 8"),
            ("[::1]", "is not an address"),
        ] {
            let problem = AddressRange::parse(text).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
            assert!(problem.contains("give "), "{text}: {problem}");
        }
    }
}
