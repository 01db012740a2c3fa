//! A place that somebody has, or that comes while he does other things.

use super::{
    backlog::Waits,
    place::{Place, Waiting},
};

/// A place, now or later.
#[derive(Debug)]
pub(crate) enum Seat {
    /// It is had.
    Taken(Place),
    /// It is waited for, by one of whose request so much is held.
    Coming(Waiting, Waits),
}

impl Seat {
    /// Waits for the place. May be cancelled: then it does not come any more.
    pub(crate) async fn place(self) -> Place {
        match self {
            Self::Taken(place) => place,
            Self::Coming(mut waiting, _held) => waiting.place().await,
        }
    }
}
