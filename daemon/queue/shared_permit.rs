//! A place that all who have a part in something can give back: the turn of a call.

use std::sync::{Arc, Mutex, PoisonError};

use super::limiter::Permit;

/// A turn, for all who have a part in the call. It ends when one of them says so, or with the last.
#[derive(Debug, Clone)]
pub(crate) struct SharedPermit(Arc<Mutex<Option<Permit>>>);

impl SharedPermit {
    /// The turn that a place among those that have one is.
    pub(crate) fn new(place: Permit) -> Self {
        Self(Arc::new(Mutex::new(Some(place))))
    }

    /// Lets another call have its turn.
    pub(crate) fn release(&self) {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(place);
    }
}
