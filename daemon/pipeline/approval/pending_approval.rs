//! One call that waits: it ends once.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value};
use tokio::{sync::watch, time::sleep};

use super::{
    preview::ApprovalPreview,
    request::{Approval, ApprovalResolution, ResolveOutcome, decided_record},
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

/// Rest before the end of an approval that could not be written down is tried again: twice as long each time,
/// up to the longest.
const MIN_STORE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_STORE_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// A call that waits.
#[derive(Debug)]
pub(super) struct PendingApproval {
    pub(super) approval: Arc<Approval>,
    /// What rules look at.
    pub(super) policy_request: Arc<PolicyRequest>,
    /// What people are shown who ask for all.
    pub(super) preview: ApprovalPreview,
    pub(super) session: Arc<Session>,
    pub(super) common_record_fields: Map<String, Value>,
    /// How it ended. Held while an end is written down.
    resolution: tokio::sync::Mutex<Option<Arc<Approval>>>,
    /// The same, for the call.
    resolved: watch::Sender<Option<Arc<Approval>>>,
}

impl PendingApproval {
    /// One that has just been asked about.
    pub(super) fn new(
        approval: Arc<Approval>,
        call: Arc<PolicyRequest>,
        shown: ApprovalPreview,
        session: Arc<Session>,
        about: Map<String, Value>,
    ) -> Self {
        Self {
            approval,
            policy_request: call,
            preview: shown,
            session,
            common_record_fields: about,
            resolution: tokio::sync::Mutex::default(),
            resolved: watch::Sender::new(None),
        }
    }

    /// Waits for its end.
    pub(super) async fn resolved(&self) -> Arc<Approval> {
        let mut told = self.resolved.subscribe();
        loop {
            if let Some(approval) = &*told.borrow_and_update() {
                return Arc::clone(approval);
            }
            if told.changed().await.is_err() {
                // It cannot close: this holds the sender.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Ends it, unless it has ended. `tell` tells those who watch, before the call goes on. Not to be
    /// cancelled: what is on disk must be what is told.
    pub(super) async fn resolve(
        &self,
        resolution: ApprovalResolution,
        log: &ApprovalTable,
        book: &RuleStore,
        tell: impl FnOnce(Arc<Approval>),
    ) -> Result<ResolveOutcome, Error> {
        let mut end = self.resolution.lock().await;
        if let Some(before) = &*end {
            return Ok(ResolveOutcome::AlreadyResolved(Arc::clone(before)));
        }
        let id = self.approval.record.id.clone();
        let is_decision =
            matches!(resolution.state, ApprovalEndState::Allowed | ApprovalEndState::Denied);
        let kept = resolution.to_approval_end();
        let written = match resolution.rule {
            Some(rule) => {
                let with = |stored| log.record_end(id, kept.clone(), Some(stored));
                book.add_with(rule, with).await.map(Some)
            }
            None => {
                let written = log.record_end(id, kept.clone(), None).await;
                written.map(|()| None).map_err(|error| state_database_error(&error))
            }
        };
        let rule = match written {
            Ok(rule) => rule,
            // It waits on: who decides is told, and can try again.
            Err(error) if is_decision => return Err(error),
            Err(error) => {
                tracing::error!(%error, "the end of an approval could not be kept yet");
                let (log, id) = (log.clone(), self.approval.record.id.clone());
                task::spawn("end of an approval", store_end_later(log, id, kept.clone()));
                None
            }
        };
        let approval = Arc::new(Approval {
            record: ApprovalRecord { end: Some(kept), ..self.approval.record.clone() },
            suggested_pattern: None,
        });
        if let Err(error) = self
            .session
            .record_without_step(decided_record(&approval.record, &self.common_record_fields))
        {
            tracing::error!(%error, "the end of an approval could not be recorded");
        }
        *end = Some(Arc::clone(&approval));
        tell(Arc::clone(&approval));
        self.resolved.send_replace(Some(Arc::clone(&approval)));
        Ok(ResolveOutcome::Resolved(approval, rule))
    }
}

/// Writes an end down once that can be: until then the call would seem to wait, and nobody could decide.
async fn store_end_later(log: ApprovalTable, id: String, end: ApprovalEnd) {
    let mut rest = MIN_STORE_RETRY_INTERVAL;
    loop {
        sleep(rest).await;
        match log.record_end(id.clone(), end.clone(), None).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "the end of an approval could still not be kept"),
        }
        rest = (rest * 2).min(MAX_STORE_RETRY_INTERVAL);
    }
}
