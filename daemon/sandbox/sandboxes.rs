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
    launch::KeeperProcess,
    limits::Limits,
    pool::{Pool, PoolContext},
    protected_files::ProtectedFiles,
};
use crate::daemon::sys::readiness;

/// All sandboxes.
#[derive(Debug)]
pub(crate) struct Sandboxes {
    pools: Vec<Arc<Pool>>,
    keeper: AsyncFd<OwnedFd>,
    context: PoolContext,
    // It outlives the daemon's wish to wait for it: it ends when the daemon does.
    _child: Child,
}

// === impl Sandboxes ===

impl Sandboxes {
    /// Takes over the keeper and starts filling the pools of the workspaces, each with at
    /// most `slots_at_most` runs at a time.
    pub(crate) fn new(
        keeper: KeeperProcess,
        workspaces: Vec<ProtectedFiles>,
        slots_at_most: usize,
        limits: Limits,
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
            let pool = Pool::new(workspace, slots_at_most, protected_files, context.clone());
            Arc::new(pool)
        });
        let pools: Vec<_> = pools.collect();
        Ok(Self { pools, keeper: readiness::watch(keeper.pidfd)?, context, _child: keeper.child })
    }

    /// The pool of the workspace with this index.
    pub(crate) fn pool(&self, workspace: usize) -> Option<&Arc<Pool>> {
        self.pools.get(workspace)
    }

    /// Waits until a workspace begins or ceases to lack sandboxes because none can be made. Returns whether
    /// any workspace has some. One that has used up what the host gives still has its own. For one caller.
    pub(crate) async fn can_run_changed(&self) -> bool {
        self.context.failing_changed.notified().await;
        self.pools.iter().any(|pool| !pool.is_failing())
    }

    /// Waits until the keeper has died: then no more sandboxes can be made, and the daemon must be
    /// restarted.
    pub(crate) async fn keeper_gone(&self) {
        if self.keeper.readable().await.is_err() {
            std::future::pending().await
        }
        self.context.keeper_died.store(true, Ordering::Relaxed);
    }

    /// Whether nothing can be made any more.
    pub(crate) fn are_lost(&self) -> bool {
        self.context.keeper_died.load(Ordering::Relaxed)
    }

    /// Sandboxes that wait for a request.
    pub(crate) fn warm(&self, seen: impl Fn(&Arc<Pool>) -> bool) -> u32 {
        self.sum(seen, |pool| pool.warm())
    }

    /// Sandboxes with a command in them.
    pub(crate) fn lent(&self, seen: impl Fn(&Arc<Pool>) -> bool) -> u32 {
        self.sum(seen, |pool| pool.lent())
    }

    fn sum(&self, seen: impl Fn(&Arc<Pool>) -> bool, of_pool: impl Fn(&Pool) -> u32) -> u32 {
        let pools = self.pools.iter().filter(|pool| seen(pool));
        pools.map(|pool| of_pool(pool)).sum()
    }

    /// Sandboxes that are set aside.
    pub(crate) fn quarantined(&self, seen: impl Fn(&Arc<Pool>) -> bool) -> u32 {
        self.sum(seen, |pool| pool.quarantined())
    }

    /// Ends all slots that wait for a request.
    pub(crate) fn close(&self) {
        for pool in &self.pools {
            pool.close();
        }
    }
}
