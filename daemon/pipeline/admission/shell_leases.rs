//! Leases of named shells: calls in one shell run one after the other, in the order of their arrival.
//!
//! A call waits for its lease before it waits for permits, so that a waiting call holds none. The
//! holder of a lease waits for permits that are held by running calls only.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::daemon::{
    queue::{Limiter, PrincipalName, Sharing},
    store::session::SessionId,
};

/// A shell of a caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ShellKey {
    pub(crate) workspace: String,
    pub(crate) session: SessionId,
    pub(crate) owner: PrincipalName,
    pub(crate) name: String,
}

/// The shells that calls hold or wait for.
#[derive(Debug, Default)]
pub(super) struct ShellLeases {
    limiters: Mutex<HashMap<ShellKey, Weak<Limiter>>>,
    pub(super) awaiting: AtomicUsize,
}

impl ShellLeases {
    /// Number of calls that wait for a shell.
    pub(super) fn queued(&self) -> usize {
        self.awaiting.load(Ordering::Relaxed)
    }

    /// Returns the limiter of a shell, which has one permit.
    pub(super) fn limiter(&self, key: ShellKey, max_queued: usize) -> Arc<Limiter> {
        let mut limiters = self.lock();
        if let Some(limiter) = limiters.get(&key).and_then(Weak::upgrade) {
            return limiter;
        }

        limiters.retain(|_, limiter| limiter.strong_count() > 0);
        let limiter = Limiter::new(1, Sharing::Unlimited, max_queued);
        limiters.insert(key, Arc::downgrade(&limiter));
        limiter
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ShellKey, Weak<Limiter>>> {
        self.limiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
