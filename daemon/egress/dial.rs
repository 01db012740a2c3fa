//! Connecting to a host: look up, check, connect. A name is looked up once, and what is connected to
//! is an address that was checked: another answer a moment later changes nothing.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket},
    sync::Arc,
    time::Duration,
};

use http::{Response, StatusCode};
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    time::{error::Elapsed, timeout},
};

use super::{
    answer::{self, Body},
    journal::Attempt,
    meter::Metered,
    policy::{Denial, Policy, host::Host},
    request::Target,
};
use crate::daemon::task;

/// How long looking a name up may take; a resolver's own patience is usually 10 s.
const LOOKUP_PATIENCE: Duration = Duration::from_secs(20);
/// How long connecting to one address may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Addresses of one name that are tried.
const ADDRESSES: usize = 4;

/// Names that are looked up at a time: each keeps a thread, for as long as name servers take.
const LOOKUPS: usize = 64;
/// Those of one run: names whose servers do not answer must not keep other runs waiting.
pub(super) const LOOKUPS_OF_RUN: usize = 8;

/// What lies outside of sandboxes, as far as it is allowed.
#[derive(Debug)]
pub(super) struct Outside {
    policy: Policy,
    /// The ports that the daemon listens on.
    own_ports: Vec<u16>,
    lookups: Arc<Semaphore>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// Policy refuses it.
    Denied(Denial),
    /// The name cannot be looked up.
    Unknown(io::Error),
    /// No address could be connected to; what the last one said.
    Unreachable(io::Error),
    /// Looking up or connecting took too long.
    TooSlow,
}

// === impl Outside ===

impl Outside {
    /// All that `policy` allows, but for the daemon itself, which listens on `own_ports`: it would take a
    /// command for the user that it is.
    pub(super) fn new(policy: Policy, own_ports: Vec<u16>) -> Self {
        Self {
            policy,
            own_ports,
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
        }
    }

    /// What is allowed.
    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Connects to `target`, if it is allowed, for a run that looks up no more names at a time than
    /// `lookups` has permits.
    ///
    /// # Errors
    ///
    /// Why there is no connection; `attempt` has been told.
    pub(super) async fn dial(
        &self,
        target: &Target,
        lookups: &Arc<Semaphore>,
        attempt: &mut Attempt,
    ) -> Result<Metered<TcpStream>, NoConnection> {
        let result = self.connect(target, lookups, attempt).await;
        match &result {
            Ok(stream) => attempt.connected(Arc::clone(stream.meter())),
            Err(NoConnection::Denied(denial)) => attempt.denied(denial.name()),
            Err(NoConnection::Unknown(_)) => attempt.failed("lookup_failed"),
            Err(NoConnection::Unreachable(_)) => attempt.failed("connect_failed"),
            Err(NoConnection::TooSlow) => attempt.failed("timeout"),
        }
        result
    }

    async fn connect(
        &self,
        target: &Target,
        lookups: &Arc<Semaphore>,
        attempt: &mut Attempt,
    ) -> Result<Metered<TcpStream>, NoConnection> {
        self.policy
            .check_host(&target.host, target.port)
            .map_err(NoConnection::Denied)?;
        let addresses = match &target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.look_up(name.clone(), lookups).await?,
        };
        let mut refused = None;
        let mut allowed = Vec::new();
        for address in addresses {
            match self.check(SocketAddr::new(address, target.port)) {
                Ok(address) => allowed.push(address),
                Err(denial) => {
                    refused.get_or_insert((address, denial));
                }
            }
        }
        if let (true, Some((address, denial))) = (allowed.is_empty(), refused) {
            attempt.address(SocketAddr::new(address, target.port));
            return Err(NoConnection::Denied(denial));
        }
        let mut last = NoConnection::Unknown(io::Error::other("the name has no address"));
        for address in allowed.into_iter().take(ADDRESSES) {
            attempt.address(address);
            last = match timeout(CONNECT_PATIENCE, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Small messages of a tunnel are not to wait for one another.
                    let _best_effort = stream.set_nodelay(true);
                    return Ok(Metered::new(stream));
                }
                Ok(Err(error)) => NoConnection::Unreachable(error),
                Err(Elapsed { .. }) => NoConnection::TooSlow,
            };
        }
        Err(last)
    }

    fn check(&self, address: SocketAddr) -> Result<SocketAddr, Denial> {
        let ip = address.ip();
        if self.own_ports.contains(&address.port()) && is_of_this_host(ip) {
            return Err(Denial::Daemon);
        }
        match self.policy.check_address(ip) {
            Ok(()) => Ok(address),
            Err(kind) => Err(Denial::Address(ip, kind)),
        }
    }

    /// Looks a name up, as the daemon's host does. Its permits are kept as long as the thread that does
    /// it, which may be longer than anybody waits. The run's own comes first: what waits for one does
    /// not stand in the others' way.
    async fn look_up(
        &self,
        name: String,
        of_run: &Arc<Semaphore>,
    ) -> Result<Vec<IpAddr>, NoConnection> {
        let lookup = async {
            let permit = async |of: &Arc<Semaphore>| {
                let permit = Arc::clone(of).acquire_owned().await;
                permit.map_err(io::Error::other)
            };
            let permits = (permit(of_run).await?, permit(&self.lookups).await?);
            let found = task::blocking(move || {
                let _permits = permits;
                let found = (name.as_str(), 0).to_socket_addrs()?;
                Ok::<_, io::Error>(found.map(|address| address.ip()).collect())
            });
            found.await.map_err(io::Error::other)?
        };
        timeout(LOOKUP_PATIENCE, lookup)
            .await
            .map_err(|Elapsed { .. }| NoConnection::TooSlow)?
            .map_err(NoConnection::Unknown)
    }
}

/// Whether an address is one of this host's: the kernel lets sockets be bound to those only. Where it does
/// not say, it may be.
fn is_of_this_host(address: IpAddr) -> bool {
    let address = address.to_canonical();
    if address.is_unspecified() || address.is_loopback() {
        return true;
    }
    match UdpSocket::bind((address, 0)) {
        Ok(_) => true,
        Err(error) => error.kind() != io::ErrorKind::AddrNotAvailable,
    }
}

// === impl NoConnection ===

impl NoConnection {
    /// What the command is told.
    pub(super) fn answer(&self, target: &Target) -> Response<Body> {
        let Target { host, port } = target;
        match self {
            Self::Denied(denial) => answer::denied(&denial.explain(host, *port)),
            Self::Unknown(error) => answer::text(
                StatusCode::BAD_GATEWAY,
                &format!("jigd could not look up {host}: {error}"),
            ),
            Self::Unreachable(error) => answer::text(
                StatusCode::BAD_GATEWAY,
                &format!("jigd could not connect to {host}:{port}: {error}"),
            ),
            Self::TooSlow => answer::text(
                StatusCode::GATEWAY_TIMEOUT,
                &format!("jigd could not connect to {host}:{port} in time"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::egress::policy::address::Range;

    #[test]
    fn the_daemon_itself_is_never_connected_to() {
        let everything = ["0.0.0.0/0", "::/0"].map(|text| Range::parse(text).unwrap());
        let policy = Policy {
            hosts: Vec::new(),
            addresses: everything.to_vec(),
        };
        let outside = Outside::new(policy, vec![50051]);
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
            let checked = outside.check(address.parse().unwrap()).map(drop);
            assert_eq!(checked, expected, "{address}");
        }
    }
}
