//! A permit that is granted now or later, while its holder does other things.

use super::{
    byte_budget::ByteReservation,
    limiter::{PendingPermit, Permit},
};

/// A permit, now or later.
#[derive(Debug)]
pub(crate) enum DeferredPermit {
    Ready(Permit),
    /// Still queued, with the bytes reserved for its request.
    Pending(PendingPermit, ByteReservation),
}

impl DeferredPermit {
    /// Waits for the permit. Dropping the future leaves the queue.
    pub(crate) async fn wait(self) -> Permit {
        match self {
            Self::Ready(permit) => permit,
            Self::Pending(mut pending, _reservation) => pending.wait().await,
        }
    }
}
