//! Repeated attempts, with delays, while the servers do not answer.

use std::{future::Future, time::Duration};

use tokio_util::sync::CancellationToken;

use super::work_source::SourceUnavailable;

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

/// Repeats an attempt until the servers have answered. Returns `None` if `stop` is cancelled first.
/// `what` is in the logs: "cannot `what` yet".
pub(super) async fn retry<T, F: Future<Output = Result<T, SourceUnavailable>>>(
    stop: &CancellationToken,
    job: &str,
    what: &str,
    mut attempt: impl FnMut() -> F,
) -> Option<T> {
    let mut backoff = Backoff::default();
    loop {
        match attempt().await {
            Ok(done) => return Some(done),
            Err(error) => tracing::warn!(%error, job, "cannot {what} yet"),
        }
        if !backoff.wait(stop).await {
            return None;
        }
    }
}
