//! All pending approvals, and the streams that watch them.

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
    lost::mark_lost,
    pending_approval::PendingApproval,
    quota::ApprovalQuota,
    request::{
        Approval, ApprovalDecision, ApprovalRequest, ApprovalResolution, ResolveOutcome,
        rule_pattern_for,
    },
};
use crate::daemon::{
    config::policy::PolicyAction,
    error::{Error, Reason},
    pipeline::{
        observer::CallObserver,
        policy::{
            decision::{DecidedBy, PolicyDecision},
            pattern::RulePattern,
            rule::{Rule, RuleProvenance},
            store::RuleStore,
        },
        state_error::state_database_error,
    },
    queue::{Limiter, Permit, PrincipalName, Sharing},
    store::{
        approvals::{ApprovalEndState, ApprovalRecord, ApprovalTable},
        database::DatabaseError,
        failure::state_failure,
        state_dir::StateDir,
        unix_millis,
    },
    task,
};

/// Streams that watch at one time. With the headroom for others, one caller has at most 64.
const MAX_APPROVAL_WATCHERS: usize = 85;
/// Changes that a stream may lag behind. At the largest size they take about 16 MiB.
const WATCH_BUFFER_CHANGES: usize = 1024;
/// Interval between two passes of retention.
const RETENTION_INTERVAL: Duration = Duration::from_secs(3600);
/// Number of requests after which a pass is due before its interval.
const RETENTION_INTERVAL_REQUESTS: u32 = 1000;

/// A caller that disconnects this shortly before the end of its wait has reached its deadline. Both
/// sides measure the time; the caller's started before the call arrived.
const CLOCK_SKEW_TOLERANCE: Duration = Duration::from_millis(100);

/// The pending approvals of all workspaces.
#[derive(Debug)]
pub(crate) struct PendingApprovals {
    table: ApprovalTable,
    rules: Arc<RuleStore>,
    /// Pending approvals, by id.
    pending: Mutex<BTreeMap<String, Arc<PendingApproval>>>,
    /// Approvals that a daemon that died left pending, until they are stored as lost. By id.
    lost: Mutex<HashMap<String, ApprovalRecord>>,
    quota: Arc<ApprovalQuota>,
    /// Requests since the last pass of retention.
    requests_since_retention: AtomicU32,
    /// Notified when there were many requests.
    retention_due: Arc<Notify>,
    changes: broadcast::Sender<Arc<Approval>>,
    watcher_limiter: Arc<Limiter>,
}

/// The stream of one watcher: the pending approvals, then every change.
#[derive(Debug)]
pub(crate) struct ApprovalWatch {
    /// Pending approvals, oldest first.
    pub(crate) pending: Vec<Arc<Approval>>,
    pub(crate) changes: broadcast::Receiver<Arc<Approval>>,
    _permit: Permit,
}

impl PendingApprovals {
    /// Starts without pending approvals. Those of a daemon that died are marked as lost.
    pub(crate) async fn open(
        table: ApprovalTable,
        rules: Arc<RuleStore>,
        state_dir: &StateDir,
    ) -> Result<Arc<Self>, DatabaseError> {
        let orphaned = table.find_orphaned().await?.into_iter();
        let lost = orphaned
            .map(|record| mark_lost(record, state_dir))
            .map(|record| (record.id.clone(), record))
            .collect();

        let approvals = Arc::new(Self {
            table,
            lost: Mutex::new(lost),
            rules,
            pending: Mutex::default(),
            quota: Arc::default(),
            requests_since_retention: AtomicU32::new(0),
            retention_due: Arc::default(),
            changes: broadcast::Sender::new(WATCH_BUFFER_CHANGES),
            watcher_limiter: Limiter::new(MAX_APPROVAL_WATCHERS, Sharing::KeepHeadroom, 0),
        });

        let weak = Arc::downgrade(&approvals);
        let retention_due = Arc::clone(&approvals.retention_due);
        task::spawn("retention of approvals", async move {
            while let Some(approvals) = weak.upgrade() {
                approvals.retain().await;
                drop(approvals);
                let _notified = timeout(RETENTION_INTERVAL, retention_due.notified()).await;
            }
        });

        Ok(approvals)
    }

    /// Requests approval of a call, and waits for the end. The wait also ends when the caller
    /// disconnects or the daemon drains.
    pub(crate) async fn request(
        self: &Arc<Self>,
        request: ApprovalRequest,
        draining: CancellationToken,
    ) -> Result<Arc<Approval>, Error> {
        let record = &request.approval.record;
        let permit = self.quota.acquire(record, request.held_bytes, request.max_pending)?;
        // After the permit: the deletion waits until there is none.
        request.workspace.require_undeleted()?;
        if self.requests_since_retention.fetch_add(1, Ordering::Relaxed)
            == RETENTION_INTERVAL_REQUESTS
        {
            self.retention_due.notify_one();
        }

        // Cancelled when the caller drops this future.
        let caller_gone = CancellationToken::new();
        let _guard = caller_gone.clone().drop_guard();
        let wait = Arc::clone(self).await_decision(request, caller_gone, draining);
        let waited = task::spawn_tracked("approval", async move {
            let ended = wait.await;
            drop(permit);
            ended
        });
        waited.await.map_err(Error::internal)?
    }

    /// Waits until no call of a workspace is pending approval. Its deletion withdraws them.
    pub(in crate::daemon::pipeline) async fn wait_until_none_in(&self, workspace: &str) {
        self.quota.wait_until_unused_in(workspace).await;
    }

    /// Subscribes to released permits.
    pub(in crate::daemon::pipeline) fn freed(&self) -> watch::Receiver<()> {
        self.quota.freed()
    }

    /// Whether a caller could request approval of another small call.
    pub(in crate::daemon::pipeline) fn has_free_permit(
        &self,
        workspace: &str,
        principal: &str,
    ) -> bool {
        let max_pending = self.rules.snapshot().policy.approvals.max_pending;
        self.quota.has_free_permit(workspace, principal, max_pending)
    }

    async fn await_decision(
        self: Arc<Self>,
        request: ApprovalRequest,
        caller_gone: CancellationToken,
        draining: CancellationToken,
    ) -> Result<Arc<Approval>, Error> {
        let ApprovalRequest { approval, expires_at, policy_snapshot, session, workspace, .. } =
            request;
        let stored = self.table.insert_pending(approval.record.clone()).await;
        stored.map_err(|error| state_database_error(&error))?;

        let recorder = request.recorder;
        let recorded = recorder.record_requested(&session, &approval.record);
        let pending = Arc::new(PendingApproval::new(
            Arc::new(approval),
            request.policy_request,
            request.preview,
            session,
            recorder,
        ));
        if let Err(error) = recorded {
            // No approver has seen the call yet.
            let resolution = ApprovalResolution::undecided(ApprovalEndState::Withdrawn);
            self.resolve(&pending, resolution).await?;
            return Err(state_failure(&error));
        }
        self.publish(&pending);
        CallObserver::report_approval(request.observer.as_ref(), &pending.approval.record.id);

        // The policy may have changed since it asked. Later changes find the call in `pending`.
        if !Arc::ptr_eq(&policy_snapshot, &self.rules.snapshot()) {
            self.reevaluate(&pending).await;
        }

        let end_state = tokio::select! {
            biased;
            ended = pending.resolved() => return Ok(ended),
            () = draining.cancelled() => ApprovalEndState::Withdrawn,
            () = workspace.wait_for_deletion() => ApprovalEndState::Withdrawn,
            () = task::sleep_until(Some(expires_at)) => ApprovalEndState::Expired,
            // The caller's clock may be slightly ahead of the daemon's.
            () = caller_gone.cancelled() => {
                let remaining = expires_at.saturating_duration_since(Instant::now());
                if remaining < CLOCK_SKEW_TOLERANCE {
                    ApprovalEndState::Expired
                } else {
                    ApprovalEndState::Withdrawn
                }
            }
        };
        match self.resolve(&pending, ApprovalResolution::undecided(end_state)).await? {
            ResolveOutcome::Resolved(ended, _) | ResolveOutcome::AlreadyResolved(ended) => {
                Ok(ended)
            }
        }
    }

    /// Returns an approval, with the full parameters if it is pending. `is_visible` limits the
    /// approvals that the caller may see.
    pub(crate) async fn get(
        &self,
        id: &str,
        is_visible: impl Fn(&Approval) -> bool,
    ) -> Result<Arc<Approval>, Error> {
        let pending = self.pending().get(id).map(Arc::clone);
        if let Some(pending) = pending.filter(|pending| is_visible(&pending.approval)) {
            let full = pending.preview.to_full();
            let mut approval = Approval::clone(&pending.approval);
            approval.record.parameters = full.parameters;
            approval.record.files = full.files;
            approval.record.more_files = full.more_files;
            return Ok(Arc::new(approval));
        }

        let stored = self.table.find(id.to_owned()).await;
        let approval = stored
            .map_err(|error| state_database_error(&error))?
            .map(|record| Approval::stored(self.with_lost_end(record)))
            .filter(is_visible)
            .ok_or_else(|| approval_not_found_error(id))?;
        Ok(Arc::new(approval))
    }

    /// Decides an approval. `is_visible` limits the approvals that `by` may decide.
    pub(crate) async fn decide(
        &self,
        id: &str,
        is_visible: impl Fn(&Approval) -> bool,
        by: &str,
        decision: ApprovalDecision,
        comment: String,
    ) -> Result<(Arc<Approval>, Option<Arc<Rule>>), Error> {
        let pending = self.pending().get(id).map(Arc::clone);
        let Some(pending) = pending.filter(|pending| is_visible(&pending.approval)) else {
            let ended = self.get(id, is_visible).await?;
            return Err(already_decided_error(id, &ended));
        };

        let (state, rule) = match decision {
            ApprovalDecision::Deny => (ApprovalEndState::Denied, None),
            ApprovalDecision::Allow => (ApprovalEndState::Allowed, None),
            ApprovalDecision::Always { pattern, expires } => {
                let rule = always_rule(&pending, pattern, expires, by).await?;
                (ApprovalEndState::Allowed, Some(rule))
            }
        };
        let resolution = ApprovalResolution { state, by: by.to_owned(), comment, rule };

        match self.resolve(&pending, resolution).await? {
            ResolveOutcome::Resolved(approval, rule) => {
                if let Some(rule) = &rule {
                    self.resolve_allowed_by(rule).await;
                }
                Ok((approval, rule))
            }
            ResolveOutcome::AlreadyResolved(approval) => Err(already_decided_error(id, &approval)),
        }
    }

    /// Resolves pending approvals that a new or changed rule allows.
    pub(crate) async fn resolve_allowed_by(&self, rule: &Rule) {
        if rule.action != PolicyAction::Allow {
            return;
        }

        let all_pending: Vec<_> = self.pending().values().cloned().collect();
        for pending in all_pending {
            let request = &pending.policy_request;
            let dialect_tool = request.dialect_call.as_deref().map(|call| call.tool);
            if rule.applies_to(request.tool, dialect_tool, &request.workspace) {
                self.reevaluate(&pending).await;
            }
        }
    }

    /// Resolves a pending approval if a rule allows the call now.
    async fn reevaluate(&self, pending_approval: &PendingApproval) {
        let request = Arc::clone(&pending_approval.policy_request);
        let decision = self.rules.decide(self.rules.snapshot(), request).await;
        if let Ok(PolicyDecision { action: PolicyAction::Allow, decided_by: DecidedBy::Rule(rule) }) =
            decision
            && let Err(error) =
                self.resolve(pending_approval, ApprovalResolution::by_rule(&rule.id)).await
        {
            // The approval stays pending, and a person can still decide it.
            tracing::warn!(%error, "cannot resolve an approval by a new rule");
        }
    }

    /// Returns the pending approvals, oldest first.
    pub(crate) fn list_pending(&self) -> Vec<Arc<Approval>> {
        self.pending().values().map(|pending| Arc::clone(&pending.approval)).collect()
    }

    /// Returns the approvals of some workspaces, pending or ended, newest first.
    pub(crate) async fn list(
        &self,
        workspaces: Vec<String>,
        before: Option<String>,
        limit: u32,
    ) -> Result<Vec<Arc<Approval>>, Error> {
        let listed = self.table.list(workspaces, before, limit).await;
        let records = listed.map_err(|error| state_database_error(&error))?;

        let pending = self.pending();
        let approvals = records.into_iter().map(|record| match pending.get(&record.id) {
            Some(pending) if record.end.is_none() => Arc::clone(&pending.approval),
            _ => Arc::new(Approval::stored(self.with_lost_end(record))),
        });
        Ok(approvals.collect())
    }

    /// Starts to watch approvals. Fails without a retry delay: streams end at an unknown time.
    pub(crate) fn watch(&self, principal: &PrincipalName) -> Result<ApprovalWatch, Error> {
        let permit = self.watcher_limiter.try_acquire(principal, usize::MAX).map_err(|saturated| {
            let text = format!(
                "too many streams watch approvals (this caller: {}, other callers: {}; limit: {MAX_APPROVAL_WATCHERS}, a quarter of it reserved for callers that use little). End one, or retry when one has ended",
                saturated.in_use, saturated.in_use_by_others
            );
            Error::new(Reason::ResourceExhausted, text)
        })?;

        let pending = self.pending();
        Ok(ApprovalWatch {
            // Every change holds the same lock, so the stream misses none.
            changes: self.changes.subscribe(),
            pending: pending.values().map(|pending| Arc::clone(&pending.approval)).collect(),
            _permit: permit,
        })
    }

    /// Makes an approval visible to approvers.
    fn publish(&self, pending_approval: &Arc<PendingApproval>) {
        let mut pending = self.pending();
        let approval = Arc::clone(&pending_approval.approval);
        let id = approval.record.id.clone();
        pending.insert(id, Arc::clone(pending_approval));
        // Sending fails if there is no watcher.
        let _watchers = self.changes.send(approval);
    }

    async fn resolve(
        &self,
        pending_approval: &PendingApproval,
        resolution: ApprovalResolution,
    ) -> Result<ResolveOutcome, Error> {
        let notify = |approval: Arc<Approval>| {
            let mut pending = self.pending();
            if pending.remove(&approval.record.id).is_some() {
                let _watchers = self.changes.send(approval);
            }
        };
        pending_approval.resolve(resolution, &self.table, &self.rules, notify).await
    }

    /// Stores that approvals of the previous daemon are lost, as soon as the database can.
    async fn store_lost(&self) {
        let lost: Vec<_> = self.lost().values().cloned().collect();
        for record in lost {
            let Some(end) = record.end else { continue };
            if let Err(error) = self.table.record_end(record.id.clone(), end, None).await {
                tracing::warn!(%error, "cannot store the end of an approval yet");
                return;
            }
            self.lost().remove(&record.id);
        }
    }

    /// Returns the record with its end, even if the database could not store that yet.
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
        let cutoff = SystemTime::now().checked_sub(retention).unwrap_or(SystemTime::UNIX_EPOCH);
        if let Err(error) = self.table.apply_retention(unix_millis::from_time(cutoff)).await {
            tracing::warn!(%error, "cannot remove old approvals");
        }

        if let Err(error) = self.rules.remove_expired(cutoff).await {
            tracing::warn!(%error, "cannot remove expired rules");
        }
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<String, Arc<PendingApproval>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates the rule that allows calls similar to a pending one.
async fn always_rule(
    pending: &PendingApproval,
    pattern: Option<RulePattern>,
    expires: SystemTime,
    by: &str,
) -> Result<Rule, Error> {
    let approval = Arc::clone(&pending.approval);
    let request = Arc::clone(&pending.policy_request);

    // Compiling and matching a pattern may take long.
    let pattern = task::spawn_blocking(move || rule_pattern_for(&approval, &request, pattern))
        .await
        .map_err(Error::internal)??;

    let record = &pending.approval.record;
    Ok(Rule {
        id: ulid::Ulid::generate().to_string(),
        name: format!("always {}", record.tool),
        tool: record.tool.clone(),
        pattern: Some(pattern),
        action: PolicyAction::Allow,
        workspaces: Some([record.workspace.clone()].into()),
        created_workspaces: None,
        expires: Some(expires),
        enabled: true,
        provenance: Some(RuleProvenance {
            by: by.to_owned(),
            at: SystemTime::now(),
            approval_id: Some(record.id.clone()),
        }),
    })
}

fn already_decided_error(id: &str, approval: &Approval) -> Error {
    let Some(end) = &approval.record.end else {
        return approval_not_found_error(id);
    };

    let text = format!("this approval is already {}, by {}", end.state.name(), end.ended_by);
    Error::new(Reason::ApprovalDecided, text)
        .with_metadata("approval_id", id)
        .with_metadata("state", end.state.name())
        .with_metadata("decided_by", end.ended_by.clone())
}

fn approval_not_found_error(id: &str) -> Error {
    let text = format!("unknown approval {id:?}: ListApprovals lists the approvals");
    Error::new(Reason::ApprovalNotFound, text).with_metadata("approval_id", id)
}
