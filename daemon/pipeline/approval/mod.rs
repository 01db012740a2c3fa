//! Calls that wait until somebody has decided about them.
//!
//! ```text
//! asked ──▶ PENDING ──▶ ALLOWED     somebody has allowed it: the call goes on
//!              ├──────▶ DENIED      somebody has denied it
//!              ├──────▶ EXPIRED     its deadline or the longest wait has passed
//!              ├──────▶ WITHDRAWN   its caller has gone, or the daemon drains
//!              └──────▶ LOST        the daemon died; told by the next one when it starts
//! ```
//!
//! Whichever end comes first is the one: it is written to the database, recorded in the session, told to all
//! who watch, and then to the call. A task waits for each call, and nothing else: no thread, and no place
//! among the calls that go on.

pub(crate) mod pending;
mod pending_approval;
pub(crate) mod preview;
pub(super) mod quota;
pub(crate) mod request;
