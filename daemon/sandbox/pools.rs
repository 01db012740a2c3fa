//! The pools of all workspaces, and whether sandboxes can be made at all.

use std::{
    io,
    os::fd::OwnedFd,
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::unix::AsyncFd,
    sync::{Mutex as AsyncMutex, Notify},
};

use super::{
    cgroup::Cgroups,
    channel::Channel,
    keeper_process::KeeperProcess,
    limits::RunLimits,
    pool::{PoolContext, SandboxPool},
    protected_files::ProtectedFiles,
};
use crate::daemon::sys::readiness;

/// All sandboxes.
#[derive(Debug)]
pub(crate) struct SandboxPools {
    pools: Vec<Arc<SandboxPool>>,
    keeper: AsyncFd<OwnedFd>,
    context: PoolContext,
    // It outlives the daemon's wish to wait for it: it ends when the daemon does.
    _child: Child,
}

// === impl Sandboxes ===

impl SandboxPools {
    /// Takes over the keeper and starts filling the pools of the workspaces, each with at
    /// most `slots_at_most` runs at a time.
    pub(crate) fn new(
        keeper: KeeperProcess,
        workspaces: Vec<ProtectedFiles>,
        slots_at_most: usize,
        limits: RunLimits,
        cgroups: Option<Arc<Cgroups>>,
    ) -> io::Result<Self> {
        let context = PoolContext {
            keeper: Arc::new(AsyncMutex::new(Channel::new(keeper.socket)?)),
            keeper_died: Arc::new(AtomicBool::new(false)),
            failing_changed: Arc::new(Notify::new()),
            limits,
            cgroups,
        };
        let pools = workspaces.into_iter().enumerate();
        let pools = pools.map(|(workspace, protected_files)| {
            let pool = SandboxPool::new(workspace, slots_at_most, protected_files, context.clone());
            Arc::new(pool)
        });
        let pools: Vec<_> = pools.collect();
        Ok(Self {
            pools,
            keeper: readiness::watch_readable(keeper.pidfd)?,
            context,
            _child: keeper.child,
        })
    }

    /// The pool of the workspace with this index.
    pub(crate) fn pool(&self, workspace: usize) -> Option<&Arc<SandboxPool>> {
        self.pools.get(workspace)
    }

    /// Waits until a workspace begins or ceases to lack sandboxes because none can be made. Returns whether
    /// any workspace has some. One that has used up what the host gives still has its own. For one caller.
    pub(crate) async fn availability_changed(&self) -> bool {
        self.context.failing_changed.notified().await;
        self.pools.iter().any(|pool| !pool.is_failing())
    }

    /// Waits until the keeper has died: then no more sandboxes can be made, and the daemon must be
    /// restarted.
    pub(crate) async fn keeper_died(&self) {
        if self.keeper.readable().await.is_err() {
            std::future::pending().await
        }
        self.context.keeper_died.store(true, Ordering::Relaxed);
    }

    /// Whether nothing can be made any more.
    pub(crate) fn is_keeper_dead(&self) -> bool {
        self.context.keeper_died.load(Ordering::Relaxed)
    }

    /// Sandboxes that wait for a request.
    pub(crate) fn idle_count(&self, seen: impl Fn(&Arc<SandboxPool>) -> bool) -> u32 {
        self.sum(seen, |pool| pool.idle_count())
    }

    /// Sandboxes with a command in them.
    pub(crate) fn in_use_count(&self, seen: impl Fn(&Arc<SandboxPool>) -> bool) -> u32 {
        self.sum(seen, |pool| pool.in_use_count())
    }

    fn sum(
        &self,
        seen: impl Fn(&Arc<SandboxPool>) -> bool,
        of_pool: impl Fn(&SandboxPool) -> u32,
    ) -> u32 {
        let pools = self.pools.iter().filter(|pool| seen(pool));
        pools.map(|pool| of_pool(pool)).sum()
    }

    /// Sandboxes that are set aside.
    pub(crate) fn quarantined_count(&self, seen: impl Fn(&Arc<SandboxPool>) -> bool) -> u32 {
        self.sum(seen, |pool| pool.quarantined_count())
    }

    /// Ends all slots that wait for a request.
    pub(crate) fn close(&self) {
        for pool in &self.pools {
            pool.close();
        }
    }
}
