//! Network policy: which hosts and ports the operator allows, and which addresses names may resolve
//! to.
//!
//! A name is looked up once, and the caller connects to a checked address. A different DNS answer a
//! moment later has no effect.

pub(crate) mod rules;

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{error::Elapsed, timeout},
};

use self::rules::{Denial, NetworkRules, host::Host};
use super::task;

/// Limit for a lookup. The resolver's own timeout is usually 10 s.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(20);
/// Addresses of one name that are tried.
const MAX_ADDRESSES_PER_NAME: usize = 4;
/// Concurrent DNS lookups. Each occupies a thread for as long as name servers take.
const MAX_CONCURRENT_DNS_LOOKUPS: usize = 64;

#[derive(Debug)]
pub(crate) struct NetworkPolicy {
    rules: NetworkRules,
    /// The ports that the daemon listens on.
    own_ports: Vec<u16>,
    lookups: Arc<Semaphore>,
}

/// Why a host was resolved to no allowed address.
#[derive(Debug)]
pub(crate) enum ResolveError {
    /// The denied address is present if an address was denied, and not the host.
    Denied(Denial, Option<SocketAddr>),
    LookupFailed(io::Error),
    TimedOut,
}

impl NetworkPolicy {
    /// Creates a policy with these rules. Connections to the daemon itself (`own_ports`) are always
    /// denied: to the daemon, such a connection comes from its own host, which it may trust.
    pub(crate) fn new(rules: NetworkRules, own_ports: Vec<u16>) -> Self {
        Self { rules, own_ports, lookups: Arc::new(Semaphore::new(MAX_CONCURRENT_DNS_LOOKUPS)) }
    }

    pub(crate) fn rules(&self) -> &NetworkRules {
        &self.rules
    }

    /// Explains a denial: what is denied, and the setting that would allow it.
    pub(crate) fn explain(&self, denial: &Denial, host: &Host, port: u16) -> String {
        denial.explain(&self.rules, host, port)
    }

    /// Returns the allowed addresses of `host`, at least one and at most
    /// [`MAX_ADDRESSES_PER_NAME`].
    ///
    /// Before a lookup, it awaits `acquire`. The result, such as a permit, is held until the lookup
    /// thread ends, which may be after this future is dropped.
    ///
    /// # Errors
    ///
    /// Returns why there is no such address.
    pub(crate) async fn resolve<H: Send + 'static>(
        &self,
        host: &Host,
        port: u16,
        acquire: impl Future<Output = io::Result<H>>,
    ) -> Result<Vec<SocketAddr>, ResolveError> {
        self.rules.check_host(host, port).map_err(|denial| ResolveError::Denied(denial, None))?;
        let addresses = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.look_up(name.clone(), acquire).await?,
        };

        let mut first_denied = None;
        let mut allowed = Vec::new();
        for address in addresses {
            let address = SocketAddr::new(address, port);
            match self.check_address(address) {
                Ok(()) => allowed.push(address),
                Err(denial) => {
                    first_denied.get_or_insert((denial, address));
                }
            }
        }

        match first_denied {
            _ if !allowed.is_empty() => {
                allowed.truncate(MAX_ADDRESSES_PER_NAME);
                Ok(allowed)
            }
            Some((denial, address)) => Err(ResolveError::Denied(denial, Some(address))),
            None => Err(ResolveError::LookupFailed(io::Error::other("the name has no address"))),
        }
    }

    fn check_address(&self, address: SocketAddr) -> Result<(), Denial> {
        let ip = address.ip();
        if self.own_ports.contains(&address.port()) && is_local_address(ip) {
            return Err(Denial::Daemon);
        }
        self.rules.check_address(ip).map_err(|kind| Denial::Address(ip, kind))
    }

    /// Looks a name up with the resolver of the daemon's host. Acquires the caller's permit first: a
    /// caller that waits for it does not hold up others.
    async fn look_up<H: Send + 'static>(
        &self,
        name: String,
        acquire: impl Future<Output = io::Result<H>>,
    ) -> Result<Vec<IpAddr>, ResolveError> {
        let lookup = async {
            let caller_permit = acquire.await?;
            let permit = Arc::clone(&self.lookups).acquire_owned().await;
            let permits = (caller_permit, permit.map_err(io::Error::other)?);
            let addresses = task::spawn_blocking(move || {
                let _permits = permits;
                let addresses = (name.as_str(), 0).to_socket_addrs()?;
                Ok::<_, io::Error>(addresses.map(|address| address.ip()).collect())
            });
            addresses.await.map_err(io::Error::other)?
        };
        timeout(LOOKUP_TIMEOUT, lookup)
            .await
            .map_err(|Elapsed { .. }| ResolveError::TimedOut)?
            .map_err(ResolveError::LookupFailed)
    }
}

/// Whether an address belongs to this host: the kernel binds sockets to no others. True if that is
/// unknown.
fn is_local_address(address: IpAddr) -> bool {
    let address = address.to_canonical();
    if address.is_unspecified() || address.is_loopback() {
        return true;
    }

    match UdpSocket::bind((address, 0)) {
        Ok(_) => true,
        Err(error) => error.kind() != io::ErrorKind::AddrNotAvailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::netpolicy::rules::{RulesLabels, address::AddressRange};

    const LABELS: RulesLabels = RulesLabels {
        connector: "tests",
        hosts_setting: "tests.hosts",
        addresses_setting: "tests.addresses",
    };

    #[test]
    fn daemon_itself_is_always_denied() {
        let everything = ["0.0.0.0/0", "::/0"].map(|text| AddressRange::parse(text).unwrap());
        let rules = NetworkRules {
            labels: &LABELS,
            hosts: Vec::new(),
            ports: Vec::new(),
            addresses: everything.to_vec(),
        };
        let policy = NetworkPolicy::new(rules, vec![50051]);
        for (address, expected) in [
            ("127.0.0.1:50051", Err(Denial::Daemon)),
            ("127.9.9.9:50051", Err(Denial::Daemon)),
            ("0.0.0.0:50051", Err(Denial::Daemon)),
            ("[::]:50051", Err(Denial::Daemon)),
            ("[::1]:50051", Err(Denial::Daemon)),
            ("[::ffff:127.0.0.1]:50051", Err(Denial::Daemon)),
            ("[::ffff:0.0.0.0]:50051", Err(Denial::Daemon)),
            ("127.0.0.1:50052", Ok(())),
            ("192.0.2.1:50051", Ok(())),
        ] {
            let checked = policy.check_address(address.parse().unwrap());
            assert_eq!(checked, expected, "{address}");
        }
    }
}
