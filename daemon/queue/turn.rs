//! A place that all who have a part in something can give back: the turn of a call.

use std::sync::{Arc, Mutex, PoisonError};

use super::place::Place;

/// A turn, for all who have a part in the call. It ends when one of them says so, or with the last.
#[derive(Debug, Clone)]
pub(crate) struct Turn(Arc<Mutex<Option<Place>>>);

impl Turn {
    /// The turn that a place among those that have one is.
    pub(crate) fn new(place: Place) -> Self {
        Self(Arc::new(Mutex::new(Some(place))))
    }

    /// Lets another call have its turn.
    pub(crate) fn end(&self) {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(place);
    }
}
