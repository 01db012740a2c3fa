//! Connections that are lost: which errors mean that, and how often they are made again.

use std::time::Duration;

use jig::client::{CallError, Code};
use tokio::time::{Instant, sleep};

/// How long a lost connection is tried to be made again.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two tries, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Tries to make a connection again.
#[derive(Debug)]
pub(super) struct Tries {
    began: Instant,
    pause: Duration,
}

/// Whether the connection was lost, and not something answered by the daemon.
pub(super) fn is_loss(error: &CallError) -> bool {
    // What the daemon says itself has a reason; what the connection says has none.
    error.reason.is_none()
        && matches!(
            error.code,
            Code::Unavailable | Code::DataLoss | Code::Unknown | Code::Cancelled | Code::Internal
        )
}

impl Tries {
    /// The first one is now.
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), pause: PAUSES.0 }
    }

    /// Whether they go on for so long already.
    pub(super) fn last(&self, time: Duration) -> bool {
        self.began.elapsed() >= time
    }

    /// When they have gone on for so long.
    pub(super) fn end(&self, time: Duration) -> Instant {
        self.began + time
    }

    /// Waits for the next one.
    pub(super) async fn pause(&mut self) {
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSES.1);
    }
}
