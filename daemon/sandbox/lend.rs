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
        let warm = self.take().await?;
        if limits.share_scratch_with(&self.context.limits) {
            return Ok(warm);
        }
        let rebuilt = warm.rebuilt(*limits).await;
        rebuilt.unwrap_or_else(|| Err(shutting_down()))
    }
}
