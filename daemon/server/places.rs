//! Places for connections: so many at each listener, of which one peer can take a part only, and who has not
//! made a call yet a smaller one. Who has never been let in loses his place after a while.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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
    taken: Arc<Mutex<HashMap<Party, Taken>>>,
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
    taken: Arc<Mutex<HashMap<Party, Taken>>>,
    is: Mutex<Is>,
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
        Self {
            free: Arc::new(Semaphore::new(CONNECTIONS)),
            taken: Arc::default(),
        }
    }

    /// Waits until one more connection may be accepted.
    pub(super) async fn free(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).acquire_owned().await.ok()
    }

    /// A place for a connection from `origin`, unless who is there has enough.
    pub(super) fn take(
        &self,
        free: OwnedSemaphorePermit,
        origin: Origin,
        address: Option<IpAddr>,
    ) -> Option<Place> {
        let party = party(origin, address);
        let mut taken = lock(&self.taken);
        let of_party = taken.entry(party).or_default();
        let (most, strangers) = match party {
            Party::User(uid) if uid == 0 || Some(uid) == own_user() => {
                (CONNECTIONS, STRANGERS_OF_OWNER)
            }
            Party::User(_) | Party::Loopback | Party::Address(_) | Party::Unknown => {
                (OF_PEER, STRANGERS_OF_PEER)
            }
        };
        if of_party.connections >= most || of_party.strangers >= strangers {
            return None;
        }
        of_party.connections += 1;
        of_party.strangers += 1;
        drop(taken);
        let standing = Standing {
            party,
            taken: Arc::clone(&self.taken),
            is: Mutex::new(Is::Stranger),
            checks: AtomicUsize::new(0),
        };
        Some(Place {
            standing: Arc::new(standing),
            _of_listener: free,
        })
    }
}

fn party(origin: Origin, address: Option<IpAddr>) -> Party {
    match (origin, address.map(|address| address.to_canonical())) {
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
        // From now on its calls change nothing any more.
        let before = std::mem::replace(&mut *lock(&self.standing.is), Is::Known);
        let mut taken = lock(&self.standing.taken);
        if let Some(of_party) = taken.get_mut(&self.standing.party) {
            of_party.connections -= 1;
            of_party.strangers -= usize::from(before != Is::Known);
            if of_party.connections == 0 {
                taken.remove(&self.standing.party);
            }
        }
    }
}

impl Standing {
    /// A call was let in.
    pub(super) fn welcome(&self) {
        let before = std::mem::replace(&mut *lock(&self.is), Is::Known);
        if before != Is::Known
            && let Some(of_party) = lock(&self.taken).get_mut(&self.party)
        {
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

    /// How long the connection may go on.
    pub(super) fn term(&self) -> Term {
        match *lock(&self.is) {
            Is::Known => Term::Open,
            Is::Unwelcome => Term::Farewell,
            Is::Stranger => Term::Patience,
        }
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
        checks
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()?;
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
    use super::*;

    const SOMEBODY: Origin = Origin::Socket { uid: 23_456 };
    const OTHER: Origin = Origin::Loopback { uid: Some(23_457) };

    fn take(places: &Places, origin: Origin) -> Option<Place> {
        let free = Arc::clone(&places.free).try_acquire_owned().ok()?;
        places.take(free, origin, None)
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
        assert!(lock(&places.taken).is_empty());
        assert_eq!(places.free.available_permits(), CONNECTIONS);
        assert!(take(&places, SOMEBODY).is_some());
    }

    #[test]
    fn root_has_nearly_all() {
        let places = Places::new();
        let root = Origin::Socket { uid: 0 };
        let held: Vec<_> = std::iter::from_fn(|| take(&places, root)).collect();
        assert_eq!(held.len(), STRANGERS_OF_OWNER);
        assert!(take(&places, SOMEBODY).is_some());
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
