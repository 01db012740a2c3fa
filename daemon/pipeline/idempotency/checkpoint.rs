//! Where it is said how far the work of a request id has come, by whoever does it.

use crate::daemon::{
    error::Error,
    pipeline::state_error::state_database_error,
    store::requests::{RequestKey, RequestTable},
};

/// The place of one request id.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoint {
    log: RequestTable,
    key: RequestKey,
}

/// What a daemon that died has left of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon::pipeline) enum CrashProgress {
    /// It may be done in part: it was not said that it would be done.
    BeforeCheckpoint,
    /// It may be done: see [`Mark::begin`].
    AfterCheckpoint,
}

impl Checkpoint {
    /// That of `key`, which is claimed.
    pub(super) fn new(log: RequestTable, key: RequestKey) -> Self {
        Self { log, key }
    }

    /// Says that from here on the work may be done, as this step of its session.
    pub(crate) async fn record_step(&self, step: u64) -> Result<(), Error> {
        let begun = self.log.record_step(self.key.clone(), step).await;
        begun.map_err(|error| state_database_error(&error))
    }
}
