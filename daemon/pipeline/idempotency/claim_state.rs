//! The state of a claim, and the policy for work during which the daemon died.

use bytes::Bytes;

/// The state of a claim, as its waiters see it.
#[derive(Debug, Clone)]
pub(super) enum ClaimState {
    InFlight,
    /// Nothing was done.
    Released,
    /// The work is done; holds the encoded reply.
    Completed(Bytes),
}

/// What a call does if an earlier daemon died during the same work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon::pipeline) enum OnCrash {
    /// Returns an error to the caller.
    Report,
    /// As [`Self::Report`] if the work had reached its checkpoint. Else nothing was done, and
    /// nothing was stored: the call does the work.
    ReportAfterCheckpoint,
    /// Continues the work, knowing how far it had come.
    Resume,
}
