//! How many watch at one time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::daemon::{
    error::{Error, Reason},
    queue::{self, Full, Name, Queue, Share},
    store::session::SessionId,
};

/// Streams of one session: consoles and agents that look at the same.
const OF_ONE_SESSION: usize = 128;
/// Those of one caller: some are left for others.
const OF_ONE_SESSION_AND_CALLER: usize = 64;
/// Streams of one caller: also of sessions that are not there.
const OF_ONE_CALLER: usize = 128;
/// Streams of all sessions. Each costs a few messages of at most 64 KiB or so on their way, a thread
/// for a moment when something happens, and keeps its session open.
const OF_ALL: usize = 512;

/// Workspace and id of a session.
type Key = (String, SessionId);

/// Those who watch.
#[derive(Debug)]
pub(super) struct Watchers {
    all: Arc<Queue>,
    /// Of those sessions that are watched, with how many watch them.
    sessions: Mutex<HashMap<Key, (Arc<Queue>, usize)>>,
}

/// The place of one of them.
#[derive(Debug)]
pub(super) struct Place {
    watchers: Arc<Watchers>,
    session: Key,
    _of_session: queue::Place,
    _of_all: queue::Place,
}

impl Default for Watchers {
    fn default() -> Self {
        Self { all: Queue::new(OF_ALL, Share::Reserve, 0), sessions: Mutex::default() }
    }
}

impl Watchers {
    /// Takes a place.
    pub(super) fn enter(self: &Arc<Self>, session: Key, caller: &Name) -> Result<Place, Error> {
        let of_all = self.all.at_once(caller, OF_ONE_CALLER).map_err(|full| {
            let text = format!(
                "{} streams of this caller watch sessions, of at most {OF_ONE_CALLER} of one caller and {OF_ALL} of all",
                full.held
            );
            too_many(text, OF_ONE_CALLER, full)
        })?;
        let mut sessions = self.sessions();
        let of_session = match sessions.get(&session) {
            Some((of_session, _)) => Arc::clone(of_session),
            None => Queue::new(OF_ONE_SESSION, Share::Reserve, 0),
        };
        let most = OF_ONE_SESSION_AND_CALLER;
        let place = of_session.at_once(caller, most).map_err(|full| {
            let text = format!(
                "{} streams of this caller watch this session, of at most {most} of one caller and {OF_ONE_SESSION} of all",
                full.held
            );
            too_many(text, most, full)
        })?;
        sessions.entry(session.clone()).or_insert((of_session, 0)).1 += 1;
        drop(sessions);
        Ok(Place { watchers: Arc::clone(self), session, _of_session: place, _of_all: of_all })
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Key, (Arc<Queue>, usize)>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut sessions = self.watchers.sessions();
        if let Some((_, watchers)) = sessions.get_mut(&self.session) {
            *watchers -= 1;
            if *watchers == 0 {
                sessions.remove(&self.session);
            }
        }
    }
}

fn too_many(text: String, most: usize, full: Full) -> Error {
    let text = format!("{text}: end one of them, or retry after the time given");
    Error::new(Reason::ResourceExhausted, text)
        .with("limit", most.to_string())
        .retry_after(full.retry_after)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes places until there are none; answers these, and what is said then.
    fn fill(enter: impl Fn(usize) -> Result<Place, Error>) -> (Vec<Place>, Error) {
        let mut places = Vec::new();
        loop {
            match enter(places.len()) {
                Ok(place) => places.push(place),
                Err(error) => return (places, error),
            }
        }
    }

    #[test]
    fn places_are_bounded_and_some_are_left_for_others() {
        let watchers = Arc::new(Watchers::default());
        let enter = |session: usize, caller: &str| {
            let session = (format!("{session}"), SessionId::default());
            watchers.enter(session, &Name::from(caller))
        };
        let refused = |error: &Error, why: &str| {
            assert_eq!(error.reason, Reason::ResourceExhausted);
            assert!(error.message.contains(why), "{error}");
            assert!(error.retry_after.is_some(), "{error}");
        };
        let (mut held, error) = fill(|_| enter(0, "a"));
        assert_eq!(held.len(), 64);
        refused(&error, "64 streams of this caller watch this session");
        let (others, _) = fill(|_| enter(0, "b"));
        assert_eq!(others.len(), 32);
        held.extend(others);
        // What is left is for those who have little.
        for caller in ["c", "d", "e"] {
            let (few, _) = fill(|_| enter(0, caller));
            assert_eq!(few.len(), 2, "{caller}");
            held.extend(few);
        }
        drop(held);
        let mut held = Vec::new();
        for (number, caller) in ["a", "b", "c"].into_iter().enumerate() {
            let (all, error) = fill(|session| enter(1000 * number + session, caller));
            assert_eq!(all.len(), 128, "{caller}");
            refused(&error, "128 streams of this caller");
            held.extend(all);
        }
        let (few, error) = fill(|session| enter(10_000 + session, "d"));
        assert_eq!(few.len(), 8);
        refused(&error, "8 streams of this caller");
        drop((few, held));
        assert_eq!(watchers.all.held(), 0);
        assert!(watchers.sessions().is_empty());
    }
}
