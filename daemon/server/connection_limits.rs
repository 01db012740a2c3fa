//! Places for connections: so many at each listener, of which one peer can take a part only, and who has not
//! made a call yet a smaller one. Who has never been let in loses his place after a while, and at once where
//! somebody comes for whom there is none.

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

/// Connections of one listener at one time; each costs some 30 KiB. Each listener has its own: who fills
/// a port keeps nobody from a Unix socket.
const MAX_CONNECTIONS: usize = 1024;
/// Those of one peer: two fill a listener, one does not.
const MAX_CONNECTIONS_PER_PEER: usize = 512;
/// Those of one peer on which no call was let in yet: more than a client opens at a stroke.
const MAX_UNAUTHENTICATED_PER_PEER: usize = 256;
/// Those of the daemon's own user, and of root, on which no call was let in yet: who could end the daemon need
/// not be kept from filling it, but commands may have the same user.
const MAX_UNAUTHENTICATED_PER_OWNER: usize = MAX_CONNECTIONS - 64;
/// How long a connection may last on which no call was let in: a client connects because it has a call to
/// make.
pub(super) const AUTH_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one may last on which a call was refused that will never be let in: the answer is on its way.
pub(super) const REJECTION_GRACE: Duration = Duration::from_secs(1);

/// Health checks that go on at one time on a connection on which no call was let in: who watches over the
/// daemon needs one.
const MAX_HEALTH_CHECKS: usize = 16;
/// When there may be room for another: they last as long as somebody wants.
const HEALTH_CHECK_RETRY_AFTER: Duration = Duration::from_secs(5);

/// The places of one listener.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    permits: Arc<Semaphore>,
    registry: Arc<Mutex<ConnectionRegistry>>,
}

/// Whose connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PeerKey {
    /// A user of this machine.
    User(u32),
    /// Whoever comes by the loopback interface, where nobody says who that is: each has all of 127.0.0.0/8.
    Loopback,
    /// An address; of IPv6 the network, which is what one host is given.
    Address(IpAddr),
    /// Nobody knows.
    Unknown,
}

/// Who has which places.
#[derive(Debug, Default)]
struct ConnectionRegistry {
    by_peer: HashMap<PeerKey, PeerUsage>,
    /// Those on which no call was let in yet, in the order in which they came, but for those that were sent
    /// away.
    unauthenticated: BTreeMap<u64, Arc<ConnectionAuth>>,
    /// How many have come.
    accepted: u64,
}

/// What one party has.
#[derive(Debug, Clone, Copy, Default)]
struct PeerUsage {
    connections: usize,
    unauthenticated: usize,
}

/// A place, for as long as a connection lasts.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    auth: Arc<ConnectionAuth>,
    _listener_permit: OwnedSemaphorePermit,
}

/// What the calls of a connection say about who is at the other end.
#[derive(Debug)]
pub(crate) struct ConnectionAuth {
    peer: PeerKey,
    number: u64,
    registry: Arc<Mutex<ConnectionRegistry>>,
    /// Locked after what is held, where both are.
    state: Mutex<AuthState>,
    /// Somebody else has its place.
    evicted: CancellationToken,
    /// Health checks that go on.
    health_checks: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AuthState {
    /// No call was let in yet.
    Unauthenticated,
    /// A call was refused, and every other one would be.
    Rejected,
    /// A call was let in.
    Authenticated,
}

/// How long a connection may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionLifetime {
    /// Until it ends.
    Unlimited,
    /// For so long from when it was accepted, or from when it was looked at last and a health check went on.
    UntilAuthTimeout,
    /// For so long from now on.
    UntilRejectionGrace,
}

impl ConnectionLimits {
    pub(super) fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)), registry: Arc::default() }
    }

    /// A place for a connection from `origin`, unless who is there has enough. Where none is free, a stranger
    /// is sent away for it: who comes may have a key. Where there is no stranger, waits until somebody goes.
    pub(super) async fn acquire(
        &self,
        origin: PeerOrigin,
        address: Option<IpAddr>,
    ) -> Option<ConnectionPermit> {
        let party = peer_key(origin, address);
        if self.is_at_limit(party) {
            return None;
        }
        let free = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(free) => free,
            Err(_) => {
                self.evict_unauthenticated();
                Arc::clone(&self.permits).acquire_owned().await.ok()?
            }
        };
        let mut held = lock(&self.registry);
        held.accepted += 1;
        let standing = Arc::new(ConnectionAuth {
            peer: party,
            number: held.accepted,
            registry: Arc::clone(&self.registry),
            state: Mutex::new(AuthState::Unauthenticated),
            evicted: CancellationToken::new(),
            health_checks: AtomicUsize::new(0),
        });
        let of_party = held.by_peer.entry(party).or_default();
        of_party.connections += 1;
        of_party.unauthenticated += 1;
        held.unauthenticated.insert(standing.number, Arc::clone(&standing));
        Some(ConnectionPermit { auth: standing, _listener_permit: free })
    }

    fn is_at_limit(&self, party: PeerKey) -> bool {
        let (most, strangers) = match party {
            PeerKey::User(uid) if uid == 0 || Some(uid) == own_uid() => {
                (MAX_CONNECTIONS, MAX_UNAUTHENTICATED_PER_OWNER)
            }
            PeerKey::User(_) | PeerKey::Loopback | PeerKey::Address(_) | PeerKey::Unknown => {
                (MAX_CONNECTIONS_PER_PEER, MAX_UNAUTHENTICATED_PER_PEER)
            }
        };
        let held = lock(&self.registry);
        let of_party = held.by_peer.get(&party).copied().unwrap_or_default();
        of_party.connections >= most || of_party.unauthenticated >= strangers
    }

    /// Sends the oldest stranger away of the peer that has the most of them: that is not who has one only,
    /// as whoever watches over the daemon.
    fn evict_unauthenticated(&self) {
        let mut held = lock(&self.registry);
        let of_party = |party| held.by_peer.get(party).map(|taken| taken.unauthenticated);
        // Of those that are equal, the last one.
        let strangers = held.unauthenticated.values().rev();
        let oldest = strangers.max_by_key(|standing| of_party(&standing.peer));
        let number = oldest.map(|standing| standing.number);
        if let Some(standing) = number.and_then(|number| held.unauthenticated.remove(&number)) {
            standing.evicted.cancel();
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
    /// What calls are to say about who is at the other end.
    pub(super) fn auth(&self) -> &Arc<ConnectionAuth> {
        &self.auth
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut held = lock(&self.auth.registry);
        // From now on its calls change nothing any more.
        self.auth.promote(&mut held);
        if let Some(of_party) = held.by_peer.get_mut(&self.auth.peer) {
            of_party.connections -= 1;
            if of_party.connections == 0 {
                held.by_peer.remove(&self.auth.peer);
            }
        }
    }
}

impl ConnectionAuth {
    /// A call was let in.
    pub(super) fn mark_authenticated(&self) {
        if *lock(&self.state) != AuthState::Authenticated {
            self.promote(&mut lock(&self.registry));
        }
    }

    /// It is no stranger from now on: all that is held says so at once.
    fn promote(&self, held: &mut ConnectionRegistry) {
        if std::mem::replace(&mut *lock(&self.state), AuthState::Authenticated)
            == AuthState::Authenticated
        {
            return;
        }
        held.unauthenticated.remove(&self.number);
        if let Some(of_party) = held.by_peer.get_mut(&self.peer) {
            of_party.unauthenticated -= 1;
        }
    }

    /// A call was refused, and every other one would be.
    pub(super) fn mark_rejected(&self) {
        let mut is = lock(&self.state);
        if *is == AuthState::Unauthenticated {
            *is = AuthState::Rejected;
        }
    }

    /// How long the connection may go on, unless it is sent away.
    pub(super) fn lifetime(&self) -> ConnectionLifetime {
        match *lock(&self.state) {
            AuthState::Authenticated => ConnectionLifetime::Unlimited,
            AuthState::Rejected => ConnectionLifetime::UntilRejectionGrace,
            AuthState::Unauthenticated => ConnectionLifetime::UntilAuthTimeout,
        }
    }

    /// Waits until it is sent away.
    pub(super) fn evicted(&self) -> WaitForCancellationFutureOwned {
        self.evicted.clone().cancelled_owned()
    }

    /// Whether a health check goes on.
    pub(super) fn has_health_check(&self) -> bool {
        self.health_checks.load(Ordering::Relaxed) > 0
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A health check that goes on. It keeps the connection: whoever watches over the daemon has no key.
#[derive(Debug)]
pub(super) struct HealthCheckPermit(Arc<ConnectionAuth>);

impl HealthCheckPermit {
    /// Unless enough go on already.
    pub(super) fn try_acquire(standing: &Arc<ConnectionAuth>) -> Option<Self> {
        let is_known = standing.lifetime() == ConnectionLifetime::Unlimited;
        let one_more = |checks| (is_known || checks < MAX_HEALTH_CHECKS).then_some(checks + 1);
        let checks = &standing.health_checks;
        checks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self(Arc::clone(standing)))
    }

    /// What who has enough is told.
    pub(super) fn limit_error() -> Error {
        let text = format!(
            "{MAX_HEALTH_CHECKS} health checks go on on this connection, and no more may at one time without another call: end one of them"
        );
        Error::new(Reason::ResourceExhausted, text)
            .with_metadata("limit", MAX_HEALTH_CHECKS.to_string())
            .retry_after(HEALTH_CHECK_RETRY_AFTER)
    }

    /// The answer, with which the check ends.
    pub(super) fn hold_until_sent(self, body: Body) -> Body {
        Body::new(body.map_frame(move |frame| {
            let _ends_with_the_answer = &self;
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

    const SOMEBODY: PeerOrigin = PeerOrigin::Socket { uid: 23_456 };
    const OTHER: PeerOrigin = PeerOrigin::Loopback { uid: Some(23_457) };

    /// What is there without waiting.
    fn now<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    /// A place, unless who is there has enough, or there is none.
    fn take(places: &ConnectionLimits, origin: PeerOrigin) -> Option<ConnectionPermit> {
        now(pin!(places.acquire(origin, None))).flatten()
    }

    fn user(uid: u32) -> PeerOrigin {
        PeerOrigin::Socket { uid }
    }

    #[test]
    fn one_peer_leaves_places_for_others() {
        let places = ConnectionLimits::new();
        let mut held: Vec<_> = std::iter::from_fn(|| take(&places, SOMEBODY)).collect();
        assert_eq!(held.len(), MAX_UNAUTHENTICATED_PER_PEER);
        assert!(take(&places, OTHER).is_some());
        // Who was let in is no stranger any more, once only.
        for place in &held {
            place.auth().mark_authenticated();
            place.auth().mark_authenticated();
            place.auth().mark_rejected();
            assert_eq!(place.auth().lifetime(), ConnectionLifetime::Unlimited);
        }
        held.extend(std::iter::from_fn(|| {
            let place = take(&places, SOMEBODY)?;
            place.auth().mark_authenticated();
            Some(place)
        }));
        assert_eq!(held.len(), MAX_CONNECTIONS_PER_PEER);
        assert!(take(&places, OTHER).is_some());
        let late = Arc::clone(held[0].auth());
        drop(held);
        late.mark_authenticated();
        let left = lock(&places.registry);
        assert!(left.by_peer.is_empty() && left.unauthenticated.is_empty());
        drop(left);
        assert_eq!(places.permits.available_permits(), MAX_CONNECTIONS);
        assert!(take(&places, SOMEBODY).is_some());
    }

    #[test]
    fn root_has_nearly_all() {
        let places = ConnectionLimits::new();
        let held: Vec<_> = std::iter::from_fn(|| take(&places, user(0))).collect();
        assert_eq!(held.len(), MAX_UNAUTHENTICATED_PER_OWNER);
        assert!(take(&places, SOMEBODY).is_some());
    }

    #[test]
    fn strangers_make_room_the_oldest_of_those_who_have_the_most_first() {
        let places = ConnectionLimits::new();
        let watcher = take(&places, OTHER).unwrap();
        let known = take(&places, SOMEBODY).unwrap();
        known.auth().mark_authenticated();
        // The last one has fewer than the others.
        let all = MAX_UNAUTHENTICATED_PER_PEER;
        let counts = [all, all, all, MAX_CONNECTIONS - 2 - 3 * all];
        let mut held = Vec::new();
        for (uid, count) in (30_000..).zip(counts) {
            held.extend((0..count).map(|_| take(&places, user(uid)).unwrap()));
        }
        assert_eq!(held.len(), MAX_CONNECTIONS - 2);
        let is_sent_away = |place: &ConnectionPermit| now(pin!(place.auth().evicted())).is_some();
        assert!(!held.iter().any(is_sent_away));
        for oldest in [0, all, 2 * all] {
            let mut comes = pin!(places.acquire(SOMEBODY, None));
            assert!(now(comes.as_mut()).is_none());
            assert!(is_sent_away(&held[oldest]));
            assert_eq!(held.iter().filter(|it| is_sent_away(it)).count(), 1);
            drop(held.remove(oldest));
            let came = now(comes).flatten().expect("its place is free");
            came.auth().mark_authenticated();
            held.insert(oldest, came);
        }
        assert!(!is_sent_away(&watcher) && !is_sent_away(&known));
        // Where all are known, nobody goes.
        for place in &held {
            place.auth().mark_authenticated();
        }
        watcher.auth().mark_authenticated();
        assert!(take(&places, SOMEBODY).is_none());
        assert!(!held.iter().any(is_sent_away));
    }

    #[test]
    fn addresses_of_one_host_are_one_peer() {
        let of = |text: &str| peer_key(PeerOrigin::Elsewhere, Some(text.parse().unwrap()));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        let nobody = PeerOrigin::Loopback { uid: None };
        let address = |text: &str| peer_key(nobody, Some(text.parse().unwrap()));
        assert_eq!(address("127.0.0.1"), address("127.0.0.2"));
    }
}
