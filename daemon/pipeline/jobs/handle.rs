//! A job that has not ended, for those who wait for it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::daemon::store::jobs::Job;

/// A job that has not ended.
#[derive(Debug)]
pub(crate) struct JobHandle {
    snapshot: watch::Sender<JobSnapshot>,
    /// Told when it is to end.
    cancel: CancellationToken,
    /// Told whenever its command has written something.
    output_notifier: watch::Sender<()>,
}

/// A job as it is, and what came of it.
#[derive(Debug, Clone)]
pub(crate) struct JobSnapshot {
    /// The job.
    pub(crate) job: Job,
    /// What came of it, encoded, once it has ended.
    pub(crate) result: Option<Bytes>,
}

impl JobHandle {
    pub(super) fn new(job: Job) -> Arc<Self> {
        Arc::new(Self {
            snapshot: watch::Sender::new(JobSnapshot { job, result: None }),
            cancel: CancellationToken::new(),
            output_notifier: watch::Sender::new(()),
        })
    }

    /// As it is.
    pub(crate) fn snapshot(&self) -> JobSnapshot {
        self.snapshot.borrow().clone()
    }

    /// As it is, and how it changes.
    pub(crate) fn watch(&self) -> watch::Receiver<JobSnapshot> {
        self.snapshot.subscribe()
    }

    /// Told whenever its command has written something.
    pub(crate) fn output_notifier(&self) -> &watch::Sender<()> {
        &self.output_notifier
    }

    /// Cancelled when it is to end.
    pub(in crate::daemon::pipeline) fn cancel_token(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Waits until it has ended.
    pub(crate) async fn wait_for_end(&self) -> JobSnapshot {
        let mut seen = self.snapshot.subscribe();
        // It cannot close: `self` holds the sender.
        drop(seen.wait_for(|seen| seen.job.state.is_final()).await);
        self.snapshot()
    }

    pub(super) fn id(&self) -> String {
        self.snapshot.borrow().job.id.clone()
    }

    pub(super) fn is_in_workspace(&self, workspace: &str) -> bool {
        self.snapshot.borrow().job.workspace == workspace
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut JobSnapshot)) {
        self.snapshot.send_modify(change);
    }
}
