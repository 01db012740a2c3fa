//! The permit of blocking work on files, whose concurrency is limited. Work that waits for other
//! work releases its permit, so that all work with a permit can finish.

use std::sync::{Arc, Mutex, PoisonError};

use crate::daemon::queue::{Acquire, Limiter, Permit, PrincipalName, SharedPermit};

/// A permit that can be released and acquired again while the work continues.
#[derive(Debug)]
pub(crate) struct BlockingPermit {
    limiter: Arc<Limiter>,
    principal: PrincipalName,
    permit: Mutex<Option<Permit>>,
    /// The shared permit of the call, if it has one.
    shared_permit: Option<SharedPermit>,
}

impl BlockingPermit {
    /// Wraps a permit that `limiter` has granted to `principal`.
    pub(crate) fn new(
        limiter: Arc<Limiter>,
        principal: PrincipalName,
        permit: Permit,
        shared_permit: Option<SharedPermit>,
    ) -> Self {
        Self { limiter, principal, permit: Mutex::new(Some(permit)), shared_permit }
    }

    /// Releases the permit, before the work waits for other work.
    pub(super) fn release(&self) {
        if let Some(shared_permit) = &self.shared_permit {
            shared_permit.release();
        }
        let permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(permit);
    }

    /// Acquires a permit again. Blocks until one is free.
    pub(super) fn reacquire(&self) {
        let permit = match self.limiter.acquire(&self.principal, usize::MAX) {
            Ok(Acquire::Granted(permit)) => Some(permit),
            Ok(Acquire::Queued(pending)) => pending.blocking_wait(),
            Err(_) => None,
        };
        *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = permit;
    }
}
