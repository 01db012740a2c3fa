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

use super::peer::own_user;
use crate::daemon::{
    call::access::Origin,
    error::{Error, Reason},
};

/// Connections of one listener at one time; each costs some 30 KiB. Each listener has its own: who fills
/// a port keeps nobody from a Unix socket.
const CONNECTIONS: usize = 1024;
/// Those of one peer: two fill a listener, one does not.
const OF_PEER: usize = 512;
/// Those of one peer on which no call was let in yet: more than a client opens at a stroke.
const STRANGERS_OF_PEER: usize = 256;
/// Those of the daemon's own user, and of root, on which no call was let in yet: who could end the daemon need
/// not be kept from filling it, but commands may have the same user.
const STRANGERS_OF_OWNER: usize = CONNECTIONS - 64;
/// How long a connection may last on which no call was let in: a client connects because it has a call to
/// make.
pub(super) const STRANGERS_PATIENCE: Duration = Duration::from_secs(30);
/// How long one may last on which a call was refused that will never be let in: the answer is on its way.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

/// Health checks that go on at one time on a connection on which no call was let in: who watches over the
/// daemon needs one.
const CHECKS: usize = 16;
/// When there may be room for another: they last as long as somebody wants.
const RETRY_CHECK: Duration = Duration::from_secs(5);

/// The places of one listener.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    held: Arc<Mutex<Held>>,
}

/// Whose connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Party {
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
struct Held {
    of_each: HashMap<Party, Taken>,
    /// Those on which no call was let in yet, in the order in which they came, but for those that were sent
    /// away.
    strangers: BTreeMap<u64, Arc<Standing>>,
    /// How many have come.
    came: u64,
}

/// What one party has.
#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    connections: usize,
    strangers: usize,
}

/// A place, for as long as a connection lasts.
#[derive(Debug)]
pub(super) struct Place {
    standing: Arc<Standing>,
    _of_listener: OwnedSemaphorePermit,
}

/// What the calls of a connection say about who is at the other end.
#[derive(Debug)]
pub(crate) struct Standing {
    party: Party,
    number: u64,
    held: Arc<Mutex<Held>>,
    /// Locked after what is held, where both are.
    is: Mutex<Is>,
    /// Somebody else has its place.
    sent_away: CancellationToken,
    /// Health checks that go on.
    checks: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    /// No call was let in yet.
    Stranger,
    /// A call was refused, and every other one would be.
    Unwelcome,
    /// A call was let in.
    Known,
}

/// How long a connection may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Term {
    /// Until it ends.
    Open,
    /// For so long from when it was accepted, or from when it was looked at last and a health check went on.
    Patience,
    /// For so long from now on.
    Farewell,
}

impl Places {
    pub(super) fn new() -> Self {
        Self { free: Arc::new(Semaphore::new(CONNECTIONS)), held: Arc::default() }
    }

    /// A place for a connection from `origin`, unless who is there has enough. Where none is free, a stranger
    /// is sent away for it: who comes may have a key. Where there is no stranger, waits until somebody goes.
    pub(super) async fn take(&self, origin: Origin, address: Option<IpAddr>) -> Option<Place> {
        let party = party(origin, address);
        if self.has_enough(party) {
            return None;
        }
        let free = match Arc::clone(&self.free).try_acquire_owned() {
            Ok(free) => free,
            Err(_) => {
                self.send_one_away();
                Arc::clone(&self.free).acquire_owned().await.ok()?
            }
        };
        let mut held = lock(&self.held);
        held.came += 1;
        let standing = Arc::new(Standing {
            party,
            number: held.came,
            held: Arc::clone(&self.held),
            is: Mutex::new(Is::Stranger),
            sent_away: CancellationToken::new(),
            checks: AtomicUsize::new(0),
        });
        let of_party = held.of_each.entry(party).or_default();
        of_party.connections += 1;
        of_party.strangers += 1;
        held.strangers.insert(standing.number, Arc::clone(&standing));
        Some(Place { standing, _of_listener: free })
    }

    fn has_enough(&self, party: Party) -> bool {
        let (most, strangers) = match party {
            Party::User(uid) if uid == 0 || Some(uid) == own_user() => {
                (CONNECTIONS, STRANGERS_OF_OWNER)
            }
            Party::User(_) | Party::Loopback | Party::Address(_) | Party::Unknown => {
                (OF_PEER, STRANGERS_OF_PEER)
            }
        };
        let held = lock(&self.held);
        let of_party = held.of_each.get(&party).copied().unwrap_or_default();
        of_party.connections >= most || of_party.strangers >= strangers
    }

    /// Sends the oldest stranger away of the peer that has the most of them: that is not who has one only,
    /// as whoever watches over the daemon.
    fn send_one_away(&self) {
        let mut held = lock(&self.held);
        let of_party = |party| held.of_each.get(party).map(|taken| taken.strangers);
        // Of those that are equal, the last one.
        let strangers = held.strangers.values().rev();
        let oldest = strangers.max_by_key(|standing| of_party(&standing.party));
        let number = oldest.map(|standing| standing.number);
        if let Some(standing) = number.and_then(|number| held.strangers.remove(&number)) {
            standing.sent_away.cancel();
        }
    }
}

fn party(origin: Origin, address: Option<IpAddr>) -> Party {
    match (origin, address.map(|address| address.to_canonical())) {
        (Origin::Itself, _) => Party::User(geteuid().as_raw()),
        (Origin::Socket { uid } | Origin::Loopback { uid: Some(uid) }, _) => Party::User(uid),
        (Origin::Loopback { uid: None }, _) => Party::Loopback,
        (Origin::Elsewhere, Some(IpAddr::V6(address))) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            Party::Address(Ipv6Addr::from(network).into())
        }
        (Origin::Elsewhere, Some(address)) => Party::Address(address),
        (Origin::Elsewhere, None) => Party::Unknown,
    }
}

impl Place {
    /// What calls are to say about who is at the other end.
    pub(super) fn standing(&self) -> &Arc<Standing> {
        &self.standing
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = lock(&self.standing.held);
        // From now on its calls change nothing any more.
        self.standing.is_known(&mut held);
        if let Some(of_party) = held.of_each.get_mut(&self.standing.party) {
            of_party.connections -= 1;
            if of_party.connections == 0 {
                held.of_each.remove(&self.standing.party);
            }
        }
    }
}

impl Standing {
    /// A call was let in.
    pub(super) fn welcome(&self) {
        if *lock(&self.is) != Is::Known {
            self.is_known(&mut lock(&self.held));
        }
    }

    /// It is no stranger from now on: all that is held says so at once.
    fn is_known(&self, held: &mut Held) {
        if std::mem::replace(&mut *lock(&self.is), Is::Known) == Is::Known {
            return;
        }
        held.strangers.remove(&self.number);
        if let Some(of_party) = held.of_each.get_mut(&self.party) {
            of_party.strangers -= 1;
        }
    }

    /// A call was refused, and every other one would be.
    pub(super) fn dismiss(&self) {
        let mut is = lock(&self.is);
        if *is == Is::Stranger {
            *is = Is::Unwelcome;
        }
    }

    /// How long the connection may go on, unless it is sent away.
    pub(super) fn term(&self) -> Term {
        match *lock(&self.is) {
            Is::Known => Term::Open,
            Is::Unwelcome => Term::Farewell,
            Is::Stranger => Term::Patience,
        }
    }

    /// Waits until it is sent away.
    pub(super) fn sent_away(&self) -> WaitForCancellationFutureOwned {
        self.sent_away.clone().cancelled_owned()
    }

    /// Whether a health check goes on.
    pub(super) fn is_checking(&self) -> bool {
        self.checks.load(Ordering::Relaxed) > 0
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A health check that goes on. It keeps the connection: whoever watches over the daemon has no key.
#[derive(Debug)]
pub(super) struct Check(Arc<Standing>);

impl Check {
    /// Unless enough go on already.
    pub(super) fn begin(standing: &Arc<Standing>) -> Option<Self> {
        let is_known = standing.term() == Term::Open;
        let one_more = |checks| (is_known || checks < CHECKS).then_some(checks + 1);
        let checks = &standing.checks;
        checks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self(Arc::clone(standing)))
    }

    /// What who has enough is told.
    pub(super) fn too_many() -> Error {
        let text = format!(
            "{CHECKS} health checks go on on this connection, and no more may at one time without another call: end one of them"
        );
        Error::new(Reason::ResourceExhausted, text)
            .with("limit", CHECKS.to_string())
            .retry_after(RETRY_CHECK)
    }

    /// The answer, with which the check ends.
    pub(super) fn until_told(self, body: Body) -> Body {
        Body::new(body.map_frame(move |frame| {
            let _ends_with_the_answer = &self;
            frame
        }))
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        self.0.checks.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        task::{Context, Poll, Waker},
    };

    use super::*;

    const SOMEBODY: Origin = Origin::Socket { uid: 23_456 };
    const OTHER: Origin = Origin::Loopback { uid: Some(23_457) };

    /// What is there without waiting.
    fn now<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    /// A place, unless who is there has enough, or there is none.
    fn take(places: &Places, origin: Origin) -> Option<Place> {
        now(pin!(places.take(origin, None))).flatten()
    }

    fn user(uid: u32) -> Origin {
        Origin::Socket { uid }
    }

    #[test]
    fn one_peer_leaves_places_for_others() {
        let places = Places::new();
        let mut held: Vec<_> = std::iter::from_fn(|| take(&places, SOMEBODY)).collect();
        assert_eq!(held.len(), STRANGERS_OF_PEER);
        assert!(take(&places, OTHER).is_some());
        // Who was let in is no stranger any more, once only.
        for place in &held {
            place.standing().welcome();
            place.standing().welcome();
            place.standing().dismiss();
            assert_eq!(place.standing().term(), Term::Open);
        }
        held.extend(std::iter::from_fn(|| {
            let place = take(&places, SOMEBODY)?;
            place.standing().welcome();
            Some(place)
        }));
        assert_eq!(held.len(), OF_PEER);
        assert!(take(&places, OTHER).is_some());
        let late = Arc::clone(held[0].standing());
        drop(held);
        late.welcome();
        let left = lock(&places.held);
        assert!(left.of_each.is_empty() && left.strangers.is_empty());
        drop(left);
        assert_eq!(places.free.available_permits(), CONNECTIONS);
        assert!(take(&places, SOMEBODY).is_some());
    }

    #[test]
    fn root_has_nearly_all() {
        let places = Places::new();
        let held: Vec<_> = std::iter::from_fn(|| take(&places, user(0))).collect();
        assert_eq!(held.len(), STRANGERS_OF_OWNER);
        assert!(take(&places, SOMEBODY).is_some());
    }

    #[test]
    fn strangers_make_room_the_oldest_of_those_who_have_the_most_first() {
        let places = Places::new();
        let watcher = take(&places, OTHER).unwrap();
        let known = take(&places, SOMEBODY).unwrap();
        known.standing().welcome();
        // The last one has fewer than the others.
        let all = STRANGERS_OF_PEER;
        let counts = [all, all, all, CONNECTIONS - 2 - 3 * all];
        let mut held = Vec::new();
        for (uid, count) in (30_000..).zip(counts) {
            held.extend((0..count).map(|_| take(&places, user(uid)).unwrap()));
        }
        assert_eq!(held.len(), CONNECTIONS - 2);
        let is_sent_away = |place: &Place| now(pin!(place.standing().sent_away())).is_some();
        assert!(!held.iter().any(is_sent_away));
        for oldest in [0, all, 2 * all] {
            let mut comes = pin!(places.take(SOMEBODY, None));
            assert!(now(comes.as_mut()).is_none());
            assert!(is_sent_away(&held[oldest]));
            assert_eq!(held.iter().filter(|it| is_sent_away(it)).count(), 1);
            drop(held.remove(oldest));
            let came = now(comes).flatten().expect("its place is free");
            came.standing().welcome();
            held.insert(oldest, came);
        }
        assert!(!is_sent_away(&watcher) && !is_sent_away(&known));
        // Where all are known, nobody goes.
        for place in &held {
            place.standing().welcome();
        }
        watcher.standing().welcome();
        assert!(take(&places, SOMEBODY).is_none());
        assert!(!held.iter().any(is_sent_away));
    }

    #[test]
    fn addresses_of_one_host_are_one_peer() {
        let of = |text: &str| party(Origin::Elsewhere, Some(text.parse().unwrap()));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        let nobody = Origin::Loopback { uid: None };
        let address = |text: &str| party(nobody, Some(text.parse().unwrap()));
        assert_eq!(address("127.0.0.1"), address("127.0.0.2"));
    }
}
