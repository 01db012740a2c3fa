//! How far the work of a request id is, and what becomes of it when its daemon dies.

use bytes::Bytes;

/// How far it is.
#[derive(Debug, Clone)]
pub(super) enum ClaimState {
    InFlight,
    /// Nothing was done.
    Released,
    Completed(Bytes),
}

/// What becomes of work that the daemon died under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon::pipeline) enum OnCrash {
    /// Whoever asks for it is told.
    Report,
    /// It is gone on with: it knows how far it had come.
    Resume,
}
