//! Places that callers wait for: a bounded number, given in turn to those who call, and in order to the
//! calls of each ([`mod@line`]). Who waits holds no thread, and leaves when the future that waits is dropped.

mod byte_budget;
mod deferred_permit;
mod fair_queue;
mod headroom;
mod limiter;
mod retry_estimate;
mod shared_permit;

pub(crate) use self::{
    byte_budget::{ByteBudget, ByteBudgetExceeded, ByteReservation},
    deferred_permit::DeferredPermit,
    fair_queue::{PrincipalKey, Sharing},
    headroom::Headroom,
    limiter::{Acquire, Limiter, Permit, Saturated},
    shared_permit::SharedPermit,
};
