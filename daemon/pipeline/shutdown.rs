//! Shutdown phases, in this order. A second signal kills at once, also while the daemon drains.
//!
//! ```text
//! serving ─▶ draining ────▶ terminating ──▶ killing
//!            new calls      running calls   running calls
//!            are rejected   get SIGTERM     are killed
//! ```

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::daemon::error::{Error, Reason};

/// Retry delay of calls that are rejected while the daemon drains.
const DRAINING_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The phases of the shutdown, shared by all parts of the daemon.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shutdown {
    draining: CancellationToken,
    terminating: CancellationToken,
    killing: CancellationToken,
}

impl Shutdown {
    /// Rejects new calls from now on.
    pub(crate) fn drain(&self) {
        self.draining.cancel();
    }

    /// Stops running commands: SIGTERM first, SIGKILL after the grace period.
    pub(crate) fn terminate(&self) {
        self.terminating.cancel();
    }

    /// Kills running commands at once.
    pub(crate) fn kill(&self) {
        self.killing.cancel();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Returns `DRAINING` if the daemon rejects new calls.
    pub(crate) fn check_accepting(&self) -> Result<(), Error> {
        if self.is_draining() { Err(Self::draining_error()) } else { Ok(()) }
    }

    pub(crate) fn draining_error() -> Error {
        let text = "the daemon is shutting down and takes no new calls: retry on another daemon, or when this one is back";
        Error::new(Reason::Draining, text).with_retry_after(DRAINING_RETRY_AFTER)
    }

    /// Cancelled when the daemon starts to reject new calls.
    pub(crate) fn draining_token(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Cancelled when running commands must stop.
    pub(crate) fn terminate_token(&self) -> CancellationToken {
        self.terminating.clone()
    }

    /// Cancelled when running commands are killed.
    pub(crate) fn kill_token(&self) -> CancellationToken {
        self.killing.clone()
    }
}
