//! Connections that are lost: which errors mean that, and how often they are made again.

use std::time::Duration;

use jig::client::{CallError, Code};
use tokio::time::{Instant, sleep};

/// How long a lost connection is tried to be made again.
pub(super) const RECONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two tries, at first and at most.
const RECONNECT_BACKOFF: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(2));

/// Tries to make a connection again.
#[derive(Debug)]
pub(super) struct ReconnectAttempts {
    began: Instant,
    backoff: Duration,
}

/// Whether the connection was lost, and not something answered by the daemon.
pub(super) fn is_connection_loss(error: &CallError) -> bool {
    // What the daemon says itself has a reason; what the connection says has none.
    error.reason.is_none()
        && matches!(
            error.code,
            Code::Unavailable | Code::DataLoss | Code::Unknown | Code::Cancelled | Code::Internal
        )
}

impl ReconnectAttempts {
    /// The first one is now.
    pub(super) fn start() -> Self {
        Self { began: Instant::now(), backoff: RECONNECT_BACKOFF.0 }
    }

    /// Whether they go on for so long already.
    pub(super) fn have_lasted(&self, time: Duration) -> bool {
        self.began.elapsed() >= time
    }

    /// When they have gone on for so long.
    pub(super) fn deadline(&self, time: Duration) -> Instant {
        self.began + time
    }

    /// Waits for the next one.
    pub(super) async fn wait_backoff(&mut self) {
        sleep(self.backoff).await;
        self.backoff = (self.backoff * 2).min(RECONNECT_BACKOFF.1);
    }
}
