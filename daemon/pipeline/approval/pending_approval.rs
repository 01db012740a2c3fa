//! One pending approval. It ends once.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};

use super::{
    preview::ApprovalPreview,
    request::{Approval, ApprovalRecorder, ApprovalResolution, ResolveOutcome},
};
use crate::daemon::{
    error::Error,
    pipeline::{
        policy::{request::PolicyRequest, store::RuleStore},
        state_error::state_database_error,
    },
    store::{
        approvals::{ApprovalEnd, ApprovalEndState, ApprovalRecord, ApprovalTable},
        session::Session,
    },
    task,
};

/// Delay before the end of an approval is stored again after a failure. Doubles each time.
const MIN_STORE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_STORE_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// A call that waits for a decision.
#[derive(Debug)]
pub(super) struct PendingApproval {
    pub(super) approval: Arc<Approval>,
    /// The part of the call that rules match.
    pub(super) policy_request: Arc<PolicyRequest>,
    /// The full parameters, for clients that get one approval.
    pub(super) preview: ApprovalPreview,
    pub(super) session: Arc<Session>,
    recorder: ApprovalRecorder,
    /// How the wait ended. Locked while an end is stored.
    resolution: tokio::sync::Mutex<Option<Arc<Approval>>>,
    /// The same, observed by the waiting call.
    resolved: watch::Sender<Option<Arc<Approval>>>,
}

impl PendingApproval {
    pub(super) fn new(
        approval: Arc<Approval>,
        policy_request: Arc<PolicyRequest>,
        preview: ApprovalPreview,
        session: Arc<Session>,
        recorder: ApprovalRecorder,
    ) -> Self {
        Self {
            approval,
            policy_request,
            preview,
            session,
            recorder,
            resolution: tokio::sync::Mutex::default(),
            resolved: watch::Sender::new(None),
        }
    }

    /// Waits for the end.
    pub(super) async fn resolved(&self) -> Arc<Approval> {
        let mut resolved = self.resolved.subscribe();
        loop {
            if let Some(approval) = &*resolved.borrow_and_update() {
                return Arc::clone(approval);
            }
            if resolved.changed().await.is_err() {
                // The channel cannot close: this approval holds the sender.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Ends the wait, unless it has ended. `notify` informs the watchers before the call continues.
    ///
    /// Not cancel safe: the database and the watchers must agree.
    pub(super) async fn resolve(
        &self,
        resolution: ApprovalResolution,
        table: &ApprovalTable,
        rules: &RuleStore,
        notify: impl FnOnce(Arc<Approval>),
    ) -> Result<ResolveOutcome, Error> {
        let mut end = self.resolution.lock().await;
        if let Some(before) = &*end {
            return Ok(ResolveOutcome::AlreadyResolved(Arc::clone(before)));
        }

        let id = self.approval.record.id.clone();
        let is_decision =
            matches!(resolution.state, ApprovalEndState::Allowed | ApprovalEndState::Denied);
        let stored_end = resolution.to_approval_end();
        let stored = match resolution.rule {
            Some(rule) => {
                let store = |rule| table.record_end(id, stored_end.clone(), Some(rule));
                rules.add_with(rule, store).await.map(Some)
            }
            None => {
                let stored = table.record_end(id, stored_end.clone(), None).await;
                stored.map(|()| None).map_err(|error| state_database_error(&error))
            }
        };
        let rule = match stored {
            Ok(rule) => rule,
            // The wait continues. The approver gets the error, and can try again.
            Err(error) if is_decision => return Err(error),
            Err(error) => {
                tracing::error!(%error, "cannot store the end of an approval yet");
                let (table, id) = (table.clone(), self.approval.record.id.clone());
                task::spawn("end of an approval", store_end_later(table, id, stored_end.clone()));
                None
            }
        };

        let approval = Arc::new(Approval {
            record: ApprovalRecord { end: Some(stored_end), ..self.approval.record.clone() },
            suggested_pattern: None,
            workspace: self.approval.workspace.clone(),
        });
        if let Err(error) = self.recorder.record_decided(&self.session, &approval.record) {
            tracing::error!(%error, "cannot record the end of an approval");
        }

        *end = Some(Arc::clone(&approval));
        notify(Arc::clone(&approval));
        self.resolved.send_replace(Some(Arc::clone(&approval)));

        Ok(ResolveOutcome::Resolved(approval, rule))
    }
}

/// Retries to store an end. Until then the call looks pending to others, but nothing can decide it.
async fn store_end_later(table: ApprovalTable, id: String, end: ApprovalEnd) {
    let mut delay = MIN_STORE_RETRY_INTERVAL;
    loop {
        sleep(delay).await;
        match table.record_end(id.clone(), end.clone(), None).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "still cannot store the end of an approval"),
        }
        delay = (delay * 2).min(MAX_STORE_RETRY_INTERVAL);
    }
}
