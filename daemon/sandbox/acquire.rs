//! Whose turn it is to have a sandbox: those of one caller, which may last long, must not keep them from
//! another.

use std::sync::Arc;

use super::{
    limits::RunLimits,
    pool::{SandboxPool, pool_closed},
    running::IdleSandbox,
    stage::StageFailure,
};
use crate::daemon::queue::{Limiter, Sharing};

impl SandboxPool {
    /// Leaves some sandboxes for others from now on: callers are told apart.
    pub(crate) fn keep_headroom(&self) {
        self.limiter.set_sharing(Sharing::KeepHeadroom);
    }

    /// The places of those who have sandboxes. One is had until the sandbox is given back. Any number may
    /// wait: they have places among the calls, or the started processes.
    pub(crate) fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    /// Takes a sandbox with these limits, for who has a place, waiting while it is made. Fails when building
    /// one fails.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        limits: &RunLimits,
    ) -> Result<IdleSandbox, StageFailure> {
        loop {
            let mut warm = self.take_idle().await?;
            if !limits.has_same_scratch_as(&self.context.limits) {
                let rebuilt = warm.rebuild_for(*limits).await;
                warm = rebuilt.unwrap_or_else(|| Err(pool_closed()))?;
            }
            // One made before a protected file was replaced does not protect it; it ends unused.
            if !warm.level.has_namespaces() || warm.generation == self.check_protected_files() {
                return Ok(warm);
            }
        }
    }

    /// Answers the generation of protected files that a sandbox must have mounted.
    fn check_protected_files(&self) -> u64 {
        let (generation, is_new) = self.protected_files.check();
        // The sandbox that this is for is lent, too.
        let others = self.in_use_count().saturating_sub(1);
        if is_new && others > 0 {
            tracing::warn!(
                commands = others,
                remedy = "look at the protected paths, and change them while no command runs",
                "a protected path was replaced while commands ran: these can change it until they end"
            );
        }
        generation
    }
}
