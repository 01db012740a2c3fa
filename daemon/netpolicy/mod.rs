//! What lies outside, as far as the operator lets anybody reach it: which hosts and ports may be named, and
//! which addresses their names may lead to. A name is looked up once, and whoever asks connects to an address
//! that was checked: another answer a moment later changes nothing.

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

/// How long looking a name up may take; a resolver's own patience is usually 10 s.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(20);
/// Addresses of one name that are tried.
const MAX_ADDRESSES_PER_NAME: usize = 4;
/// Names that are looked up at a time: each keeps a thread, for as long as name servers take.
const MAX_CONCURRENT_LOOKUPS: usize = 64;

/// What lies outside, as far as it is allowed.
#[derive(Debug)]
pub(crate) struct NetworkPolicy {
    rules: NetworkRules,
    /// The ports that the daemon listens on.
    own_ports: Vec<u16>,
    lookups: Arc<Semaphore>,
}

/// Why there is no address to connect to.
#[derive(Debug)]
pub(crate) enum ResolveError {
    /// Policy refuses it; beside that the address that it refuses, where it is about one.
    Denied(Denial, Option<SocketAddr>),
    /// The name cannot be looked up.
    LookupFailed(io::Error),
    /// Looking up took too long.
    TimedOut,
}

impl NetworkPolicy {
    /// All that `policy` allows, but for the daemon itself, which listens on `own_ports`: it would take whoever
    /// comes from here for the user that it is.
    pub(crate) fn new(policy: NetworkRules, own_ports: Vec<u16>) -> Self {
        Self { rules: policy, own_ports, lookups: Arc::new(Semaphore::new(MAX_CONCURRENT_LOOKUPS)) }
    }

    /// What is allowed.
    pub(crate) fn rules(&self) -> &NetworkRules {
        &self.rules
    }

    /// What is told of a connection that is refused so, and what the operator could set.
    pub(crate) fn explain(&self, denial: &Denial, host: &Host, port: u16) -> String {
        denial.explain(&self.rules, host, port)
    }

    /// The addresses that may be connected to for `host` on `port`, at least one. What `hold` gives is waited
    /// for before a name is looked up, and kept as long as the thread that does it, which may be longer than
    /// anybody waits.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(crate) async fn resolve<H: Send + 'static>(
        &self,
        host: &Host,
        port: u16,
        hold: impl Future<Output = io::Result<H>>,
    ) -> Result<Vec<SocketAddr>, ResolveError> {
        self.rules.check_host(host, port).map_err(|denial| ResolveError::Denied(denial, None))?;
        let addresses = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.look_up(name.clone(), hold).await?,
        };
        let mut refused = None;
        let mut allowed = Vec::new();
        for address in addresses {
            let address = SocketAddr::new(address, port);
            match self.check_address(address) {
                Ok(()) => allowed.push(address),
                Err(denial) => {
                    refused.get_or_insert((denial, address));
                }
            }
        }
        match refused {
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

    /// Looks a name up, as the daemon's host does. What it holds comes first: what waits for that does not stand
    /// in the others' way.
    async fn look_up<H: Send + 'static>(
        &self,
        name: String,
        hold: impl Future<Output = io::Result<H>>,
    ) -> Result<Vec<IpAddr>, ResolveError> {
        let lookup = async {
            let held = hold.await?;
            let permit = Arc::clone(&self.lookups).acquire_owned().await;
            let held = (held, permit.map_err(io::Error::other)?);
            let found = task::spawn_blocking(move || {
                let _held = held;
                let found = (name.as_str(), 0).to_socket_addrs()?;
                Ok::<_, io::Error>(found.map(|address| address.ip()).collect())
            });
            found.await.map_err(io::Error::other)?
        };
        timeout(LOOKUP_TIMEOUT, lookup)
            .await
            .map_err(|Elapsed { .. }| ResolveError::TimedOut)?
            .map_err(ResolveError::LookupFailed)
    }
}

/// Whether an address is one of this host's: the kernel lets sockets be bound to those only. Where it does
/// not say, it may be.
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

    const WORDS: RulesLabels = RulesLabels {
        connector: "tests",
        hosts_setting: "tests.hosts",
        addresses_setting: "tests.addresses",
    };

    #[test]
    fn the_daemon_itself_is_never_connected_to() {
        let everything = ["0.0.0.0/0", "::/0"].map(|text| AddressRange::parse(text).unwrap());
        let policy = NetworkRules {
            labels: &WORDS,
            hosts: Vec::new(),
            ports: Vec::new(),
            addresses: everything.to_vec(),
        };
        let outside = NetworkPolicy::new(policy, vec![50051]);
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
            let checked = outside.check_address(address.parse().unwrap());
            assert_eq!(checked, expected, "{address}");
        }
    }
}
