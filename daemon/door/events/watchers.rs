//! How many watch at one time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::daemon::{
    error::{Error, Reason},
    store::session::SessionId,
};

/// Streams of one session: consoles and agents that look at the same.
const OF_ONE_SESSION: usize = 64;
/// Streams of all sessions. Each costs a few messages of at most 64 KiB or so on their way, a thread
/// for a moment when something happens, and keeps its session open.
const OF_ALL: usize = 512;
/// How long to wait before asking again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Workspace and id of a session.
type Key = (String, SessionId);

/// Those who watch.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<HashMap<Key, usize>>);

/// The place of one of them.
#[derive(Debug)]
pub(super) struct Place {
    watchers: Arc<Watchers>,
    session: Key,
}

impl Watchers {
    /// Takes a place.
    pub(super) fn enter(self: &Arc<Self>, session: Key) -> Result<Place, Error> {
        let mut watchers = self.lock();
        let here = watchers.get(&session).copied().unwrap_or(0);
        let (at_most, what) = if here >= OF_ONE_SESSION {
            (OF_ONE_SESSION, "this session")
        } else if watchers.values().sum::<usize>() >= OF_ALL {
            (OF_ALL, "sessions")
        } else {
            watchers.insert(session.clone(), here + 1);
            return Ok(Place {
                watchers: Arc::clone(self),
                session,
            });
        };
        let text = format!("{at_most} watch {what} already: end one of them, or try again later");
        Err(Error::new(Reason::ResourceExhausted, text)
            .with("limit", at_most.to_string())
            .retry_after(RETRY_AFTER))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut watchers = self.watchers.lock();
        if let Some(here) = watchers.get_mut(&self.session) {
            *here -= 1;
            if *here == 0 {
                watchers.remove(&self.session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let watchers = Arc::new(Watchers::default());
        let enter = |workspace: &str| watchers.enter((workspace.to_owned(), SessionId::default()));
        let all: Vec<_> = (0..OF_ALL)
            .map(|number| enter(&format!("{}", number / OF_ONE_SESSION)).unwrap())
            .collect();
        assert_eq!(enter("0").unwrap_err().reason, Reason::ResourceExhausted);
        assert!(enter("other").unwrap_err().message.contains("512"));
        drop(all);
        assert!(watchers.lock().is_empty());
        let _again = enter("0").unwrap();
    }
}
