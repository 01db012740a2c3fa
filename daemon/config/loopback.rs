//! Hosts that are this machine.

use std::net::IpAddr;

/// Whether connections to a host stay on this machine.
pub(super) fn is_loopback_host(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
