//! The sandbox pools of all workspaces, and whether sandboxes can be made at all.

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
    recycle::WarmShellSwitch,
};
use crate::daemon::sys::readiness;

#[derive(Debug)]
pub(crate) struct SandboxPools {
    pools: Vec<Arc<SandboxPool>>,
    keeper: AsyncFd<OwnedFd>,
    context: PoolContext,
    // Never waited for: the keeper ends when the daemon does.
    _child: Child,
}

// === impl SandboxPools ===

impl SandboxPools {
    /// Takes over the keeper and makes the pools of the workspaces, each with at most `max_slots`
    /// runs at a time.
    pub(crate) fn new(
        keeper: KeeperProcess,
        workspaces: Vec<ProtectedFiles>,
        max_slots: usize,
        limits: RunLimits,
        recycle: bool,
        warm_shells: bool,
        cgroups: Option<Arc<Cgroups>>,
    ) -> io::Result<Self> {
        let context = PoolContext {
            keeper: Arc::new(AsyncMutex::new(Channel::new(keeper.socket)?)),
            keeper_died: Arc::new(AtomicBool::new(false)),
            failing_changed: Arc::new(Notify::new()),
            build_counts: Arc::default(),
            limits,
            recycle,
            warm_shells: Arc::new(WarmShellSwitch::new(warm_shells)),
            cgroups,
        };

        let pools = workspaces
            .into_iter()
            .enumerate()
            .map(|(index, files)| SandboxPool::new(index, max_slots, files, context.clone()))
            .map(Arc::new)
            .collect();
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

    /// Waits until a pool starts or stops failing. Returns whether any pool can build sandboxes.
    ///
    /// A pool with slots counts as one that can, even if the host has no resources for another slot.
    /// Supports one caller at a time.
    pub(crate) async fn wait_for_availability_change(&self) -> bool {
        self.context.failing_changed.notified().await;
        self.pools.iter().any(|pool| !pool.is_failing())
    }

    /// Waits until the keeper has died. The daemon must then be restarted.
    pub(crate) async fn keeper_died(&self) {
        if self.keeper.readable().await.is_err() {
            std::future::pending().await
        }
        self.context.keeper_died.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_keeper_dead(&self) -> bool {
        self.context.keeper_died.load(Ordering::Relaxed)
    }

    /// Numbers of sandboxes that all pools have made ready: built in new slots, built in reused ones,
    /// recycled, and recycled with a warm shell.
    pub(crate) fn build_counts(&self) -> [u64; 4] {
        let counts = &self.context.build_counts;
        [
            counts.in_new_slots(),
            counts.in_reused_slots(),
            counts.recycled(),
            counts.with_warm_shell(),
        ]
    }

    /// Number of idle sandboxes in the pools that `include` selects.
    pub(crate) fn idle_count(&self, include: impl Fn(&Arc<SandboxPool>) -> bool) -> u32 {
        self.sum(include, |pool| pool.idle_count())
    }

    /// Number of sandboxes in use in the pools that `include` selects.
    pub(crate) fn in_use_count(&self, include: impl Fn(&Arc<SandboxPool>) -> bool) -> u32 {
        self.sum(include, |pool| pool.in_use_count())
    }

    fn sum(
        &self,
        include: impl Fn(&Arc<SandboxPool>) -> bool,
        count: impl Fn(&SandboxPool) -> u32,
    ) -> u32 {
        self.pools.iter().filter(|pool| include(pool)).map(|pool| count(pool)).sum()
    }

    /// Number of quarantined sandboxes in the pools that `include` selects.
    pub(crate) fn quarantined_count(&self, include: impl Fn(&Arc<SandboxPool>) -> bool) -> u32 {
        self.sum(include, |pool| pool.quarantined_count())
    }

    pub(crate) fn close(&self) {
        for pool in &self.pools {
            pool.close();
        }
    }
}
