//! Calls that wait for approval by a person.
//!
//! ```text
//! requested ──▶ PENDING ──▶ ALLOWED     an approver or a new rule allowed it: the call continues
//!                  ├──────▶ DENIED      an approver denied it
//!                  ├──────▶ EXPIRED     the call's deadline or the longest wait has passed
//!                  ├──────▶ WITHDRAWN   the client has disconnected, the daemon drains, or the
//!                  │                    workspace is deleted
//!                  └──────▶ LOST        the daemon died; the next daemon stores this at its start
//! ```
//!
//! The first end wins. The daemon writes it to the database, records it in the session, sends it to
//! all watchers, and then to the call. A pending call holds a task, but no thread and no permit of
//! admission control.

mod lost;
pub(crate) mod pending;
mod pending_approval;
pub(crate) mod preview;
pub(super) mod quota;
pub(crate) mod request;
