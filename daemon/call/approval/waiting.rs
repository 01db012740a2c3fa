//! One call that waits: it ends once.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::watch;

use super::asked::{Approval, Ended, Ending, decided};
use crate::daemon::{
    call::{policy::book::RuleBook, state_error::of_database},
    error::Error,
    store::{
        approvals::{ApprovalLog, ApprovalRecord, EndState},
        session::Session,
    },
};

/// A call that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) approval: Arc<Approval>,
    /// The parameters.
    pub(super) text: Option<String>,
    pub(super) session: Arc<Session>,
    pub(super) about: Map<String, Value>,
    /// How it ended. Held while an end is written down.
    end: tokio::sync::Mutex<Option<Arc<Approval>>>,
    /// The same, for the call.
    told: watch::Sender<Option<Arc<Approval>>>,
}

impl Waiting {
    /// One that has just been asked about.
    pub(super) fn new(
        approval: Arc<Approval>,
        text: Option<String>,
        session: Arc<Session>,
        about: Map<String, Value>,
    ) -> Self {
        Self {
            approval,
            text,
            session,
            about,
            end: tokio::sync::Mutex::default(),
            told: watch::Sender::new(None),
        }
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) -> Arc<Approval> {
        let mut told = self.told.subscribe();
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
    pub(super) async fn finish(
        &self,
        ending: Ending,
        log: &ApprovalLog,
        book: &RuleBook,
        tell: impl FnOnce(Arc<Approval>),
    ) -> Result<Ended, Error> {
        let mut end = self.end.lock().await;
        if let Some(before) = &*end {
            return Ok(Ended::Before(Arc::clone(before)));
        }
        let id = self.approval.record.id.clone();
        let is_decision = matches!(ending.state, EndState::Allowed | EndState::Denied);
        let kept = ending.kept();
        let written = match ending.rule {
            Some(rule) => {
                let with = |stored| log.end(id, kept.clone(), Some(stored));
                book.add_with(rule, with).await.map(Some)
            }
            None => {
                let written = log.end(id, kept.clone(), None).await;
                written.map(|()| None).map_err(|error| of_database(&error))
            }
        };
        let rule = match written {
            Ok(rule) => rule,
            // It waits on: who decides is told, and can try again.
            Err(error) if is_decision => return Err(error),
            Err(error) => {
                tracing::error!(%error, "the end of an approval could not be kept");
                None
            }
        };
        let approval = Arc::new(Approval {
            record: ApprovalRecord {
                end: Some(kept),
                ..self.approval.record.clone()
            },
            suggested_pattern: None,
        });
        if let Err(error) = self.session.note(decided(&approval.record, &self.about)) {
            tracing::error!(%error, "the end of an approval could not be recorded");
        }
        *end = Some(Arc::clone(&approval));
        tell(Arc::clone(&approval));
        self.told.send_replace(Some(Arc::clone(&approval)));
        Ok(Ended::Now(approval, rule))
    }
}
