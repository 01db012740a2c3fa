//! Deletes created workspaces that have expired, and ends processes of those without calls.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{Pipeline, workspaces::OwnedWorkspace};
use crate::daemon::{store::unix_millis, task};

/// Time between two passes. The time of the last call is known to within it.
const PASS_INTERVAL: Duration = Duration::from_secs(2);
/// Time without a call after which a workspace has no sandboxes ready.
const WARM_TIME_MS: i64 = 30_000;
/// Time between two writes of the time of the last call.
const STORE_INTERVAL_MS: i64 = 60_000;

/// What a pass remembers of a workspace.
#[derive(Debug, Clone, Copy, Default)]
struct LastPass {
    finished_calls: u64,
    /// `last_used_ms` in the database.
    stored_use_ms: i64,
}

impl Pipeline {
    /// Deletes expired workspaces in the background, until the daemon drains.
    pub(crate) fn spawn_workspace_expiry(self: &Arc<Self>) {
        let (pipeline, draining) = (Arc::downgrade(self), self.shutdown.draining_token());
        task::spawn("expiry of workspaces", async move {
            let mut passes = HashMap::new();
            loop {
                tokio::select! {
                    () = draining.cancelled() => return,
                    () = sleep(PASS_INTERVAL) => {}
                }
                let Some(pipeline) = pipeline.upgrade() else { return };
                let created = pipeline.workspaces.created();
                passes.retain(|directory, _| {
                    created.iter().any(|workspace| workspace.stored().directory == *directory)
                });
                for workspace in created {
                    let last = passes.entry(workspace.stored().directory).or_default();
                    pipeline.check_expiry(&workspace, last).await;
                }
            }
        });
    }

    async fn check_expiry(self: &Arc<Self>, workspace: &Arc<OwnedWorkspace>, last: &mut LastPass) {
        let Some(creator) = &self.workspace_creator else { return };
        let context = &workspace.context;
        let now = unix_millis::now();
        let finished_calls = context.activity.finished_calls();
        let is_used = context.activity.active_calls() > 0 || finished_calls > last.finished_calls;
        last.finished_calls = finished_calls;
        let stored = workspace.change(|stored| {
            if is_used {
                stored.last_used_ms = now;
            }
        });

        let idle_ms = now.saturating_sub(stored.last_used_ms);
        let is_expired = stored.expires_ms.is_some_and(|expires| expires <= now)
            || stored.idle_timeout_ms.is_some_and(|timeout| idle_ms >= timeout);
        if is_expired {
            let (pipeline, workspace) = (Arc::clone(self), Arc::clone(workspace));
            task::spawn_tracked("deletion of a workspace", async move {
                tracing::info!(workspace = stored.name, "deleting an expired workspace");
                if let Err(error) = pipeline.delete_workspace(&workspace).await {
                    tracing::warn!(%error, workspace = stored.name, "cannot delete a workspace");
                }
            });
            return;
        }

        if idle_ms >= WARM_TIME_MS && context.sandbox_pool.has_slots() {
            context.sandbox_pool.release_unused().await;
        }
        if stored.last_used_ms.saturating_sub(last.stored_use_ms) >= STORE_INTERVAL_MS {
            // The next pass tries again.
            if creator.update(stored.clone()).await.is_ok() {
                last.stored_use_ms = stored.last_used_ms;
            }
        }
    }
}
