//! Whose turn it is to have a sandbox: those of one caller, which may last long, must not keep them from
//! another.

use std::sync::Arc;

use super::{
    limits::Limits,
    pool::{Pool, shutting_down},
    running::Warm,
    stage::Failure,
};
use crate::daemon::queue::{Queue, Share};

impl Pool {
    /// Leaves some sandboxes for others from now on: callers are told apart.
    pub(crate) fn share(&self) {
        self.places.share(Share::Reserve);
    }

    /// The places of those who have sandboxes. One is had until the sandbox is given back. Any number may
    /// wait: they have places among the calls, or the started processes.
    pub(crate) fn places(&self) -> &Arc<Queue> {
        &self.places
    }

    /// Takes a sandbox with these limits, for who has a place, waiting while it is made. Fails when building
    /// one fails.
    pub(crate) async fn lend(self: &Arc<Self>, limits: &Limits) -> Result<Warm, Failure> {
        loop {
            let mut warm = self.take().await?;
            if !limits.share_scratch_with(&self.context.limits) {
                let rebuilt = warm.rebuilt(*limits).await;
                warm = rebuilt.unwrap_or_else(|| Err(shutting_down()))?;
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
        let others = self.lent().saturating_sub(1);
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
