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
    pending_approval::PendingApproval,
    quota::ApprovalQuota,
    request::{
        Approval, ApprovalDecision, ApprovalRequest, ApprovalResolution, ResolveOutcome,
        decided_record, lost_call_fields, requested_record, rule_pattern_for,
    },
};
use crate::daemon::{
    config::policy::PolicyAction,
    error::{Error, Reason},
    pipeline::{
        policy::{
            decision::{DecidedBy, PolicyDecision},
            rule::{Rule, RuleProvenance},
            store::RuleStore,
        },
        state_error::state_database_error,
    },
    queue::{Limiter, Permit, PrincipalKey, Sharing},
    store::{
        approvals::{ApprovalEnd, ApprovalEndState, ApprovalRecord, ApprovalTable},
        database::DatabaseError,
        failure::state_failure,
        session::SessionId,
        state_dir::StateDir,
        unix_millis,
    },
    task,
};

/// Streams that watch at one time, 64 of one caller.
const MAX_APPROVAL_WATCHERS: usize = 85;
/// Changes that a stream may be behind: with those of a full house, some 16 MiB.
const WATCH_BUFFER_CHANGES: usize = 1024;
/// Time between two looks for what is not to be kept any more.
const RETENTION_INTERVAL: Duration = Duration::from_secs(3600);
/// Calls that are asked about after which is looked before that time is over.
const RETENTION_INTERVAL_REQUESTS: u32 = 1000;

/// A caller that goes away so shortly before the end of its wait does so because of that: both sides count
/// the time, and theirs began when the call was on its way.
const CLOCK_SKEW_TOLERANCE: Duration = Duration::from_millis(100);

/// The calls that wait.
#[derive(Debug)]
pub(crate) struct PendingApprovals {
    log: ApprovalTable,
    rules: Arc<RuleStore>,
    /// Those that wait, by id.
    pending: Mutex<BTreeMap<String, Arc<PendingApproval>>>,
    /// Those that waited when the daemon before this one died, as far as the log does not say so, by id.
    lost: Mutex<HashMap<String, ApprovalRecord>>,
    quota: Arc<ApprovalQuota>,
    /// Calls that were asked about since the last look for what is not to be kept any more.
    requests_since_retention: AtomicU32,
    /// Told when these are many.
    retention_due: Arc<Notify>,
    changes: broadcast::Sender<Arc<Approval>>,
    watcher_limiter: Arc<Limiter>,
}

/// Somebody who watches: those that wait, and every change from then on.
#[derive(Debug)]
pub(crate) struct ApprovalWatch {
    /// Those that wait, oldest first.
    pub(crate) pending: Vec<Arc<Approval>>,
    /// What changes.
    pub(crate) changes: broadcast::Receiver<Arc<Approval>>,
    _permit: Permit,
}

impl PendingApprovals {
    /// The calls that wait: none yet. Those that waited when a daemon died are told to be lost.
    pub(crate) async fn open(
        log: ApprovalTable,
        book: Arc<RuleStore>,
        store: &StateDir,
    ) -> Result<Arc<Self>, DatabaseError> {
        let left = log.find_orphaned().await?.into_iter();
        let left = left.map(|record| mark_lost(record, store));
        let approvals = Arc::new(Self {
            log,
            lost: Mutex::new(left.map(|lost| (lost.id.clone(), lost)).collect()),
            rules: book,
            pending: Mutex::default(),
            quota: Arc::default(),
            requests_since_retention: AtomicU32::new(0),
            retention_due: Arc::default(),
            changes: broadcast::Sender::new(WATCH_BUFFER_CHANGES),
            watcher_limiter: Limiter::new(MAX_APPROVAL_WATCHERS, Sharing::KeepHeadroom, 0),
        });
        let (weak, many) = (Arc::downgrade(&approvals), Arc::clone(&approvals.retention_due));
        task::spawn("retention of approvals", async move {
            while let Some(approvals) = weak.upgrade() {
                approvals.retain().await;
                drop(approvals);
                let _time_is_over = timeout(RETENTION_INTERVAL, many.notified()).await;
            }
        });
        Ok(approvals)
    }

    /// Asks about a call, and waits for the end of that. It ends, too, with the caller, and when the daemon
    /// drains.
    pub(crate) async fn request(
        self: &Arc<Self>,
        request: ApprovalRequest,
        draining: CancellationToken,
    ) -> Result<Arc<Approval>, Error> {
        let record = &request.approval.record;
        let place = self.quota.acquire(record, request.held_bytes, request.max_pending)?;
        if self.requests_since_retention.fetch_add(1, Ordering::Relaxed)
            == RETENTION_INTERVAL_REQUESTS
        {
            self.retention_due.notify_one();
        }
        // Cancelled with the caller, whose future this is.
        let gone = CancellationToken::new();
        let _gone = gone.clone().drop_guard();
        let wait = Arc::clone(self).await_decision(request, gone, draining);
        let waited = task::spawn_tracked("approval", async move {
            let ended = wait.await;
            drop(place);
            ended
        });
        waited.await.map_err(Error::internal)?
    }

    /// Told from now on whenever another call may be asked about.
    pub(in crate::daemon::pipeline) fn freed(&self) -> watch::Receiver<()> {
        self.quota.freed()
    }

    /// Whether another call of a caller may be asked about, if it is a small one.
    pub(in crate::daemon::pipeline) fn has_free_slot(
        &self,
        workspace: &str,
        principal: &str,
    ) -> bool {
        let at_most = self.rules.snapshot().policy.approvals.max_pending;
        self.quota.has_free_slot(workspace, principal, at_most)
    }

    async fn await_decision(
        self: Arc<Self>,
        request: ApprovalRequest,
        gone: CancellationToken,
        draining: CancellationToken,
    ) -> Result<Arc<Approval>, Error> {
        let ApprovalRequest {
            approval,
            policy_request: call,
            preview: shown,
            held_bytes: _,
            session,
            common_record_fields: about,
            expires_at: until,
            max_pending: _,
            policy_snapshot: before,
        } = request;
        let kept = self.log.insert_pending(approval.record.clone()).await;
        kept.map_err(|error| state_database_error(&error))?;
        let recorded = session.record_without_step(requested_record(&approval.record, &about));
        let approval = Arc::new(approval);
        let waiting = Arc::new(PendingApproval::new(approval, call, shown, session, about));
        if let Err(error) = recorded {
            // Nobody has been asked yet.
            let ending = ApprovalResolution::undecided(ApprovalEndState::Withdrawn);
            self.resolve(&waiting, ending).await?;
            return Err(state_failure(&error));
        }
        self.publish(&waiting);
        // Whoever makes a rule from here on finds it among those that wait.
        if !Arc::ptr_eq(&before, &self.rules.snapshot()) {
            self.reevaluate(&waiting).await;
        }
        let ending = tokio::select! {
            biased;
            ended = waiting.resolved() => return Ok(ended),
            () = draining.cancelled() => ApprovalEndState::Withdrawn,
            () = task::sleep_until(Some(until)) => ApprovalEndState::Expired,
            // The caller's clock may have been a little ahead of ours.
            () = gone.cancelled() => match until.saturating_duration_since(Instant::now()) < CLOCK_SKEW_TOLERANCE {
                true => ApprovalEndState::Expired,
                false => ApprovalEndState::Withdrawn,
            },
        };
        match self.resolve(&waiting, ApprovalResolution::undecided(ending)).await? {
            ResolveOutcome::Resolved(ended, _) | ResolveOutcome::AlreadyResolved(ended) => {
                Ok(ended)
            }
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
            let whole = found.preview.to_full();
            let mut approval = Approval::clone(&found.approval);
            approval.record.parameters = whole.parameters;
            approval.record.files = whole.files;
            approval.record.more_files = whole.more_files;
            return Ok(Arc::new(approval));
        }
        let found = self.log.find(id.to_owned()).await;
        let found = found.map_err(|error| state_database_error(&error))?;
        let found = found.map(|record| self.with_lost_end(record));
        let record = found.filter(sees).ok_or_else(|| approval_not_found_error(id))?;
        Ok(Arc::new(Approval { record, suggested_pattern: None }))
    }

    /// Decides about a call. `sees` tells about which `by` may.
    pub(crate) async fn decide(
        &self,
        id: &str,
        sees: impl Fn(&ApprovalRecord) -> bool,
        by: &str,
        decision: ApprovalDecision,
        comment: String,
    ) -> Result<(Arc<Approval>, Option<Arc<Rule>>), Error> {
        let waiting = self.pending().get(id).map(Arc::clone);
        let Some(waiting) = waiting.filter(|found| sees(&found.approval.record)) else {
            let ended = self.get(id, sees).await?;
            return Err(match &ended.record.end {
                Some(end) => already_decided_error(id, end),
                None => approval_not_found_error(id),
            });
        };
        let (state, rule) = match decision {
            ApprovalDecision::Deny => (ApprovalEndState::Denied, None),
            ApprovalDecision::Allow => (ApprovalEndState::Allowed, None),
            ApprovalDecision::Always { pattern, expires } => {
                let approval = Arc::clone(&waiting.approval);
                let call = Arc::clone(&waiting.policy_request);
                // Patterns may take a while to be read, and to be searched for.
                let pattern =
                    task::spawn_blocking(move || rule_pattern_for(&approval, &call, pattern)).await;
                let pattern = pattern.map_err(Error::internal)??;
                let record = &waiting.approval.record;
                let rule = Rule {
                    id: ulid::Ulid::generate().to_string(),
                    name: format!("always {}", record.tool),
                    tool: record.tool.clone(),
                    pattern: Some(pattern),
                    action: PolicyAction::Allow,
                    workspaces: Some([record.workspace.clone()].into()),
                    expires: Some(expires),
                    enabled: true,
                    provenance: Some(RuleProvenance {
                        by: by.to_owned(),
                        at: SystemTime::now(),
                        approval_id: Some(id.to_owned()),
                    }),
                };
                (ApprovalEndState::Allowed, Some(rule))
            }
        };
        let ending = ApprovalResolution { state, by: by.to_owned(), comment, rule };
        match self.resolve(&waiting, ending).await? {
            ResolveOutcome::Resolved(approval, rule) => {
                if let Some(rule) = &rule {
                    self.resolve_allowed_by(rule).await;
                }
                Ok((approval, rule))
            }
            ResolveOutcome::AlreadyResolved(approval) => Err(match &approval.record.end {
                Some(end) => already_decided_error(id, end),
                None => approval_not_found_error(id),
            }),
        }
    }

    /// Lets calls go on that wait, and would not if they came now, by a rule that was just made or changed.
    pub(crate) async fn resolve_allowed_by(&self, rule: &Rule) {
        if rule.action != PolicyAction::Allow {
            return;
        }
        let waiting: Vec<_> = self.pending().values().cloned().collect();
        for waiting in waiting {
            let call = &waiting.policy_request;
            let dialect_call = call.dialect_call.as_deref().map(|said| said.tool);
            if rule.applies_to(call.tool, dialect_call, &call.workspace) {
                self.reevaluate(&waiting).await;
            }
        }
    }

    /// Lets a call go on that waits, where a rule allows it by now.
    async fn reevaluate(&self, pending_approval: &PendingApproval) {
        let call = Arc::clone(&pending_approval.policy_request);
        let decided = self.rules.decide(self.rules.snapshot(), call).await;
        if let Ok(PolicyDecision { action: PolicyAction::Allow, decided_by: DecidedBy::Rule(rule) }) =
            decided
            && let Err(error) =
                self.resolve(pending_approval, ApprovalResolution::by_rule(&rule.id)).await
        {
            // It waits on, and can be decided about by itself.
            tracing::warn!(%error, "a call that a new rule lets in could not be told so");
        }
    }

    /// Those that wait, oldest first.
    pub(crate) fn list_pending(&self) -> Vec<Arc<Approval>> {
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
        let listed = listed.map_err(|error| state_database_error(&error))?;
        let pending = self.pending();
        let known = listed.into_iter().map(|record| match pending.get(&record.id) {
            Some(waiting) if record.end.is_none() => Arc::clone(&waiting.approval),
            _ => Arc::new(Approval { record: self.with_lost_end(record), suggested_pattern: None }),
        });
        Ok(known.collect())
    }

    /// Watches them, for `caller`. When there will be room where there is none, nobody knows.
    pub(crate) fn watch(&self, caller: &PrincipalKey) -> Result<ApprovalWatch, Error> {
        let Ok(place) = self.watcher_limiter.try_acquire(caller, usize::MAX) else {
            let text = "as many watch already as this caller may, or all together: end one of them, or try again when one has ended";
            return Err(Error::new(Reason::ResourceExhausted, text));
        };
        let pending = self.pending();
        let waiting = pending.values();
        Ok(ApprovalWatch {
            // Under the same lock as every change is: nothing comes in between.
            changes: self.changes.subscribe(),
            pending: waiting.map(|waiting| Arc::clone(&waiting.approval)).collect(),
            _permit: place,
        })
    }

    /// Lets a call be seen and decided about.
    fn publish(&self, pending_approval: &Arc<PendingApproval>) {
        let mut pending = self.pending();
        let approval = Arc::clone(&pending_approval.approval);
        let id = approval.record.id.clone();
        pending.insert(id, Arc::clone(pending_approval));
        // Nobody may be watching.
        let _watchers = self.changes.send(approval);
    }

    async fn resolve(
        &self,
        pending_approval: &PendingApproval,
        resolution: ApprovalResolution,
    ) -> Result<ResolveOutcome, Error> {
        let tell = |approval: Arc<Approval>| {
            let mut pending = self.pending();
            if pending.remove(&approval.record.id).is_some() {
                let _watchers = self.changes.send(approval);
            }
        };
        pending_approval.resolve(resolution, &self.log, &self.rules, tell).await
    }

    /// Notes of those that waited when the daemon before this one died that they are lost, as soon as there is
    /// room for that.
    async fn store_lost(&self) {
        let lost: Vec<_> = self.lost().values().cloned().collect();
        for record in lost {
            let Some(end) = record.end else { continue };
            if let Err(error) = self.log.record_end(record.id.clone(), end, None).await {
                tracing::warn!(%error, "the end of an approval could not be kept yet");
                return;
            }
            self.lost().remove(&record.id);
        }
    }

    /// What the log has of an approval, or would have if there were room.
    fn with_lost_end(&self, record: ApprovalRecord) -> ApprovalRecord {
        let lost = self.lost().get(&record.id).cloned();
        lost.unwrap_or(record)
    }

    fn lost(&self) -> MutexGuard<'_, HashMap<String, ApprovalRecord>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn retain(&self) {
        self.store_lost().await;
        self.requests_since_retention.store(0, Ordering::Relaxed);
        let retention = self.rules.snapshot().policy.approvals.retention;
        let since = SystemTime::now().checked_sub(retention);
        let since = since.unwrap_or(SystemTime::UNIX_EPOCH);
        let forgotten = self.log.apply_retention(unix_millis::from_time(since)).await;
        if let Err(error) = forgotten {
            tracing::warn!(%error, "old approvals could not be removed");
        }
        if let Err(error) = self.rules.remove_expired(since).await {
            tracing::warn!(%error, "rules that have ended could not be removed");
        }
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<String, Arc<PendingApproval>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells of a call that waited when its daemon died; answers what it is to be known as.
fn mark_lost(record: ApprovalRecord, store: &StateDir) -> ApprovalRecord {
    let lost = ApprovalRecord {
        end: Some(ApprovalResolution::undecided(ApprovalEndState::Lost).to_approval_end()),
        ..record
    };
    // Before it is written down that it was: rather twice than never.
    let session = SessionId::parse(&lost.session)
        .map(|id| store.sessions().open_existing(&lost.workspace, &id))
        .transpose();
    let noted = match session.map(Option::flatten) {
        Ok(Some(session)) => {
            session.record_without_step(decided_record(&lost, &lost_call_fields(&lost)))
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = noted {
        tracing::error!(%error, "the end of an approval could not be recorded");
    }
    lost
}

fn already_decided_error(id: &str, end: &ApprovalEnd) -> Error {
    let text = format!(
        "this approval is {} already, by {}: nothing is left to decide",
        end.state.name(),
        end.ended_by
    );
    Error::new(Reason::ApprovalDecided, text)
        .with_metadata("approval_id", id)
        .with_metadata("state", end.state.name())
        .with_metadata("by", end.ended_by.clone())
}

fn approval_not_found_error(id: &str) -> Error {
    let text = format!("there is no approval {id:?}: ListApprovals tells which there are");
    Error::new(Reason::ApprovalNotFound, text).with_metadata("approval_id", id)
}
