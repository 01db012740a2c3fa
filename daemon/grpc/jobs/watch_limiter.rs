//! How many watch jobs at one time.

use std::sync::Arc;

use crate::daemon::{
    error::{Error, Reason},
    pipeline::access::principal::Principal,
    queue::{Limiter, Permit, Sharing},
};

/// Streams of one caller.
const MAX_WATCHERS_PER_PRINCIPAL: usize = 64;
/// Streams of all callers. Each has two files open, and a few messages of 64 KiB on their way.
const MAX_WATCHERS: usize = 512;

/// Those who watch.
#[derive(Debug)]
pub(super) struct JobWatchLimiter(Arc<Limiter>);

impl Default for JobWatchLimiter {
    fn default() -> Self {
        Self(Limiter::new(MAX_WATCHERS, Sharing::KeepHeadroom, 0))
    }
}

impl JobWatchLimiter {
    /// Takes a place.
    pub(super) fn try_acquire(&self, principal: &Principal) -> Result<Permit, Error> {
        let full = match self.0.try_acquire(principal.key(), MAX_WATCHERS_PER_PRINCIPAL) {
            Ok(place) => return Ok(place),
            Err(full) => full,
        };
        let text = format!(
            "{} watches {} jobs already, of at most {MAX_WATCHERS_PER_PRINCIPAL} of one caller and {MAX_WATCHERS} of all: end one of these streams, or retry after the time given",
            principal.name(),
            full.in_use
        );
        Err(Error::new(Reason::ResourceExhausted, text)
            .with_metadata("limit", MAX_WATCHERS_PER_PRINCIPAL.to_string())
            .retry_after(full.retry_after))
    }
}
