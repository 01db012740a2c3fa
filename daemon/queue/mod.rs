//! Fair limits: a bounded number of permits, granted in turn to the callers that wait, and in order
//! to the waiters of each ([`fair_queue`]). A waiter holds no thread, and leaves the queue when its
//! future is dropped.

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
    fair_queue::{PrincipalName, Sharing},
    headroom::Headroom,
    limiter::{Acquire, Limiter, Permit, Saturated},
    shared_permit::SharedPermit,
};
