//! A place that somebody has, or that comes while he does other things.

use super::{
    byte_budget::ByteReservation,
    limiter::{PendingPermit, Permit},
};

/// A place, now or later.
#[derive(Debug)]
pub(crate) enum DeferredPermit {
    /// It is had.
    Ready(Permit),
    /// It is waited for, by one of whose request so much is held.
    Pending(PendingPermit, ByteReservation),
}

impl DeferredPermit {
    /// Waits for the place. May be cancelled: then it does not come any more.
    pub(crate) async fn wait(self) -> Permit {
        match self {
            Self::Ready(place) => place,
            Self::Pending(mut waiting, _held) => waiting.wait().await,
        }
    }
}
