//! A job that has not ended, as its watchers see it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::daemon::store::jobs::{Job, JobState};

#[derive(Debug)]
pub(crate) struct JobHandle {
    snapshot: watch::Sender<JobSnapshot>,
    /// Cancelled when the job must end.
    cancel: CancellationToken,
    /// Notified when the job's command has written output.
    output_notifier: watch::Sender<()>,
}

/// The state of a job, and its result.
#[derive(Debug, Clone)]
pub(crate) struct JobSnapshot {
    pub(crate) job: Job,
    /// The encoded result, once the job has ended.
    pub(crate) result: Option<Bytes>,
    /// The approval that the job waits for, or has waited for.
    pub(crate) approval_id: Option<String>,
}

impl JobSnapshot {
    /// The approval that the job waits for.
    pub(crate) fn pending_approval(&self) -> Option<&str> {
        self.approval_id.as_deref().filter(|_| self.job.state == JobState::Queued)
    }
}

impl JobHandle {
    pub(super) fn new(job: Job) -> Arc<Self> {
        Arc::new(Self {
            snapshot: watch::Sender::new(JobSnapshot { job, result: None, approval_id: None }),
            cancel: CancellationToken::new(),
            output_notifier: watch::Sender::new(()),
        })
    }

    pub(crate) fn snapshot(&self) -> JobSnapshot {
        self.snapshot.borrow().clone()
    }

    pub(super) fn state(&self) -> JobState {
        self.snapshot.borrow().job.state
    }

    /// Subscribes to changes of the job.
    pub(crate) fn watch(&self) -> watch::Receiver<JobSnapshot> {
        self.snapshot.subscribe()
    }

    /// Notified when the job's command has written output.
    pub(crate) fn output_notifier(&self) -> &watch::Sender<()> {
        &self.output_notifier
    }

    /// Cancelled when the job must end.
    pub(in crate::daemon::pipeline) fn cancel_token(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Whether the job was cancelled, but not by the shutdown of the daemon.
    #[cfg_attr(not(feature = "fleet"), expect(dead_code, reason = "only the fleet asks"))]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits for the end of the job.
    pub(crate) async fn wait_for_end(&self) -> JobSnapshot {
        let mut snapshots = self.snapshot.subscribe();
        // The channel cannot close: `self` holds the sender.
        drop(snapshots.wait_for(|snapshot| snapshot.job.state.is_final()).await);
        self.snapshot()
    }

    pub(super) fn id(&self) -> String {
        self.snapshot.borrow().job.id.clone()
    }

    pub(super) fn is_in_workspace(&self, workspace: &str) -> bool {
        self.snapshot.borrow().job.workspace == workspace
    }

    pub(in crate::daemon::pipeline) fn set_approval(&self, approval_id: Option<String>) {
        self.update(|snapshot| snapshot.approval_id = approval_id);
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut JobSnapshot)) {
        self.snapshot.send_modify(change);
    }
}
