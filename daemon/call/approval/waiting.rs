//! One call that waits: it ends once.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value};
use tokio::{sync::watch, time::sleep};

use super::{
    asked::{Approval, Ended, Ending, decided},
    shown::Shown,
};
use crate::daemon::{
    call::{
        policy::{book::RuleBook, judged::Judged},
        state_error::of_database,
    },
    error::Error,
    store::{
        approvals::{ApprovalEnd, ApprovalLog, ApprovalRecord, EndState},
        session::Session,
    },
    task,
};

/// Rest before the end of an approval that could not be written down is tried again: twice as long each time,
/// up to the longest.
const REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);

/// A call that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) approval: Arc<Approval>,
    /// What rules look at.
    pub(super) call: Arc<Judged>,
    /// What people are shown who ask for all.
    pub(super) shown: Shown,
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
        call: Arc<Judged>,
        shown: Shown,
        session: Arc<Session>,
        about: Map<String, Value>,
    ) -> Self {
        Self {
            approval,
            call,
            shown,
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
                tracing::error!(%error, "the end of an approval could not be kept yet");
                let (log, id) = (log.clone(), self.approval.record.id.clone());
                task::spawn("end of an approval", keep_later(log, id, kept.clone()));
                None
            }
        };
        let approval = Arc::new(Approval {
            record: ApprovalRecord { end: Some(kept), ..self.approval.record.clone() },
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

/// Writes an end down once that can be: until then the call would seem to wait, and nobody could decide.
async fn keep_later(log: ApprovalLog, id: String, end: ApprovalEnd) {
    let mut rest = REST;
    loop {
        sleep(rest).await;
        match log.end(id.clone(), end.clone(), None).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "the end of an approval could still not be kept"),
        }
        rest = (rest * 2).min(LONGEST_REST);
    }
}
