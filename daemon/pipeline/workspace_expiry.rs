//! Deletes created workspaces that have expired, and ends processes of those without calls.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::sleep;

use super::{Pipeline, workspace_deletion::RemovalCause, workspaces::OwnedWorkspace};
use crate::daemon::{store::unix_millis, task};

/// Time between two passes. The time of the last call is known to within it.
const PASS_INTERVAL: Duration = Duration::from_secs(2);
/// Time without a call after which a workspace has no sandboxes ready.
const WARM_TIME_MS: i64 = 30_000;
/// Time between two writes of the time of the last call.
const STORE_INTERVAL_MS: i64 = 60_000;

impl Pipeline {
    /// Deletes expired workspaces in the background, until the daemon drains.
    pub(crate) fn spawn_workspace_expiry(self: &Arc<Self>) {
        let (pipeline, draining) = (Arc::downgrade(self), self.shutdown.draining_token());
        task::spawn("expiry of workspaces", async move {
            loop {
                tokio::select! {
                    () = draining.cancelled() => return,
                    () = sleep(PASS_INTERVAL) => {}
                }
                let Some(pipeline) = pipeline.upgrade() else { return };
                pipeline.delete_expired_unserved().await;
                for workspace in pipeline.workspaces.created() {
                    pipeline.check_expiry(&workspace).await;
                }
            }
        });
    }

    async fn check_expiry(self: &Arc<Self>, workspace: &Arc<OwnedWorkspace>) {
        let Some(creator) = &self.workspace_creator else { return };
        let context = &workspace.context;
        let now = unix_millis::now();
        let finished_calls = context.activity.finished_calls();
        let seen_calls = workspace.seen_calls.swap(finished_calls, Ordering::Relaxed);
        let is_used = context.activity.active_calls() > 0 || finished_calls > seen_calls;
        let stored = workspace.change(|stored| {
            if is_used {
                stored.last_used_ms = now;
            }
        });

        let idle_ms = now.saturating_sub(stored.last_used_ms);
        let cause = if stored.expires_ms.is_some_and(|expires| expires <= now) {
            Some(RemovalCause::Expired)
        } else if stored.idle_timeout_ms.is_some_and(|timeout| idle_ms >= timeout) {
            Some(RemovalCause::Idle)
        } else {
            None
        };
        if let Some(cause) = cause {
            let (pipeline, workspace) = (Arc::clone(self), Arc::clone(workspace));
            task::spawn_tracked("deletion of a workspace", async move {
                tracing::info!(
                    workspace = stored.name,
                    cause = cause.name(),
                    "deleting an expired workspace"
                );
                let deleted = pipeline.delete_workspace(&workspace).await;
                if let Err(error) = &deleted {
                    tracing::warn!(%error, workspace = stored.name, "cannot delete a workspace");
                }
                pipeline.audit_removal(&stored, cause, deleted.as_ref().err());
            });
            return;
        }

        if idle_ms >= WARM_TIME_MS && context.sandbox_pool.has_slots() {
            context.sandbox_pool.release_unused().await;
        }
        let last_used_ms = stored.last_used_ms;
        let saved_ms = workspace.saved_use_ms.load(Ordering::Relaxed);
        let is_due = last_used_ms.saturating_sub(saved_ms) >= STORE_INTERVAL_MS;
        // After a failure, the next pass tries again.
        if is_due && creator.update(stored).await.is_ok() {
            workspace.saved_use_ms.store(last_used_ms, Ordering::Relaxed);
        }
    }
}
