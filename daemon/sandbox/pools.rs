//! The sandbox pools of all workspaces, and whether sandboxes can be made at all.

use std::{
    io,
    os::fd::OwnedFd,
    process::Child,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
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
    plan::CreatedWorkspace,
    pool::{PoolContext, SandboxPool},
    protected_files::ProtectedFiles,
    recycle::WarmShellSwitch,
    stage::{Stage, StageFailure},
    wire::{KeeperRequest, PROJECT_REPLY, ProjectLimit},
};
use crate::daemon::sys::readiness;

#[derive(Debug)]
pub(crate) struct SandboxPools {
    /// The pools of the configuration's workspaces in order, then those of created ones.
    pools: RwLock<Vec<Arc<SandboxPool>>>,
    max_slots: usize,
    /// Number of the next created workspace.
    next_number: AtomicUsize,
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

        let next_number = AtomicUsize::new(workspaces.len());
        let pools = workspaces
            .into_iter()
            .enumerate()
            .map(|(index, files)| SandboxPool::new(index, None, max_slots, files, context.clone()))
            .map(Arc::new)
            .collect();
        Ok(Self {
            pools: RwLock::new(pools),
            max_slots,
            next_number,
            keeper: readiness::watch_readable(keeper.pidfd)?,
            context,
            _child: keeper.child,
        })
    }

    /// The pool of the workspace of the configuration with this index.
    pub(crate) fn pool(&self, workspace: usize) -> Option<Arc<SandboxPool>> {
        self.read().get(workspace).cloned()
    }

    /// Adds the pool of a created workspace. It has no processes yet, and no level.
    pub(crate) fn add(&self, created: CreatedWorkspace) -> Arc<SandboxPool> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let context = self.context.clone();
        let files = ProtectedFiles::default();
        let pool = SandboxPool::new(number, Some(created), self.max_slots, files, context);
        let pool = Arc::new(pool);
        self.write().push(Arc::clone(&pool));
        pool
    }

    /// Removes the pool of a created workspace, and ends its processes once no run uses them.
    pub(crate) fn remove(&self, pool: &Arc<SandboxPool>) {
        pool.close();
        self.write().retain(|other| !Arc::ptr_eq(other, pool));
    }

    /// Has the keeper limit a project. Not cancel safe.
    pub(crate) async fn limit_project(&self, limit: ProjectLimit) -> Result<(), StageFailure> {
        let keeper = self.context.keeper.lock().await;
        let request = KeeperRequest::LimitProject(limit);
        let [] = keeper.request(&request, PROJECT_REPLY, Stage::Launcher).await?;
        Ok(())
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<SandboxPool>>> {
        self.pools.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Arc<SandboxPool>>> {
        self.pools.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a pool starts or stops failing. Returns whether any pool can build sandboxes.
    ///
    /// A pool with slots counts as one that can, even if the host has no resources for another slot.
    /// Supports one caller at a time.
    pub(crate) async fn wait_for_availability_change(&self) -> bool {
        self.context.failing_changed.notified().await;
        self.read().iter().any(|pool| !pool.is_failing())
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
        self.read().iter().filter(|pool| include(pool)).map(|pool| count(pool)).sum()
    }

    /// Number of quarantined sandboxes in the pools that `include` selects.
    pub(crate) fn quarantined_count(&self, include: impl Fn(&Arc<SandboxPool>) -> bool) -> u32 {
        self.sum(include, |pool| pool.quarantined_count())
    }

    pub(crate) fn close(&self) {
        self.read().iter().for_each(|pool| pool.close());
    }
}
