//! Limits on streams that watch events: per session, per caller, and in total.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::daemon::{
    error::{Error, Reason},
    queue::{self, Limiter, PrincipalName, Saturated, Sharing},
    store::session::SessionId,
};

/// Streams of one session: several consoles and agents may watch the same session.
const MAX_EVENT_WATCHERS_PER_SESSION: usize = 128;
/// Streams of one session and one caller. Lower, to leave some for other callers.
const MAX_EVENT_WATCHERS_PER_SESSION_AND_PRINCIPAL: usize = 64;
/// Streams of one caller. Sessions that do not exist yet count too.
const MAX_EVENT_WATCHERS_PER_PRINCIPAL: usize = 128;
/// Streams of all sessions. Each buffers a few messages of about 64 KiB at most, uses a thread
/// briefly for each event, and keeps its session open.
const MAX_EVENT_WATCHERS: usize = 512;

/// Workspace and id of a session.
type WatchedSession = (String, SessionId);

#[derive(Debug)]
pub(super) struct EventWatchLimiter {
    total: Arc<Limiter>,
    /// The limiter and the number of streams of each watched session.
    sessions: Mutex<HashMap<WatchedSession, (Arc<Limiter>, usize)>>,
}

/// Permit of one stream.
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
            total: Limiter::new(MAX_EVENT_WATCHERS, Sharing::KeepHeadroom, 0),
            sessions: Mutex::default(),
        }
    }
}

impl EventWatchLimiter {
    /// Acquires a permit for a stream, without waiting.
    pub(super) fn try_acquire(
        self: &Arc<Self>,
        session: WatchedSession,
        principal: &PrincipalName,
    ) -> Result<EventWatchPermit, Error> {
        let total_permit = self.total.try_acquire(principal, MAX_EVENT_WATCHERS_PER_PRINCIPAL).map_err(|saturated| {
            let text = format!(
                "{} streams of this caller watch sessions, of at most {MAX_EVENT_WATCHERS_PER_PRINCIPAL} of one caller and {MAX_EVENT_WATCHERS} of all",
                saturated.in_use
            );
            limit_error(text, MAX_EVENT_WATCHERS_PER_PRINCIPAL, saturated)
        })?;

        let mut sessions = self.sessions();
        let limiter = match sessions.get(&session) {
            Some((limiter, _)) => Arc::clone(limiter),
            None => Limiter::new(MAX_EVENT_WATCHERS_PER_SESSION, Sharing::KeepHeadroom, 0),
        };
        let limit = MAX_EVENT_WATCHERS_PER_SESSION_AND_PRINCIPAL;
        let session_permit = limiter.try_acquire(principal, limit).map_err(|saturated| {
            let text = format!(
                "{} streams of this caller watch this session, of at most {limit} of one caller and {MAX_EVENT_WATCHERS_PER_SESSION} of all",
                saturated.in_use
            );
            limit_error(text, limit, saturated)
        })?;
        sessions.entry(session.clone()).or_insert((limiter, 0)).1 += 1;
        drop(sessions);

        Ok(EventWatchPermit {
            limiter: Arc::clone(self),
            session,
            _session_permit: session_permit,
            _total_permit: total_permit,
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

fn limit_error(text: String, limit: usize, saturated: Saturated) -> Error {
    let text = format!("{text}: end one of them, or retry after the delay in RetryInfo");
    Error::new(Reason::ResourceExhausted, text)
        .with_metadata("limit", limit.to_string())
        .with_retry_after(saturated.retry_after)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acquires permits until that fails. Returns them and the error.
    fn fill(
        acquire: impl Fn(usize) -> Result<EventWatchPermit, Error>,
    ) -> (Vec<EventWatchPermit>, Error) {
        let mut permits = Vec::new();
        loop {
            match acquire(permits.len()) {
                Ok(permit) => permits.push(permit),
                Err(error) => return (permits, error),
            }
        }
    }

    #[test]
    fn one_caller_leaves_streams_for_others() {
        let limiter = Arc::new(EventWatchLimiter::default());
        let acquire = |session: usize, principal: &str| {
            let session = (format!("{session}"), SessionId::default());
            limiter.try_acquire(session, &PrincipalName::from(principal))
        };
        let assert_limited = |error: &Error, text: &str| {
            assert_eq!(error.reason, Reason::ResourceExhausted);
            assert!(error.message.contains(text), "{error}");
            assert!(error.retry_after.is_some(), "{error}");
        };

        let (mut held, error) = fill(|_| acquire(0, "a"));
        assert_eq!(held.len(), 64);
        assert_limited(&error, "64 streams of this caller watch this session");
        let (others, _) = fill(|_| acquire(0, "b"));
        assert_eq!(others.len(), 32);
        held.extend(others);
        // The rest is headroom for callers that use little.
        for principal in ["c", "d", "e"] {
            let (few, _) = fill(|_| acquire(0, principal));
            assert_eq!(few.len(), 2, "{principal}");
            held.extend(few);
        }

        drop(held);
        let mut held = Vec::new();
        for (number, principal) in ["a", "b", "c"].into_iter().enumerate() {
            let (all, error) = fill(|session| acquire(1000 * number + session, principal));
            assert_eq!(all.len(), 128, "{principal}");
            assert_limited(&error, "128 streams of this caller");
            held.extend(all);
        }

        let (few, error) = fill(|session| acquire(10_000 + session, "d"));
        assert_eq!(few.len(), 8);
        assert_limited(&error, "8 streams of this caller");
        drop((few, held));
        assert_eq!(limiter.total.in_use(), 0);
        assert!(limiter.sessions().is_empty());
    }
}
