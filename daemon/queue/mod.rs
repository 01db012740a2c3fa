//! Places that callers wait for: a bounded number, given in turn to those who call, and in order to the
//! calls of each ([`mod@line`]). Who waits holds no thread, and leaves when the future that waits is dropped.

mod backlog;
mod line;
mod pace;
mod place;
mod reserve;
mod seat;
mod turn;

pub(crate) use self::{
    backlog::{ByteBudget, ByteBudgetExceeded, ByteReservation},
    line::{PrincipalKey, Sharing},
    place::{Acquire, Limiter, Permit, Saturated},
    reserve::Headroom,
    seat::DeferredPermit,
    turn::SharedPermit,
};
