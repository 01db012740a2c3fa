//! How many watch at one time.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::daemon::{
    error::{Error, Reason},
    queue::Name,
    store::session::SessionId,
};

/// Streams of one session: consoles and agents that look at the same.
const OF_ONE_SESSION: usize = 64;
/// Streams of one caller, so that there are some for others: also of sessions that are not there.
const OF_ONE_CALLER: usize = 128;
/// Streams of all sessions. Each costs a few messages of at most 64 KiB or so on their way, a thread
/// for a moment when something happens, and keeps its session open.
const OF_ALL: usize = 512;

/// Workspace and id of a session.
type Key = (String, SessionId);

/// Those who watch.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    sessions: HashMap<Key, usize>,
    callers: HashMap<Name, usize>,
}

/// The place of one of them.
#[derive(Debug)]
pub(super) struct Place {
    watchers: Arc<Watchers>,
    session: Key,
    caller: Name,
}

impl Watchers {
    /// Takes a place. When there will be one where there is none, nobody knows.
    pub(super) fn enter(self: &Arc<Self>, session: Key, caller: &Name) -> Result<Place, Error> {
        let mut counts = self.lock();
        let of = |count: Option<&usize>| count.copied().unwrap_or(0);
        let bounds = [
            (
                of(counts.sessions.get(&session)),
                OF_ONE_SESSION,
                "streams watch this session",
            ),
            (
                of(counts.callers.get(caller)),
                OF_ONE_CALLER,
                "streams of this caller watch",
            ),
            (counts.all, OF_ALL, "streams watch sessions"),
        ];
        let full = bounds.into_iter().find(|(count, most, _)| count >= most);
        if let Some((_, most, what)) = full {
            let text = format!(
                "{most} {what}, and no more may at one time: end one of them, or try again when one has ended"
            );
            let error = Error::new(Reason::ResourceExhausted, text);
            return Err(error.with("limit", most.to_string()));
        }
        counts.all += 1;
        *counts.sessions.entry(session.clone()).or_default() += 1;
        *counts.callers.entry(Arc::clone(caller)).or_default() += 1;
        Ok(Place {
            watchers: Arc::clone(self),
            session,
            caller: Arc::clone(caller),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.watchers.lock();
        counts.all -= 1;
        one_less(&mut counts.sessions, &self.session);
        one_less(&mut counts.callers, &self.caller);
    }
}

fn one_less<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let watchers = Arc::new(Watchers::default());
        let enter = |workspace: usize, caller: usize| {
            let session = (format!("{workspace}"), SessionId::default());
            watchers.enter(session, &Name::from(format!("{caller}")))
        };
        let refused = |workspace, caller, why: &str| {
            let error = enter(workspace, caller).unwrap_err();
            assert_eq!(error.reason, Reason::ResourceExhausted);
            assert!(
                error.message.contains(why) && error.retry_after.is_none(),
                "{error}"
            );
        };
        let mut all: Vec<_> = (0..OF_ONE_SESSION)
            .map(|caller| enter(0, caller).unwrap())
            .collect();
        refused(0, OF_ONE_SESSION, "64 streams watch this session");
        all.extend((1..OF_ONE_CALLER).map(|workspace| enter(workspace, 0).unwrap()));
        refused(1000, 0, "128 streams of this caller");
        all.extend((all.len()..OF_ALL).map(|number| enter(1000 + number, 1000 + number).unwrap()));
        refused(2000, 2000, "512 streams");
        drop(all);
        let counts = watchers.lock();
        assert!(counts.all == 0 && counts.sessions.is_empty() && counts.callers.is_empty());
    }
}
