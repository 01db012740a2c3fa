//! The process that a session follows, published once it has started.

use std::future::pending;

use jig::client::Client;
use tokio::sync::watch;

/// A process that has started.
#[derive(Debug, Clone)]
pub(super) struct FollowedProcess {
    /// Client for calls about the process.
    pub(super) client: Client,
    pub(super) process_id: String,
    /// False while a lost connection is being restored.
    pub(super) is_connected: bool,
}

/// Receives the process once it has started.
#[derive(Debug, Clone)]
pub(super) struct FollowedProcessWatch(pub(super) watch::Receiver<Option<FollowedProcess>>);

impl FollowedProcessWatch {
    /// Returns the process, if it has started.
    pub(super) fn current(&self) -> Option<FollowedProcess> {
        self.0.borrow().clone()
    }

    /// Waits until the process has started.
    pub(super) async fn started(&mut self) -> FollowedProcess {
        self.wait_until(|_| true).await
    }

    /// Waits until the process has started and the connection is not lost.
    pub(super) async fn connected(&mut self) -> FollowedProcess {
        self.wait_until(|process| process.is_connected).await
    }

    async fn wait_until(&mut self, holds: impl Fn(&FollowedProcess) -> bool) -> FollowedProcess {
        let matching = self.0.wait_for(|process| process.as_ref().is_some_and(&holds));
        match matching.await.ok().and_then(|process| process.clone()) {
            Some(process) => process,
            // The sender has gone, so the process will never start.
            None => pending().await,
        }
    }
}
