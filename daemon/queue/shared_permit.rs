//! A permit that any of several holders can release.

use std::sync::{Arc, Mutex, PoisonError};

use super::limiter::Permit;

/// A permit that ends when one holder releases it, or with the last holder.
#[derive(Debug, Clone)]
pub(crate) struct SharedPermit(Arc<Mutex<Option<Permit>>>);

impl SharedPermit {
    pub(crate) fn new(permit: Permit) -> Self {
        Self(Arc::new(Mutex::new(Some(permit))))
    }

    /// Releases the permit for all holders.
    pub(crate) fn release(&self) {
        let permit = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(permit);
    }
}
