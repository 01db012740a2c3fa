//! Records in the database how far the work of a request id has come.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::daemon::{
    error::Error,
    pipeline::state_error::state_database_error,
    store::requests::{RequestIdentity, RequestKey, RequestTable},
};

/// Records the progress of one claimed request id.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoint {
    table: RequestTable,
    key: RequestKey,
    request: RequestIdentity,
    /// Whether the database has the claim.
    is_stored: Arc<AtomicBool>,
}

/// How far a daemon had come with the work of a request id when it died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon::pipeline) enum CrashProgress {
    /// The work may be done in part. The daemon had not recorded that it would complete it.
    BeforeCheckpoint,
    /// The work may be complete: see [`Checkpoint::record_step`].
    AfterCheckpoint,
}

impl Checkpoint {
    /// Creates the checkpoint of `key`, which must be claimed.
    pub(super) fn new(
        table: RequestTable,
        key: RequestKey,
        request: RequestIdentity,
        is_stored: Arc<AtomicBool>,
    ) -> Self {
        Self { table, key, request, is_stored }
    }

    /// Records that from here on the work may be complete, as this step of its session.
    pub(crate) async fn record_step(&self, step: u64) -> Result<(), Error> {
        let key = self.key.clone();
        let recorded = if self.is_stored.load(Ordering::Acquire) {
            self.table.record_step(key, step).await
        } else {
            self.table.claim_at_step(key, self.request.clone(), step).await
        };
        recorded.map_err(|error| state_database_error(&error))?;
        self.is_stored.store(true, Ordering::Release);
        Ok(())
    }
}
