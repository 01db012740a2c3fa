//! The jobs that this daemon has claimed, so that a second delivery of one is ignored.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

#[derive(Debug, Default)]
pub(super) struct InFlightClaims(Mutex<HashSet<String>>);

/// A claim in progress. Another of the same job is possible when it is dropped.
#[derive(Debug)]
pub(super) struct InFlightClaim {
    claims: Arc<InFlightClaims>,
    id: String,
}

impl InFlightClaims {
    /// Begins to claim a job, unless this daemon has it already.
    pub(super) fn begin(self: &Arc<Self>, id: &str) -> Option<InFlightClaim> {
        let is_new = self.ids().insert(id.to_owned());
        is_new.then(|| InFlightClaim { claims: Arc::clone(self), id: id.to_owned() })
    }

    /// The ids of all claims in progress.
    pub(super) fn all(&self) -> Vec<String> {
        self.ids().iter().cloned().collect()
    }

    fn ids(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlightClaim {
    fn drop(&mut self) {
        self.claims.ids().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_claimed_once_at_a_time() {
        let claims = Arc::<InFlightClaims>::default();
        let first = claims.begin("a").unwrap();
        assert!(claims.begin("a").is_none());
        assert!(claims.begin("b").is_some());
        drop(first);
        assert!(claims.begin("a").is_some());
    }
}
