//! Delays between attempts while the server does not answer.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

const MIN_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(5);

/// A delay that doubles with each attempt.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: MIN_DELAY }
    }
}

impl Backoff {
    /// Waits for the next attempt. Returns false if `stop` is cancelled first.
    pub(super) async fn wait(&mut self, stop: &CancellationToken) -> bool {
        let delay = self.next;
        self.next = (delay * 2).min(MAX_DELAY);
        tokio::select! {
            biased;
            () = stop.cancelled() => false,
            () = tokio::time::sleep(delay) => true,
        }
    }
}
