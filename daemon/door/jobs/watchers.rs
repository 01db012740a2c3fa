//! How many watch jobs at one time.

use std::sync::Arc;

use crate::daemon::{
    call::access::principal::Principal,
    error::{Error, Reason},
    queue::{Place, Queue, Share},
};

/// Streams of one caller.
const OF_ONE: usize = 64;
/// Streams of all callers. Each has two files open, and a few messages of 64 KiB on their way.
const OF_ALL: usize = 512;

/// Those who watch.
#[derive(Debug)]
pub(super) struct Watchers(Arc<Queue>);

impl Default for Watchers {
    fn default() -> Self {
        Self(Queue::new(OF_ALL, Share::Reserve, 0))
    }
}

impl Watchers {
    /// Takes a place.
    pub(super) fn enter(&self, principal: &Principal) -> Result<Place, Error> {
        let full = match self.0.at_once(principal.lane(), OF_ONE) {
            Ok(place) => return Ok(place),
            Err(full) => full,
        };
        let text = format!(
            "{} watches {} jobs already, of at most {OF_ONE} of one caller and {OF_ALL} of all: end one of these streams, or retry after the time given",
            principal.name(),
            full.held
        );
        Err(Error::new(Reason::ResourceExhausted, text)
            .with("limit", OF_ONE.to_string())
            .retry_after(full.retry_after))
    }
}
