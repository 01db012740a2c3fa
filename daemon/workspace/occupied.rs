//! The place of work among that with files, of which there is a bounded number at one time. Work that waits
//! for other work has none meanwhile: all that have one come to their end, whatever the others wait for.

use std::sync::{Arc, Mutex, PoisonError};

use crate::daemon::queue::{Entry, Name, Place, Queue, Turn};

/// A place, and whose.
#[derive(Debug)]
pub(crate) struct Occupied {
    queue: Arc<Queue>,
    name: Name,
    place: Mutex<Option<Place>>,
    /// The turn of its call, if that has one.
    turn: Option<Turn>,
}

impl Occupied {
    /// A `place` of `queue`, which `name` has.
    pub(crate) fn new(queue: Arc<Queue>, name: Name, place: Place, turn: Option<Turn>) -> Self {
        Self { queue, name, place: Mutex::new(Some(place)), turn }
    }

    /// Gives the place to others, before it is waited for them.
    pub(super) fn leave(&self) {
        if let Some(turn) = &self.turn {
            turn.end();
        }
        let left = self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(left);
    }

    /// Waits for a place again. Blocks.
    pub(super) fn come_back(&self) {
        let place = match self.queue.enter(&self.name, usize::MAX) {
            Ok(Entry::Place(place)) => Some(place),
            Ok(Entry::Wait(waiting)) => waiting.blocking_place(),
            Err(_) => None,
        };
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}
