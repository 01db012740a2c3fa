//! Shutting down, in phases that are entered one after the other and never left:
//!
//! ```text
//! serving ─▶ draining ─▶ ending ─▶ killing
//!            no new      running   all gone
//!            calls       ones get  at once
//!                        SIGTERM
//! ```

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::daemon::error::{Error, Reason};

/// How long a client is told to wait for the daemon to be back.
const DRAINING_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The phases, as those who must know see them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shutdown {
    draining: CancellationToken,
    terminating: CancellationToken,
    killing: CancellationToken,
}

impl Shutdown {
    /// Takes no new calls any more.
    pub(crate) fn drain(&self) {
        self.draining.cancel();
    }

    /// Ends running commands by the ladder.
    pub(crate) fn terminate(&self) {
        self.terminating.cancel();
    }

    /// Kills running commands at once.
    pub(crate) fn kill(&self) {
        self.killing.cancel();
    }

    /// Whether new calls are refused.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Refuses what is not begun yet, once the daemon is shutting down.
    pub(crate) fn check_accepting(&self) -> Result<(), Error> {
        match self.is_draining() {
            true => Err(Self::draining_error()),
            false => Ok(()),
        }
    }

    /// What new calls are told then.
    pub(crate) fn draining_error() -> Error {
        let text = "the daemon is shutting down and takes no new calls: retry elsewhere, or when it is back";
        Error::new(Reason::Draining, text).retry_after(DRAINING_RETRY_AFTER)
    }

    /// Cancelled when new calls are refused.
    pub(crate) fn draining_token(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Cancelled when running commands are to end.
    pub(crate) fn terminate_token(&self) -> CancellationToken {
        self.terminating.clone()
    }

    /// Cancelled when running commands are to be killed.
    pub(crate) fn kill_token(&self) -> CancellationToken {
        self.killing.clone()
    }
}
