//! A job that has not ended, for those who wait for it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::daemon::store::jobs::Job;

/// A job that has not ended.
#[derive(Debug)]
pub(crate) struct Live {
    seen: watch::Sender<Seen>,
    /// Told when it is to end.
    cancel: CancellationToken,
    /// Told whenever its command has written something.
    written: watch::Sender<()>,
}

/// A job as it is, and what came of it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// The job.
    pub(crate) job: Job,
    /// What came of it, encoded, once it has ended.
    pub(crate) result: Option<Bytes>,
}

impl Live {
    pub(super) fn new(job: Job) -> Arc<Self> {
        Arc::new(Self {
            seen: watch::Sender::new(Seen { job, result: None }),
            cancel: CancellationToken::new(),
            written: watch::Sender::new(()),
        })
    }

    /// As it is.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// As it is, and how it changes.
    pub(crate) fn watch(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    /// Told whenever its command has written something.
    pub(crate) fn written(&self) -> &watch::Sender<()> {
        &self.written
    }

    /// Cancelled when it is to end.
    pub(in crate::daemon::call) fn cancelled(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) -> Seen {
        let mut seen = self.seen.subscribe();
        // It cannot close: `self` holds the sender.
        drop(seen.wait_for(|seen| seen.job.state.is_final()).await);
        self.seen()
    }

    pub(super) fn id(&self) -> String {
        self.seen.borrow().job.id.clone()
    }

    pub(super) fn is_of(&self, workspace: &str) -> bool {
        self.seen.borrow().job.workspace == workspace
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Seen)) {
        self.seen.send_modify(change);
    }
}
