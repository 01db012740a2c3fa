//! Limits on pending approvals, in calls and bytes. They bound the daemon's memory, and keep one
//! busy caller from blocking the approvals of others.

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

/// Limit on the memory of all pending calls: several of the largest, with their policy texts.
const MAX_PENDING_BYTES: usize = 128 << 20;
/// One caller may use at most this many times the part of a limit that remains free.
const MAX_OWN_TO_FREE_RATIO: usize = 3;
/// Retry delay when a limit is reached. A person must decide first.
const APPROVAL_QUOTA_RETRY_AFTER: Duration = Duration::from_secs(10);

/// The usage of the limits.
#[derive(Debug, Default)]
pub(super) struct ApprovalQuota {
    usage: Mutex<ApprovalQuotaUsage>,
    /// Changes whenever a permit is released.
    freed: watch::Sender<()>,
}

/// Cause of an error that ends once another approval has ended.
#[derive(Debug, thiserror::Error)]
#[error("too many calls are pending approval")]
struct ApprovalQuotaExceeded;

#[derive(Debug, Default)]
struct ApprovalQuotaUsage {
    /// Pending calls, by workspace and principal.
    calls: HashMap<String, HashMap<String, usize>>,
    /// Bytes of pending calls, by principal.
    bytes: HashMap<String, usize>,
}

/// Permission to wait for approval. Dropping it frees the permit.
#[derive(Debug)]
pub(super) struct ApprovalPermit {
    quota: Arc<ApprovalQuota>,
    workspace: String,
    principal: String,
    held_bytes: usize,
}

impl ApprovalQuota {
    /// Subscribes to released permits.
    pub(super) fn freed(&self) -> watch::Receiver<()> {
        self.freed.subscribe()
    }

    /// Waits until a workspace has no pending call.
    pub(super) async fn wait_until_unused_in(&self, workspace: &str) {
        let mut freed = self.freed.subscribe();
        let is_unused = |_: &()| !self.lock().calls.contains_key(workspace);
        // Fails only without a sender, which `self` holds.
        let _unused = freed.wait_for(is_unused).await;
    }

    /// Whether a small call could get a permit, with `max_pending` permits in its workspace.
    pub(super) fn has_free_permit(
        &self,
        workspace: &str,
        principal: &str,
        max_pending: usize,
    ) -> bool {
        let usage = self.lock();
        let (own, all) = usage.calls(workspace, principal);
        all < max_pending && is_fair(own, 1, max_pending - all)
    }

    /// Acquires a permit for a call of `size` bytes, with `max_pending` permits in its workspace.
    pub(super) fn acquire(
        self: &Arc<Self>,
        record: &ApprovalRecord,
        size: usize,
        max_pending: usize,
    ) -> Result<ApprovalPermit, Error> {
        let (workspace, principal) = (&record.workspace, &record.principal);
        if size > MAX_PENDING_BYTES {
            let text = format!(
                "this call takes {size} bytes while it is pending approval, more than the limit of all pending calls, {MAX_PENDING_BYTES}: send a smaller request"
            );
            return Err(Error::new(Reason::ResourceExhausted, text)
                .with_metadata("limit", MAX_PENDING_BYTES.to_string()));
        }

        let mut usage = self.lock();
        let (own, all) = usage.calls(workspace, principal);
        if all >= max_pending {
            let text = format!(
                "{all} calls are pending approval in this workspace, the maximum (approvals.max_pending = {max_pending}): retry when some are decided"
            );
            return Err(quota_error(text, max_pending));
        }

        if !is_fair(own, 1, max_pending - all) {
            let text = format!(
                "{own} calls of {principal} are pending approval in this workspace, and one caller may have at most {MAX_OWN_TO_FREE_RATIO} times as many as it leaves free (approvals.max_pending = {max_pending}): retry when some are decided"
            );
            return Err(quota_error(text, max_pending));
        }

        let held_bytes: usize = usage.bytes.values().sum();
        let own = usage.bytes.get(principal).copied().unwrap_or_default();
        let free = MAX_PENDING_BYTES.saturating_sub(held_bytes);
        if size > free || !is_fair(own, size, free) {
            let text = format!(
                "pending approvals use too much memory: this call takes {size} bytes while it is pending approval, and other calls of {principal} take {own} (limit: {MAX_PENDING_BYTES}). Retry when some are decided, or send a smaller request"
            );
            return Err(quota_error(text, MAX_PENDING_BYTES));
        }

        let calls = usage.calls.entry(workspace.clone()).or_default();
        *calls.entry(principal.clone()).or_default() += 1;
        *usage.bytes.entry(principal.clone()).or_default() += size;

        Ok(ApprovalPermit {
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
    /// Returns the pending calls of a principal in a workspace, and of all principals.
    fn calls(&self, workspace: &str, principal: &str) -> (usize, usize) {
        let calls = self.calls.get(workspace);
        let all = calls.iter().flat_map(|calls| calls.values()).sum();
        let own = calls.and_then(|calls| calls.get(principal)).copied();
        (own.unwrap_or_default(), all)
    }
}

/// Whether an error says that a limit was reached, and a retry can succeed.
pub(in crate::daemon::pipeline) fn is_approval_quota_error(error: &Error) -> bool {
    let cause = error.cause.as_deref();
    cause.is_some_and(|cause| cause.is::<ApprovalQuotaExceeded>())
}

/// Whether a caller that holds `own` may take `more` of the `free` rest. A first call always may.
fn is_fair(own: usize, more: usize, free: usize) -> bool {
    let rest = free.saturating_sub(more);
    own == 0 || own.saturating_add(more) <= rest.saturating_mul(MAX_OWN_TO_FREE_RATIO)
}

fn quota_error(text: String, limit: usize) -> Error {
    Error::new(Reason::ResourceExhausted, text)
        .with_metadata("limit", limit.to_string())
        .with_retry_after(APPROVAL_QUOTA_RETRY_AFTER)
        .with_cause(ApprovalQuotaExceeded)
}

impl Drop for ApprovalPermit {
    fn drop(&mut self) {
        let mut usage = self.quota.lock();
        if let Some(calls) = usage.calls.get_mut(&self.workspace) {
            subtract(calls, &self.principal, 1);
            if calls.is_empty() {
                usage.calls.remove(&self.workspace);
            }
        }
        subtract(&mut usage.bytes, &self.principal, self.held_bytes);
        drop(usage);
        self.quota.freed.send_replace(());
    }
}

/// Subtracts `size`, and removes an entry that reaches zero.
fn subtract(usage: &mut HashMap<String, usize>, name: &str, size: usize) {
    if let Some(used) = usage.get_mut(name) {
        *used = used.saturating_sub(size);
        if *used == 0 {
            usage.remove(name);
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
    fn one_caller_leaves_permits_for_others() {
        let quota = Arc::new(ApprovalQuota::default());
        let acquire = |workspace: &str, principal: &str, max_pending| {
            quota.acquire(&record(workspace, principal), 1, max_pending)
        };
        let mut held: Vec<_> = (0..6).map(|_| acquire("w", "a", 8).unwrap()).collect();
        let error = acquire("w", "a", 8).unwrap_err();
        assert!(error.message.contains("it leaves free"), "{}", error.message);
        held.push(acquire("w", "b", 8).unwrap());
        acquire("w", "b", 8).unwrap_err();
        held.push(acquire("w", "c", 8).unwrap());
        let error = acquire("w", "d", 8).unwrap_err();
        assert!(error.message.contains("8 calls are pending"), "{}", error.message);
        held.push(acquire("other", "a", 8).unwrap());
        assert_eq!(held.len(), 9);
        held.clear();
        let usage = quota.lock();
        assert!(usage.calls.is_empty() && usage.bytes.is_empty());
        drop(usage);

        // With one permit, the first caller gets it.
        let _one = acquire("w", "a", 1).unwrap();
        acquire("w", "b", 1).unwrap_err();
    }

    #[test]
    fn rejected_caller_learns_of_a_released_permit() {
        let quota = Arc::new(ApprovalQuota::default());
        let acquire = || quota.acquire(&record("w", "a"), 1, 1);
        assert!(quota.has_free_permit("w", "a", 1));
        let held = acquire().unwrap();
        assert!(!quota.has_free_permit("w", "a", 1) && quota.has_free_permit("other", "a", 1));
        let freed = quota.freed();
        assert!(is_approval_quota_error(&acquire().unwrap_err()));
        assert!(!freed.has_changed().unwrap());
        drop(held);
        assert!(freed.has_changed().unwrap() && quota.has_free_permit("w", "a", 1));

        // A call beyond the limit can never be accepted.
        let large = quota.acquire(&record("w", "a"), MAX_PENDING_BYTES + 1, 1).unwrap_err();
        assert!(!is_approval_quota_error(&large) && large.retry_after.is_none());
    }

    #[test]
    fn pending_calls_are_limited_in_bytes() {
        let quota = Arc::new(ApprovalQuota::default());
        let acquire = |principal: &str, size| quota.acquire(&record("w", principal), size, 1000);
        acquire("a", MAX_PENDING_BYTES + 1).unwrap_err();
        let mut held = Vec::new();
        while let Ok(permit) = acquire("a", 10 << 20) {
            held.push(permit);
        }

        assert_eq!(held.len(), 9);
        held.push(acquire("b", 10 << 20).unwrap());
        held.push(acquire("c", 1).unwrap());
        acquire("d", 30 << 20).unwrap_err();
    }
}
