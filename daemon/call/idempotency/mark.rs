//! Where it is said how far the work of a request id has come, by whoever does it.

use crate::daemon::{
    call::state_error::of_database,
    error::Error,
    store::requests::{Key, RequestLog},
};

/// The place of one request id.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    log: RequestLog,
    key: Key,
}

/// What a daemon that died has left of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon::call) enum Left {
    /// It may be done in part: it was not said that it would be done.
    Unsaid,
    /// It may be done: see [`Mark::begin`].
    Begun,
}

impl Mark {
    /// That of `key`, which is claimed.
    pub(super) fn new(log: RequestLog, key: Key) -> Self {
        Self { log, key }
    }

    /// Says that from here on the work may be done, as this step of its session.
    pub(crate) async fn begin(&self, step: u64) -> Result<(), Error> {
        let begun = self.log.begin(self.key.clone(), step).await;
        begun.map_err(|error| of_database(&error))
    }
}
