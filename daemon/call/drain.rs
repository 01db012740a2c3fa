//! Shutting down, in phases that are entered one after the other and never left:
//!
//! ```text
//! serving ─▶ draining ─▶ ending ─▶ killing
//!            no new      running   all gone
//!            calls       ones get  at once
//!                        SIGTERM
//! ```

use tokio_util::sync::CancellationToken;

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
