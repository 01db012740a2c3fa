//! Limits on connections: per listener, per peer, and for unauthenticated connections.
//!
//! An unauthenticated connection ends after a timeout. It is evicted earlier if its listener is
//! full and another client connects.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http_body_util::BodyExt as _;
use rustix::process::geteuid;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::body::Body;

use super::peer::own_uid;
use crate::daemon::{
    error::{Error, Reason},
    pipeline::access::PeerOrigin,
};

/// Concurrent connections of one listener. Each costs about 30 KiB. Listeners have separate limits,
/// so clients that fill a TCP port do not block a Unix socket.
const MAX_LISTENER_CONNECTIONS: usize = 1024;
/// Connections of one peer: it takes two peers to fill a listener.
const MAX_CONNECTIONS_PER_PEER: usize = 512;
/// Unauthenticated connections of one peer: more than a client opens at once.
const MAX_UNAUTHENTICATED_CONNECTIONS_PER_PEER: usize = 256;
/// Unauthenticated connections of the daemon's own user, and of root. They could stop the daemon
/// anyway, but commands may run as the same user, so the limit leaves some connections to others.
const MAX_UNAUTHENTICATED_CONNECTIONS_PER_OWNER: usize = MAX_LISTENER_CONNECTIONS - 64;
/// How long a connection may last without an authenticated call. A client connects to make a call.
pub(super) const AUTH_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a rejected connection may last, so that the error reaches the client.
pub(super) const REJECTION_GRACE: Duration = Duration::from_secs(1);

/// Concurrent health checks on an unauthenticated connection. A probe needs one.
const MAX_CONCURRENT_HEALTH_CHECKS: usize = 16;
/// Retry delay for health checks over the limit. They last as long as their clients want.
const HEALTH_CHECK_RETRY_AFTER: Duration = Duration::from_secs(5);

/// The connection limits of one listener.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    permits: Arc<Semaphore>,
    registry: Arc<Mutex<ConnectionRegistry>>,
}

/// The party whose connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PeerKey {
    /// A user of this machine.
    User(u32),
    /// Any loopback client of an unknown user. They share one key: each has all of 127.0.0.0/8.
    Loopback,
    /// An address. For IPv6 the /64 network, which one host gets as a whole.
    Address(IpAddr),
    Unknown,
}

/// The connections of one listener.
#[derive(Debug, Default)]
struct ConnectionRegistry {
    by_peer: HashMap<PeerKey, PeerUsage>,
    /// Unauthenticated connections by number, oldest first. Evicted ones are removed.
    unauthenticated: BTreeMap<u64, Arc<ConnectionAuth>>,
    /// Number of connections accepted so far.
    accepted: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct PeerUsage {
    connections: usize,
    unauthenticated: usize,
}

/// Permit of one connection, held as long as the connection lasts.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    auth: Arc<ConnectionAuth>,
    _listener_permit: OwnedSemaphorePermit,
}

/// Authentication state of a connection, updated by its calls.
#[derive(Debug)]
pub(crate) struct ConnectionAuth {
    peer: PeerKey,
    number: u64,
    registry: Arc<Mutex<ConnectionRegistry>>,
    /// Lock order: `registry` first, if both are locked.
    state: Mutex<AuthState>,
    /// Cancelled when the connection is evicted.
    evicted: CancellationToken,
    /// Number of health checks in progress.
    health_checks: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AuthState {
    /// No call was authenticated yet.
    Unauthenticated,
    /// A call was rejected, and any other would be.
    Rejected,
    /// A call was authenticated.
    Authenticated,
}

/// How long a connection may last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionLifetime {
    Unlimited,
    /// For [`AUTH_TIMEOUT`] since it was accepted, or since the last check that found a health
    /// check in progress.
    UntilAuthTimeout,
    /// For [`REJECTION_GRACE`] from now on.
    UntilRejectionGrace,
}

impl ConnectionLimits {
    pub(super) fn new() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(MAX_LISTENER_CONNECTIONS)),
            registry: Arc::default(),
        }
    }

    /// Acquires a permit for a connection. Returns `None` if its peer has too many.
    ///
    /// If the listener is full, evicts an unauthenticated connection: the new one may have a key.
    /// If all are authenticated, waits until one ends.
    pub(super) async fn acquire(
        &self,
        origin: PeerOrigin,
        address: Option<IpAddr>,
    ) -> Option<ConnectionPermit> {
        let peer = peer_key(origin, address);
        if self.is_at_limit(peer) {
            return None;
        }

        let listener_permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.evict_unauthenticated();
                Arc::clone(&self.permits).acquire_owned().await.ok()?
            }
        };

        let mut registry = lock(&self.registry);
        registry.accepted += 1;
        let auth = Arc::new(ConnectionAuth {
            peer,
            number: registry.accepted,
            registry: Arc::clone(&self.registry),
            state: Mutex::new(AuthState::Unauthenticated),
            evicted: CancellationToken::new(),
            health_checks: AtomicUsize::new(0),
        });
        let usage = registry.by_peer.entry(peer).or_default();
        usage.connections += 1;
        usage.unauthenticated += 1;
        registry.unauthenticated.insert(auth.number, Arc::clone(&auth));
        Some(ConnectionPermit { auth, _listener_permit: listener_permit })
    }

    fn is_at_limit(&self, peer: PeerKey) -> bool {
        let (max_connections, max_unauthenticated) = match peer {
            PeerKey::User(uid) if uid == 0 || Some(uid) == own_uid() => {
                (MAX_LISTENER_CONNECTIONS, MAX_UNAUTHENTICATED_CONNECTIONS_PER_OWNER)
            }
            PeerKey::User(_) | PeerKey::Loopback | PeerKey::Address(_) | PeerKey::Unknown => {
                (MAX_CONNECTIONS_PER_PEER, MAX_UNAUTHENTICATED_CONNECTIONS_PER_PEER)
            }
        };
        let registry = lock(&self.registry);
        let usage = registry.by_peer.get(&peer).copied().unwrap_or_default();
        usage.connections >= max_connections || usage.unauthenticated >= max_unauthenticated
    }

    /// Evicts the oldest unauthenticated connection of the peer that has the most of them.
    ///
    /// So a peer with a single one, as a health probe is, stays connected.
    fn evict_unauthenticated(&self) {
        let mut registry = lock(&self.registry);
        let count_of = |peer| registry.by_peer.get(peer).map(|usage| usage.unauthenticated);
        // `max_by_key` returns the last of equal elements, so reverse the order to get the oldest.
        let newest_first = registry.unauthenticated.values().rev();
        let victim = newest_first.max_by_key(|auth| count_of(&auth.peer));
        let number = victim.map(|auth| auth.number);
        if let Some(auth) = number.and_then(|number| registry.unauthenticated.remove(&number)) {
            auth.evicted.cancel();
        }
    }
}

fn peer_key(origin: PeerOrigin, address: Option<IpAddr>) -> PeerKey {
    match (origin, address.map(|address| address.to_canonical())) {
        (PeerOrigin::Itself, _) => PeerKey::User(geteuid().as_raw()),
        (PeerOrigin::Socket { uid } | PeerOrigin::Loopback { uid: Some(uid) }, _) => {
            PeerKey::User(uid)
        }
        (PeerOrigin::Loopback { uid: None }, _) => PeerKey::Loopback,
        (PeerOrigin::Elsewhere, Some(IpAddr::V6(address))) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            PeerKey::Address(Ipv6Addr::from(network).into())
        }
        (PeerOrigin::Elsewhere, Some(address)) => PeerKey::Address(address),
        (PeerOrigin::Elsewhere, None) => PeerKey::Unknown,
    }
}

impl ConnectionPermit {
    /// The authentication state, which calls of the connection update.
    pub(super) fn auth(&self) -> &Arc<ConnectionAuth> {
        &self.auth
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut registry = lock(&self.auth.registry);
        // Later calls must not change the counts any more.
        self.auth.count_as_authenticated(&mut registry);
        if let Some(usage) = registry.by_peer.get_mut(&self.auth.peer) {
            usage.connections -= 1;
            if usage.connections == 0 {
                registry.by_peer.remove(&self.auth.peer);
            }
        }
    }
}

impl ConnectionAuth {
    /// Records that a call was authenticated.
    pub(super) fn mark_authenticated(&self) {
        if *lock(&self.state) != AuthState::Authenticated {
            self.count_as_authenticated(&mut lock(&self.registry));
        }
    }

    /// Sets the state and updates the counts of the registry, once.
    fn count_as_authenticated(&self, registry: &mut ConnectionRegistry) {
        if std::mem::replace(&mut *lock(&self.state), AuthState::Authenticated)
            == AuthState::Authenticated
        {
            return;
        }
        registry.unauthenticated.remove(&self.number);
        if let Some(usage) = registry.by_peer.get_mut(&self.peer) {
            usage.unauthenticated -= 1;
        }
    }

    /// Records that a call was rejected, and that any other would be.
    pub(super) fn mark_rejected(&self) {
        let mut state = lock(&self.state);
        if *state == AuthState::Unauthenticated {
            *state = AuthState::Rejected;
        }
    }

    /// How long the connection may last, unless it is evicted.
    pub(super) fn lifetime(&self) -> ConnectionLifetime {
        match *lock(&self.state) {
            AuthState::Authenticated => ConnectionLifetime::Unlimited,
            AuthState::Rejected => ConnectionLifetime::UntilRejectionGrace,
            AuthState::Unauthenticated => ConnectionLifetime::UntilAuthTimeout,
        }
    }

    /// Waits until the connection is evicted.
    pub(super) fn evicted(&self) -> WaitForCancellationFutureOwned {
        self.evicted.clone().cancelled_owned()
    }

    /// Whether a health check is in progress.
    pub(super) fn has_health_check(&self) -> bool {
        self.health_checks.load(Ordering::Relaxed) > 0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Permit of a health check. It extends the authentication timeout: probes have no key.
#[derive(Debug)]
pub(super) struct HealthCheckPermit(Arc<ConnectionAuth>);

impl HealthCheckPermit {
    /// Returns `None` if an unauthenticated connection has [`MAX_CONCURRENT_HEALTH_CHECKS`] in
    /// progress.
    pub(super) fn try_acquire(auth: &Arc<ConnectionAuth>) -> Option<Self> {
        let is_authenticated = auth.lifetime() == ConnectionLifetime::Unlimited;
        auth.health_checks
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |checks| {
                (is_authenticated || checks < MAX_CONCURRENT_HEALTH_CHECKS).then_some(checks + 1)
            })
            .ok()?;
        Some(Self(Arc::clone(auth)))
    }

    /// The error of a health check over the limit.
    pub(super) fn limit_error() -> Error {
        let text = format!(
            "{MAX_CONCURRENT_HEALTH_CHECKS} health checks are in progress on this connection, the limit before its first authenticated call: end one of them"
        );
        Error::new(Reason::ResourceExhausted, text)
            .with_metadata("limit", MAX_CONCURRENT_HEALTH_CHECKS.to_string())
            .with_retry_after(HEALTH_CHECK_RETRY_AFTER)
    }

    /// Holds the permit until the response has been sent.
    pub(super) fn hold_until_sent(self, body: Body) -> Body {
        Body::new(body.map_frame(move |frame| {
            let _permit = &self;
            frame
        }))
    }
}

impl Drop for HealthCheckPermit {
    fn drop(&mut self) {
        self.0.health_checks.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        task::{Context, Poll, Waker},
    };

    use super::*;

    const CLIENT: PeerOrigin = PeerOrigin::Socket { uid: 23_456 };
    const OTHER_CLIENT: PeerOrigin = PeerOrigin::Loopback { uid: Some(23_457) };

    /// Polls a future once.
    fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    /// A permit, unless the peer is at its limit or the listener is full.
    fn try_acquire(limits: &ConnectionLimits, origin: PeerOrigin) -> Option<ConnectionPermit> {
        poll_once(pin!(limits.acquire(origin, None))).flatten()
    }

    fn user(uid: u32) -> PeerOrigin {
        PeerOrigin::Socket { uid }
    }

    #[test]
    fn one_peer_leaves_connections_for_others() {
        let limits = ConnectionLimits::new();
        let mut held: Vec<_> = std::iter::from_fn(|| try_acquire(&limits, CLIENT)).collect();
        assert_eq!(held.len(), MAX_UNAUTHENTICATED_CONNECTIONS_PER_PEER);
        assert!(try_acquire(&limits, OTHER_CLIENT).is_some());

        // Authentication frees the count of unauthenticated ones, once.
        for permit in &held {
            permit.auth().mark_authenticated();
            permit.auth().mark_authenticated();
            permit.auth().mark_rejected();
            assert_eq!(permit.auth().lifetime(), ConnectionLifetime::Unlimited);
        }
        held.extend(std::iter::from_fn(|| {
            let permit = try_acquire(&limits, CLIENT)?;
            permit.auth().mark_authenticated();
            Some(permit)
        }));
        assert_eq!(held.len(), MAX_CONNECTIONS_PER_PEER);
        assert!(try_acquire(&limits, OTHER_CLIENT).is_some());

        let dropped = Arc::clone(held[0].auth());
        drop(held);
        dropped.mark_authenticated();
        let registry = lock(&limits.registry);
        assert!(registry.by_peer.is_empty() && registry.unauthenticated.is_empty());
        drop(registry);
        assert_eq!(limits.permits.available_permits(), MAX_LISTENER_CONNECTIONS);
        assert!(try_acquire(&limits, CLIENT).is_some());
    }

    #[test]
    fn root_may_take_nearly_all_connections() {
        let limits = ConnectionLimits::new();
        let held: Vec<_> = std::iter::from_fn(|| try_acquire(&limits, user(0))).collect();
        assert_eq!(held.len(), MAX_UNAUTHENTICATED_CONNECTIONS_PER_OWNER);
        assert!(try_acquire(&limits, CLIENT).is_some());
    }

    #[test]
    fn full_listener_evicts_oldest_unauthenticated_of_largest_peer() {
        let limits = ConnectionLimits::new();
        let probe = try_acquire(&limits, OTHER_CLIENT).unwrap();
        let authenticated = try_acquire(&limits, CLIENT).unwrap();
        authenticated.auth().mark_authenticated();

        // The last peer has fewer than the others.
        let all = MAX_UNAUTHENTICATED_CONNECTIONS_PER_PEER;
        let counts = [all, all, all, MAX_LISTENER_CONNECTIONS - 2 - 3 * all];
        let mut held = Vec::new();
        for (uid, count) in (30_000..).zip(counts) {
            held.extend((0..count).map(|_| try_acquire(&limits, user(uid)).unwrap()));
        }
        assert_eq!(held.len(), MAX_LISTENER_CONNECTIONS - 2);
        let is_evicted =
            |permit: &ConnectionPermit| poll_once(pin!(permit.auth().evicted())).is_some();
        assert!(!held.iter().any(is_evicted));
        for oldest in [0, all, 2 * all] {
            let mut acquiring = pin!(limits.acquire(CLIENT, None));
            assert!(poll_once(acquiring.as_mut()).is_none());
            assert!(is_evicted(&held[oldest]));
            assert_eq!(held.iter().filter(|it| is_evicted(it)).count(), 1);
            drop(held.remove(oldest));
            let acquired = poll_once(acquiring).flatten().expect("the evicted permit is free");
            acquired.auth().mark_authenticated();
            held.insert(oldest, acquired);
        }
        assert!(!is_evicted(&probe) && !is_evicted(&authenticated));

        // If all are authenticated, none is evicted.
        for permit in &held {
            permit.auth().mark_authenticated();
        }
        probe.auth().mark_authenticated();
        assert!(try_acquire(&limits, CLIENT).is_none());
        assert!(!held.iter().any(is_evicted));
    }

    #[test]
    fn ipv6_addresses_of_one_network_are_one_peer() {
        let key_of = |text: &str| peer_key(PeerOrigin::Elsewhere, Some(text.parse().unwrap()));
        assert_eq!(key_of("2001:db8::1"), key_of("2001:db8::ffff:2"));
        assert_ne!(key_of("2001:db8::1"), key_of("2001:db8:0:1::1"));
        assert_eq!(key_of("::ffff:192.0.2.1"), key_of("192.0.2.1"));
        assert_ne!(key_of("192.0.2.1"), key_of("192.0.2.2"));
        let unknown_user = PeerOrigin::Loopback { uid: None };
        let loopback_key = |text: &str| peer_key(unknown_user, Some(text.parse().unwrap()));
        assert_eq!(loopback_key("127.0.0.1"), loopback_key("127.0.0.2"));
    }
}
