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
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The phases, as those who must know see them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Drain {
    begun: CancellationToken,
    end: CancellationToken,
    kill: CancellationToken,
}

impl Drain {
    /// Takes no new calls any more.
    pub(crate) fn begin(&self) {
        self.begun.cancel();
    }

    /// Ends running commands by the ladder.
    pub(crate) fn end(&self) {
        self.end.cancel();
    }

    /// Kills running commands at once.
    pub(crate) fn kill(&self) {
        self.kill.cancel();
    }

    /// Whether new calls are refused.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    /// Refuses what is not begun yet, once the daemon is shutting down.
    pub(crate) fn refuse_new(&self) -> Result<(), Error> {
        match self.has_begun() {
            true => Err(Self::refusal()),
            false => Ok(()),
        }
    }

    /// What new calls are told then.
    pub(crate) fn refusal() -> Error {
        let text = "the daemon is shutting down and takes no new calls: retry elsewhere, or when it is back";
        Error::new(Reason::Draining, text).retry_after(RETRY_AFTER)
    }

    /// Cancelled when new calls are refused.
    pub(crate) fn begun_token(&self) -> CancellationToken {
        self.begun.clone()
    }

    /// Cancelled when running commands are to end.
    pub(crate) fn end_token(&self) -> CancellationToken {
        self.end.clone()
    }

    /// Cancelled when running commands are to be killed.
    pub(crate) fn kill_token(&self) -> CancellationToken {
        self.kill.clone()
    }
}
