//! The place of work among that with files, of which there is a bounded number at one time. Work that waits
//! for other work has none meanwhile: all that have one come to their end, whatever the others wait for.

use std::sync::{Arc, Mutex, PoisonError};

use crate::daemon::queue::{Acquire, Limiter, Permit, PrincipalKey, SharedPermit};

/// A place, and whose.
#[derive(Debug)]
pub(crate) struct BlockingPermit {
    queue: Arc<Limiter>,
    principal: PrincipalKey,
    permit: Mutex<Option<Permit>>,
    /// The turn of its call, if that has one.
    shared_permit: Option<SharedPermit>,
}

impl BlockingPermit {
    /// A `place` of `queue`, which `name` has.
    pub(crate) fn new(
        queue: Arc<Limiter>,
        name: PrincipalKey,
        place: Permit,
        turn: Option<SharedPermit>,
    ) -> Self {
        Self { queue, principal: name, permit: Mutex::new(Some(place)), shared_permit: turn }
    }

    /// Gives the place to others, before it is waited for them.
    pub(super) fn release(&self) {
        if let Some(turn) = &self.shared_permit {
            turn.release();
        }
        let left = self.permit.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(left);
    }

    /// Waits for a place again. Blocks.
    pub(super) fn reacquire(&self) {
        let place = match self.queue.acquire(&self.principal, usize::MAX) {
            Ok(Acquire::Granted(place)) => Some(place),
            Ok(Acquire::Queued(waiting)) => waiting.blocking_wait(),
            Err(_) => None,
        };
        *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}
