//! How many calls may wait, and how many bytes of them are held: so many that nobody's flood leaves no room
//! for the calls of others, nor the daemon without memory.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use crate::daemon::{
    error::{Error, Reason},
    store::approvals::ApprovalRecord,
};

/// Bytes of all calls that wait: some calls of the largest kind, as they came and as rules look at them.
const MAX_PENDING_BYTES: usize = 128 << 20;
/// One caller has at most so many times what is left for others.
const MAX_OWN_TO_FREE_RATIO: usize = 3;
/// How long a caller is told to wait where too many do: somebody must decide first.
const APPROVAL_QUOTA_RETRY_AFTER: Duration = Duration::from_secs(10);

/// What is taken.
#[derive(Debug, Default)]
pub(super) struct ApprovalQuota {
    usage: Mutex<ApprovalQuotaUsage>,
    /// Told whenever some of it is free again.
    freed: watch::Sender<()>,
}

/// That there is no place until others have left theirs.
#[derive(Debug, thiserror::Error)]
#[error("too many calls wait to be approved")]
struct ApprovalQuotaExceeded;

#[derive(Debug, Default)]
struct ApprovalQuotaUsage {
    /// Calls, by workspace and caller.
    calls: HashMap<String, HashMap<String, usize>>,
    /// Bytes, by caller.
    bytes: HashMap<String, usize>,
}

/// The right to wait.
#[derive(Debug)]
pub(super) struct ApprovalSlot {
    quota: Arc<ApprovalQuota>,
    workspace: String,
    principal: String,
    held_bytes: usize,
}

impl ApprovalQuota {
    /// Told from now on whenever a place is free again.
    pub(super) fn freed(&self) -> watch::Receiver<()> {
        self.freed.subscribe()
    }

    /// Whether there is a place for a small call, where `at_most` may wait in its workspace.
    pub(super) fn has_free_slot(&self, workspace: &str, principal: &str, at_most: usize) -> bool {
        let taken = self.lock();
        let (own, all) = taken.calls(workspace, principal);
        all < at_most && is_fair(own, 1, at_most - all)
    }

    /// Takes a place for a call that holds so many bytes, where `at_most` may wait in its workspace.
    pub(super) fn acquire(
        self: &Arc<Self>,
        record: &ApprovalRecord,
        size: usize,
        at_most: usize,
    ) -> Result<ApprovalSlot, Error> {
        let (workspace, principal) = (&record.workspace, &record.principal);
        if size > MAX_PENDING_BYTES {
            let text = format!(
                "this call takes {size} bytes while it waits to be approved, and all that wait {MAX_PENDING_BYTES}: ask for less at a time"
            );
            return Err(Error::new(Reason::ResourceExhausted, text)
                .with_metadata("limit", MAX_PENDING_BYTES.to_string()));
        }
        let mut taken = self.lock();
        let (own, all) = taken.calls(workspace, principal);
        if all >= at_most {
            let text = format!(
                "{all} calls wait to be approved in this workspace, and no more may at one time (approvals.pending): try again when some are decided"
            );
            return Err(quota_error(text, at_most));
        }
        if !is_fair(own, 1, at_most - all) {
            let text = format!(
                "{own} calls of {principal} wait to be approved in this workspace, and of the {at_most} that may at one time (approvals.pending) the rest is for others: try again when some are decided"
            );
            return Err(quota_error(text, at_most));
        }
        let held: usize = taken.bytes.values().sum();
        let own = taken.bytes.get(principal).copied().unwrap_or_default();
        let left = MAX_PENDING_BYTES.saturating_sub(held);
        if size > left || !is_fair(own, size, left) {
            let text = format!(
                "this call takes {size} bytes while it waits to be approved, calls of {principal} that wait take {own}, and all that may wait {MAX_PENDING_BYTES}: try again when some are decided, or ask for less at a time"
            );
            return Err(quota_error(text, MAX_PENDING_BYTES));
        }
        let calls = taken.calls.entry(workspace.clone()).or_default();
        *calls.entry(principal.clone()).or_default() += 1;
        *taken.bytes.entry(principal.clone()).or_default() += size;
        Ok(ApprovalSlot {
            quota: Arc::clone(self),
            workspace: workspace.clone(),
            principal: principal.clone(),
            held_bytes: size,
        })
    }

    fn lock(&self) -> MutexGuard<'_, ApprovalQuotaUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApprovalQuotaUsage {
    /// Calls of a caller that wait in a workspace, and of all.
    fn calls(&self, workspace: &str, principal: &str) -> (usize, usize) {
        let calls = self.calls.get(workspace);
        let all = calls.iter().flat_map(|calls| calls.values()).sum();
        let own = calls.and_then(|calls| calls.get(principal)).copied();
        (own.unwrap_or_default(), all)
    }
}

/// Whether a call could not be asked about as too many wait: there will be a place, as these end.
pub(in crate::daemon::pipeline) fn is_approval_quota_error(error: &Error) -> bool {
    let cause = error.cause.as_deref();
    cause.is_some_and(|cause| cause.is::<ApprovalQuotaExceeded>())
}

/// Whether who has `own` may have so much `more` of what is left. A first call always may.
fn is_fair(own: usize, more: usize, left: usize) -> bool {
    let rest = left.saturating_sub(more);
    own == 0 || own.saturating_add(more) <= rest.saturating_mul(MAX_OWN_TO_FREE_RATIO)
}

fn quota_error(text: String, limit: usize) -> Error {
    Error::new(Reason::ResourceExhausted, text)
        .with_metadata("limit", limit.to_string())
        .retry_after(APPROVAL_QUOTA_RETRY_AFTER)
        .with_cause(ApprovalQuotaExceeded)
}

impl Drop for ApprovalSlot {
    fn drop(&mut self) {
        let mut taken = self.quota.lock();
        if let Some(calls) = taken.calls.get_mut(&self.workspace) {
            subtract(calls, &self.principal, 1);
            if calls.is_empty() {
                taken.calls.remove(&self.workspace);
            }
        }
        subtract(&mut taken.bytes, &self.principal, self.held_bytes);
        drop(taken);
        self.quota.freed.send_replace(());
    }
}

/// Takes so much away, and the entry where nothing is left.
fn subtract(taken: &mut HashMap<String, usize>, name: &str, size: usize) {
    if let Some(left) = taken.get_mut(name) {
        *left = left.saturating_sub(size);
        if *left == 0 {
            taken.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(workspace: &str, principal: &str) -> ApprovalRecord {
        ApprovalRecord {
            workspace: workspace.to_owned(),
            principal: principal.to_owned(),
            ..ApprovalRecord::default()
        }
    }

    #[test]
    fn one_caller_leaves_room_for_others() {
        let places = Arc::new(ApprovalQuota::default());
        let take = |workspace: &str, principal: &str, at_most| {
            places.acquire(&record(workspace, principal), 1, at_most)
        };
        let mut held: Vec<_> = (0..6).map(|_| take("w", "a", 8).unwrap()).collect();
        let refused = take("w", "a", 8).unwrap_err();
        assert!(refused.message.contains("for others"), "{}", refused.message);
        held.push(take("w", "b", 8).unwrap());
        take("w", "b", 8).unwrap_err();
        held.push(take("w", "c", 8).unwrap());
        let refused = take("w", "d", 8).unwrap_err();
        assert!(refused.message.contains("8 calls wait"), "{}", refused.message);
        held.push(take("other", "a", 8).unwrap());
        assert_eq!(held.len(), 9);
        held.clear();
        let taken = places.lock();
        assert!(taken.calls.is_empty() && taken.bytes.is_empty());
        drop(taken);
        // Where there is one place, whoever comes first has it.
        let _one = take("w", "a", 1).unwrap();
        take("w", "b", 1).unwrap_err();
    }

    #[test]
    fn who_finds_no_place_is_told_when_there_may_be_one() {
        let places = Arc::new(ApprovalQuota::default());
        let take = || places.acquire(&record("w", "a"), 1, 1);
        assert!(places.has_free_slot("w", "a", 1));
        let held = take().unwrap();
        assert!(!places.has_free_slot("w", "a", 1) && places.has_free_slot("other", "a", 1));
        let freed = places.freed();
        assert!(is_approval_quota_error(&take().unwrap_err()));
        assert!(!freed.has_changed().unwrap());
        drop(held);
        assert!(freed.has_changed().unwrap() && places.has_free_slot("w", "a", 1));
        // There never will be one.
        let large = places.acquire(&record("w", "a"), MAX_PENDING_BYTES + 1, 1);
        let large = large.unwrap_err();
        assert!(!is_approval_quota_error(&large) && large.retry_after.is_none());
    }

    #[test]
    fn what_waits_is_bounded_in_bytes() {
        let places = Arc::new(ApprovalQuota::default());
        let take = |principal: &str, size| places.acquire(&record("w", principal), size, 1000);
        take("a", MAX_PENDING_BYTES + 1).unwrap_err();
        let mut held = Vec::new();
        while let Ok(place) = take("a", 10 << 20) {
            held.push(place);
        }
        assert_eq!(held.len(), 9);
        held.push(take("b", 10 << 20).unwrap());
        held.push(take("c", 1).unwrap());
        take("d", 30 << 20).unwrap_err();
    }
}
