//! All calls that wait, and those who watch them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use tokio::{
    sync::{Notify, broadcast, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    asked::{Approval, Decision, Ended, Ending, Question, about, decided, pattern_for, requested},
    places::Places,
    waiting::Waiting,
};
use crate::daemon::{
    call::{
        policy::{
            book::RuleBook,
            decision::{By, Verdict},
            rule::{Made, Rule},
        },
        state_error::of_database,
    },
    config::policy::Action,
    error::{Error, Reason},
    queue::{Name, Place, Queue, Share},
    store::{
        approvals::{ApprovalEnd, ApprovalLog, ApprovalRecord, EndState},
        database::DatabaseError,
        failure::state_failure,
        milliseconds,
        session::SessionId,
        state_dir::StateDir,
    },
    task,
};

/// Streams that watch at one time, 64 of one caller.
const WATCHERS: usize = 85;
/// Changes that a stream may be behind: with those of a full house, some 16 MiB.
const BEHIND: usize = 1024;
/// Time between two looks for what is not to be kept any more.
const TIME_BETWEEN: Duration = Duration::from_secs(3600);
/// Calls that are asked about after which is looked before that time is over.
const ASKED_BETWEEN: u32 = 1000;

/// A caller that goes away so shortly before the end of its wait does so because of that: both sides count
/// the time, and theirs began when the call was on its way.
const AHEAD: Duration = Duration::from_millis(100);

/// The calls that wait.
#[derive(Debug)]
pub(crate) struct Approvals {
    log: ApprovalLog,
    book: Arc<RuleBook>,
    /// Those that wait, by id.
    pending: Mutex<BTreeMap<String, Arc<Waiting>>>,
    /// Those that waited when the daemon before this one died, as far as the log does not say so, by id.
    lost: Mutex<HashMap<String, ApprovalRecord>>,
    places: Arc<Places>,
    /// Calls that were asked about since the last look for what is not to be kept any more.
    asked: AtomicU32,
    /// Told when these are many.
    many: Arc<Notify>,
    changes: broadcast::Sender<Arc<Approval>>,
    watchers: Arc<Queue>,
}

/// Somebody who watches: those that wait, and every change from then on.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Those that wait, oldest first.
    pub(crate) pending: Vec<Arc<Approval>>,
    /// What changes.
    pub(crate) changes: broadcast::Receiver<Arc<Approval>>,
    _place: Place,
}

impl Approvals {
    /// The calls that wait: none yet. Those that waited when a daemon died are told to be lost.
    pub(crate) async fn open(
        log: ApprovalLog,
        book: Arc<RuleBook>,
        store: &StateDir,
    ) -> Result<Arc<Self>, DatabaseError> {
        let left = log.left_behind().await?.into_iter();
        let left = left.map(|record| lose(record, store));
        let approvals = Arc::new(Self {
            log,
            lost: Mutex::new(left.map(|lost| (lost.id.clone(), lost)).collect()),
            book,
            pending: Mutex::default(),
            places: Arc::default(),
            asked: AtomicU32::new(0),
            many: Arc::default(),
            changes: broadcast::Sender::new(BEHIND),
            watchers: Queue::new(WATCHERS, Share::Reserve, 0),
        });
        let (weak, many) = (Arc::downgrade(&approvals), Arc::clone(&approvals.many));
        task::spawn("retention of approvals", async move {
            while let Some(approvals) = weak.upgrade() {
                approvals.retain().await;
                drop(approvals);
                let _time_is_over = timeout(TIME_BETWEEN, many.notified()).await;
            }
        });
        Ok(approvals)
    }

    /// Asks about a call, and waits for the end of that. It ends, too, with the caller, and when the daemon
    /// drains.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        question: Question,
        draining: CancellationToken,
    ) -> Result<Arc<Approval>, Error> {
        let record = &question.approval.record;
        let place = self.places.take(record, question.size, question.at_most)?;
        if self.asked.fetch_add(1, Ordering::Relaxed) == ASKED_BETWEEN {
            self.many.notify_one();
        }
        // Cancelled with the caller, whose future this is.
        let gone = CancellationToken::new();
        let _gone = gone.clone().drop_guard();
        let wait = Arc::clone(self).wait(question, gone, draining);
        let waited = task::spawn_tracked("approval", async move {
            let ended = wait.await;
            drop(place);
            ended
        });
        waited.await.map_err(Error::internal)?
    }

    /// Told from now on whenever another call may be asked about.
    pub(in crate::daemon::call) fn freed(&self) -> watch::Receiver<()> {
        self.places.freed()
    }

    /// Whether another call of a caller may be asked about, if it is a small one.
    pub(in crate::daemon::call) fn has_room(&self, workspace: &str, principal: &str) -> bool {
        let at_most = self.book.snapshot().settings.approvals.pending;
        self.places.has_room(workspace, principal, at_most)
    }

    async fn wait(
        self: Arc<Self>,
        question: Question,
        gone: CancellationToken,
        draining: CancellationToken,
    ) -> Result<Arc<Approval>, Error> {
        let Question { approval, call, shown, size: _, session, about, until, at_most: _, before } =
            question;
        let kept = self.log.ask(approval.record.clone()).await;
        kept.map_err(|error| of_database(&error))?;
        let recorded = session.note(requested(&approval.record, &about));
        let approval = Arc::new(approval);
        let waiting = Arc::new(Waiting::new(approval, call, shown, session, about));
        if let Err(error) = recorded {
            // Nobody has been asked yet.
            let ending = Ending::undecided(EndState::Withdrawn);
            self.finish(&waiting, ending).await?;
            return Err(state_failure(&error));
        }
        self.show(&waiting);
        // Whoever makes a rule from here on finds it among those that wait.
        if !Arc::ptr_eq(&before, &self.book.snapshot()) {
            self.look_again(&waiting).await;
        }
        let ending = tokio::select! {
            biased;
            ended = waiting.ended() => return Ok(ended),
            () = draining.cancelled() => EndState::Withdrawn,
            () = task::until(Some(until)) => EndState::Expired,
            // The caller's clock may have been a little ahead of ours.
            () = gone.cancelled() => match until.saturating_duration_since(Instant::now()) < AHEAD {
                true => EndState::Expired,
                false => EndState::Withdrawn,
            },
        };
        match self.finish(&waiting, Ending::undecided(ending)).await? {
            Ended::Now(ended, _) | Ended::Before(ended) => Ok(ended),
        }
    }

    /// One of them; where it waits, with all that can be shown of it. `sees` tells which the caller may
    /// know of.
    pub(crate) async fn get(
        &self,
        id: &str,
        sees: impl Fn(&ApprovalRecord) -> bool,
    ) -> Result<Arc<Approval>, Error> {
        let found = self.pending().get(id).map(Arc::clone);
        if let Some(found) = found.filter(|found| sees(&found.approval.record)) {
            let whole = found.shown.whole();
            let mut approval = Approval::clone(&found.approval);
            approval.record.parameters = whole.parameters;
            approval.record.files = whole.files;
            approval.record.more_files = whole.more_files;
            return Ok(Arc::new(approval));
        }
        let found = self.log.find(id.to_owned()).await;
        let found = found.map_err(|error| of_database(&error))?;
        let found = found.map(|record| self.known(record));
        let record = found.filter(sees).ok_or_else(|| not_found(id))?;
        Ok(Arc::new(Approval { record, suggested_pattern: None }))
    }

    /// Decides about a call. `sees` tells about which `by` may.
    pub(crate) async fn decide(
        &self,
        id: &str,
        sees: impl Fn(&ApprovalRecord) -> bool,
        by: &str,
        decision: Decision,
        comment: String,
    ) -> Result<(Arc<Approval>, Option<Arc<Rule>>), Error> {
        let waiting = self.pending().get(id).map(Arc::clone);
        let Some(waiting) = waiting.filter(|found| sees(&found.approval.record)) else {
            let ended = self.get(id, sees).await?;
            return Err(match &ended.record.end {
                Some(end) => decided_before(id, end),
                None => not_found(id),
            });
        };
        let (state, rule) = match decision {
            Decision::Deny => (EndState::Denied, None),
            Decision::Allow => (EndState::Allowed, None),
            Decision::Always { pattern, expires } => {
                let approval = Arc::clone(&waiting.approval);
                let call = Arc::clone(&waiting.call);
                // Patterns may take a while to be read, and to be searched for.
                let pattern = task::blocking(move || pattern_for(&approval, &call, pattern)).await;
                let pattern = pattern.map_err(Error::internal)??;
                let record = &waiting.approval.record;
                let rule = Rule {
                    id: ulid::Ulid::generate().to_string(),
                    name: format!("always {}", record.tool),
                    tool: record.tool.clone(),
                    pattern: Some(pattern),
                    action: Action::Allow,
                    workspaces: Some([record.workspace.clone()].into()),
                    expires: Some(expires),
                    enabled: true,
                    made: Some(Made {
                        by: by.to_owned(),
                        at: SystemTime::now(),
                        approval_id: Some(id.to_owned()),
                    }),
                };
                (EndState::Allowed, Some(rule))
            }
        };
        let ending = Ending { state, by: by.to_owned(), comment, rule };
        match self.finish(&waiting, ending).await? {
            Ended::Now(approval, rule) => {
                if let Some(rule) = &rule {
                    self.let_in_by(rule).await;
                }
                Ok((approval, rule))
            }
            Ended::Before(approval) => Err(match &approval.record.end {
                Some(end) => decided_before(id, end),
                None => not_found(id),
            }),
        }
    }

    /// Lets calls go on that wait, and would not if they came now, by a rule that was just made or changed.
    pub(crate) async fn let_in_by(&self, rule: &Rule) {
        if rule.action != Action::Allow {
            return;
        }
        let waiting: Vec<_> = self.pending().values().cloned().collect();
        for waiting in waiting {
            let call = &waiting.call;
            let said = call.said.as_deref().map(|said| said.tool);
            if rule.is_about(call.tool, said, &call.workspace) {
                self.look_again(&waiting).await;
            }
        }
    }

    /// Lets a call go on that waits, where a rule allows it by now.
    async fn look_again(&self, waiting: &Waiting) {
        let call = Arc::clone(&waiting.call);
        let decided = self.book.decide(self.book.snapshot(), call).await;
        if let Ok(Verdict { action: Action::Allow, by: By::Rule(rule) }) = decided
            && let Err(error) = self.finish(waiting, Ending::by_rule(&rule.id)).await
        {
            // It waits on, and can be decided about by itself.
            tracing::warn!(%error, "a call that a new rule lets in could not be told so");
        }
    }

    /// Those that wait, oldest first.
    pub(crate) fn waiting(&self) -> Vec<Arc<Approval>> {
        let pending = self.pending();
        let waiting = pending.values();
        waiting.map(|waiting| Arc::clone(&waiting.approval)).collect()
    }

    /// Those of some workspaces, also those that have ended, newest first.
    pub(crate) async fn list(
        &self,
        workspaces: Vec<String>,
        before: Option<String>,
        most: u32,
    ) -> Result<Vec<Arc<Approval>>, Error> {
        let listed = self.log.list(workspaces, before, most).await;
        let listed = listed.map_err(|error| of_database(&error))?;
        let pending = self.pending();
        let known = listed.into_iter().map(|record| match pending.get(&record.id) {
            Some(waiting) if record.end.is_none() => Arc::clone(&waiting.approval),
            _ => Arc::new(Approval { record: self.known(record), suggested_pattern: None }),
        });
        Ok(known.collect())
    }

    /// Watches them, for `caller`. When there will be room where there is none, nobody knows.
    pub(crate) fn watch(&self, caller: &Name) -> Result<Watch, Error> {
        let Ok(place) = self.watchers.at_once(caller, usize::MAX) else {
            let text = "as many watch already as this caller may, or all together: end one of them, or try again when one has ended";
            return Err(Error::new(Reason::ResourceExhausted, text));
        };
        let pending = self.pending();
        let waiting = pending.values();
        Ok(Watch {
            // Under the same lock as every change is: nothing comes in between.
            changes: self.changes.subscribe(),
            pending: waiting.map(|waiting| Arc::clone(&waiting.approval)).collect(),
            _place: place,
        })
    }

    /// Lets a call be seen and decided about.
    fn show(&self, waiting: &Arc<Waiting>) {
        let mut pending = self.pending();
        let approval = Arc::clone(&waiting.approval);
        let id = approval.record.id.clone();
        pending.insert(id, Arc::clone(waiting));
        // Nobody may be watching.
        let _watchers = self.changes.send(approval);
    }

    async fn finish(&self, waiting: &Waiting, ending: Ending) -> Result<Ended, Error> {
        let tell = |approval: Arc<Approval>| {
            let mut pending = self.pending();
            if pending.remove(&approval.record.id).is_some() {
                let _watchers = self.changes.send(approval);
            }
        };
        waiting.finish(ending, &self.log, &self.book, tell).await
    }

    /// Notes of those that waited when the daemon before this one died that they are lost, as soon as there is
    /// room for that.
    async fn note_lost(&self) {
        let lost: Vec<_> = self.lost().values().cloned().collect();
        for record in lost {
            let Some(end) = record.end else { continue };
            if let Err(error) = self.log.end(record.id.clone(), end, None).await {
                tracing::warn!(%error, "the end of an approval could not be kept yet");
                return;
            }
            self.lost().remove(&record.id);
        }
    }

    /// What the log has of an approval, or would have if there were room.
    fn known(&self, record: ApprovalRecord) -> ApprovalRecord {
        let lost = self.lost().get(&record.id).cloned();
        lost.unwrap_or(record)
    }

    fn lost(&self) -> MutexGuard<'_, HashMap<String, ApprovalRecord>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn retain(&self) {
        self.note_lost().await;
        self.asked.store(0, Ordering::Relaxed);
        let retention = self.book.snapshot().settings.approvals.retention;
        let since = SystemTime::now().checked_sub(retention);
        let since = since.unwrap_or(SystemTime::UNIX_EPOCH);
        let forgotten = self.log.retain(milliseconds::of(since)).await;
        if let Err(error) = forgotten {
            tracing::warn!(%error, "old approvals could not be removed");
        }
        if let Err(error) = self.book.forget(since).await {
            tracing::warn!(%error, "rules that have ended could not be removed");
        }
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Waiting>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells of a call that waited when its daemon died; answers what it is to be known as.
fn lose(record: ApprovalRecord, store: &StateDir) -> ApprovalRecord {
    let lost = ApprovalRecord { end: Some(Ending::undecided(EndState::Lost).kept()), ..record };
    // Before it is written down that it was: rather twice than never.
    let session = SessionId::parse(&lost.session)
        .map(|id| store.sessions().existing(&lost.workspace, &id))
        .transpose();
    let noted = match session.map(Option::flatten) {
        Ok(Some(session)) => session.note(decided(&lost, &about(&lost))),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = noted {
        tracing::error!(%error, "the end of an approval could not be recorded");
    }
    lost
}

fn decided_before(id: &str, end: &ApprovalEnd) -> Error {
    let text = format!(
        "this approval is {} already, by {}: nothing is left to decide",
        end.state.name(),
        end.by
    );
    Error::new(Reason::ApprovalDecided, text)
        .with("approval_id", id)
        .with("state", end.state.name())
        .with("by", end.by.clone())
}

fn not_found(id: &str) -> Error {
    let text = format!("there is no approval {id:?}: ListApprovals tells which there are");
    Error::new(Reason::ApprovalNotFound, text).with("approval_id", id)
}
