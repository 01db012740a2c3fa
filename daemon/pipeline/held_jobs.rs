//! Queued jobs of an earlier start that must not begin yet: the fleet may have given them up while the
//! daemon was away.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// The jobs that are held, by their ids. Each token is cancelled when its job may begin.
#[derive(Debug, Default)]
pub(crate) struct HeldJobs(Mutex<HashMap<String, CancellationToken>>);

impl HeldJobs {
    /// Holds a job. Called before any job of an earlier start begins.
    #[cfg(feature = "fleet")]
    pub(crate) fn hold(&self, id: &str) {
        self.jobs().insert(id.to_owned(), CancellationToken::new());
    }

    /// Lets a job begin, if it has not ended.
    #[cfg(feature = "fleet")]
    pub(crate) fn release(&self, id: &str) {
        if let Some(held) = self.jobs().remove(id) {
            held.cancel();
        }
    }

    /// Returns the token of a job that is held.
    pub(super) fn find(&self, id: &str) -> Option<CancellationToken> {
        self.jobs().get(id).cloned()
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
