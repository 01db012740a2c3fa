//! The process that is followed, once it is known: what goes on beside reading it waits for that.

use std::future::pending;

use jig::client::Client;
use tokio::sync::watch;

/// A process that was started.
#[derive(Debug, Clone)]
pub(super) struct FollowedProcess {
    /// Whom to call about it.
    pub(super) client: Client,
    /// Its id.
    pub(super) process_id: String,
    /// Whether it is read, and not a lost connection being made again.
    pub(super) is_connected: bool,
}

/// Tells of the process as soon as it is known.
#[derive(Debug, Clone)]
pub(super) struct FollowedProcessWatch(pub(super) watch::Receiver<Option<FollowedProcess>>);

impl FollowedProcessWatch {
    /// The process, if it is known.
    pub(super) fn current(&self) -> Option<FollowedProcess> {
        self.0.borrow().clone()
    }

    /// Waits until it is known.
    pub(super) async fn started(&mut self) -> FollowedProcess {
        self.wait_until(|_| true).await
    }

    /// Waits until it is read, and no lost connection being made again.
    pub(super) async fn connected(&mut self) -> FollowedProcess {
        self.wait_until(|running| running.is_connected).await
    }

    async fn wait_until(&mut self, holds: impl Fn(&FollowedProcess) -> bool) -> FollowedProcess {
        let found = self.0.wait_for(|known| known.as_ref().is_some_and(&holds));
        match found.await.ok().and_then(|known| known.clone()) {
            Some(running) => running,
            // Nobody will tell any more.
            None => pending().await,
        }
    }
}
