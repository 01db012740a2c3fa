//! Detects lost connections, and schedules attempts to reconnect.

use std::time::Duration;

use jig::client::{CallError, Code};
use tokio::time::{Instant, sleep};

/// Maximum time to try to reconnect.
pub(super) const RECONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const INITIAL_RECONNECT_DELAY: Duration = Duration::from_millis(100);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(2);

/// Schedule of attempts to reconnect.
#[derive(Debug)]
pub(super) struct ReconnectAttempts {
    started: Instant,
    backoff: Duration,
}

/// Returns whether an error means that the connection was lost.
pub(super) fn is_connection_loss(error: &CallError) -> bool {
    // Errors from the daemon itself have a reason; errors of the connection have none.
    error.reason.is_none()
        && matches!(
            error.code,
            Code::Unavailable | Code::DataLoss | Code::Unknown | Code::Cancelled | Code::Internal
        )
}

impl ReconnectAttempts {
    /// Starts a schedule now.
    pub(super) fn start() -> Self {
        Self { started: Instant::now(), backoff: INITIAL_RECONNECT_DELAY }
    }

    /// Returns whether attempts have continued for at least `time`.
    pub(super) fn have_lasted(&self, time: Duration) -> bool {
        self.started.elapsed() >= time
    }

    /// Returns the time at which attempts have continued for `time`.
    pub(super) fn deadline(&self, time: Duration) -> Instant {
        self.started + time
    }

    /// Waits before the next attempt.
    pub(super) async fn wait_backoff(&mut self) {
        sleep(self.backoff).await;
        self.backoff = (self.backoff * 2).min(MAX_RECONNECT_DELAY);
    }
}
