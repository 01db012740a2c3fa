//! How many watch at one time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::daemon::{
    error::{Error, Reason},
    queue::{self, Limiter, PrincipalKey, Saturated, Sharing},
    store::session::SessionId,
};

/// Streams of one session: consoles and agents that look at the same.
const MAX_WATCHERS_PER_SESSION: usize = 128;
/// Those of one caller: some are left for others.
const MAX_WATCHERS_PER_SESSION_AND_PRINCIPAL: usize = 64;
/// Streams of one caller: also of sessions that are not there.
const MAX_WATCHERS_PER_PRINCIPAL: usize = 128;
/// Streams of all sessions. Each costs a few messages of at most 64 KiB or so on their way, a thread
/// for a moment when something happens, and keeps its session open.
const MAX_WATCHERS: usize = 512;

/// Workspace and id of a session.
type WatchedSession = (String, SessionId);

/// Those who watch.
#[derive(Debug)]
pub(super) struct EventWatchLimiter {
    total: Arc<Limiter>,
    /// Of those sessions that are watched, with how many watch them.
    sessions: Mutex<HashMap<WatchedSession, (Arc<Limiter>, usize)>>,
}

/// The place of one of them.
#[derive(Debug)]
pub(super) struct EventWatchPermit {
    limiter: Arc<EventWatchLimiter>,
    session: WatchedSession,
    _session_permit: queue::Permit,
    _total_permit: queue::Permit,
}

impl Default for EventWatchLimiter {
    fn default() -> Self {
        Self {
            total: Limiter::new(MAX_WATCHERS, Sharing::KeepHeadroom, 0),
            sessions: Mutex::default(),
        }
    }
}

impl EventWatchLimiter {
    /// Takes a place.
    pub(super) fn try_acquire(
        self: &Arc<Self>,
        session: WatchedSession,
        caller: &PrincipalKey,
    ) -> Result<EventWatchPermit, Error> {
        let of_all = self.total.try_acquire(caller, MAX_WATCHERS_PER_PRINCIPAL).map_err(|full| {
            let text = format!(
                "{} streams of this caller watch sessions, of at most {MAX_WATCHERS_PER_PRINCIPAL} of one caller and {MAX_WATCHERS} of all",
                full.in_use
            );
            limit_error(text, MAX_WATCHERS_PER_PRINCIPAL, full)
        })?;
        let mut sessions = self.sessions();
        let of_session = match sessions.get(&session) {
            Some((of_session, _)) => Arc::clone(of_session),
            None => Limiter::new(MAX_WATCHERS_PER_SESSION, Sharing::KeepHeadroom, 0),
        };
        let most = MAX_WATCHERS_PER_SESSION_AND_PRINCIPAL;
        let place = of_session.try_acquire(caller, most).map_err(|full| {
            let text = format!(
                "{} streams of this caller watch this session, of at most {most} of one caller and {MAX_WATCHERS_PER_SESSION} of all",
                full.in_use
            );
            limit_error(text, most, full)
        })?;
        sessions.entry(session.clone()).or_insert((of_session, 0)).1 += 1;
        drop(sessions);
        Ok(EventWatchPermit {
            limiter: Arc::clone(self),
            session,
            _session_permit: place,
            _total_permit: of_all,
        })
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<WatchedSession, (Arc<Limiter>, usize)>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EventWatchPermit {
    fn drop(&mut self) {
        let mut sessions = self.limiter.sessions();
        if let Some((_, watchers)) = sessions.get_mut(&self.session) {
            *watchers -= 1;
            if *watchers == 0 {
                sessions.remove(&self.session);
            }
        }
    }
}

fn limit_error(text: String, most: usize, full: Saturated) -> Error {
    let text = format!("{text}: end one of them, or retry after the time given");
    Error::new(Reason::ResourceExhausted, text)
        .with_metadata("limit", most.to_string())
        .retry_after(full.retry_after)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes places until there are none; answers these, and what is said then.
    fn fill(
        enter: impl Fn(usize) -> Result<EventWatchPermit, Error>,
    ) -> (Vec<EventWatchPermit>, Error) {
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
        let watchers = Arc::new(EventWatchLimiter::default());
        let enter = |session: usize, caller: &str| {
            let session = (format!("{session}"), SessionId::default());
            watchers.try_acquire(session, &PrincipalKey::from(caller))
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
        assert_eq!(watchers.total.in_use(), 0);
        assert!(watchers.sessions().is_empty());
    }
}
