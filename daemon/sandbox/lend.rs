//! Whose turn it is to have a sandbox: those of one caller, which may last long, must not keep them from
//! another.

use std::sync::Arc;

use super::{
    limits::Limits,
    pool::{Pool, shutting_down},
    running::Warm,
    stage::Failure,
};
use crate::daemon::queue::{Entry, Name, Place, Share};

impl Pool {
    /// Leaves some sandboxes for others from now on: callers are told apart.
    pub(crate) fn share(&self) {
        self.places.share(Share::Reserve);
    }

    /// Takes a sandbox for a run of this caller's with these limits, waiting for his turn while all are in
    /// use. The place is to be kept until the sandbox is given back. Fails when building one fails.
    pub(crate) async fn lend(
        self: &Arc<Self>,
        caller: &Name,
        limits: &Limits,
    ) -> Result<(Warm, Place), Failure> {
        let place = match self.places.enter(caller, usize::MAX) {
            Ok(Entry::Place(place)) => place,
            Ok(Entry::Wait(mut waiting)) => waiting.place().await,
            // Any number of calls may wait: they have places among these.
            Err(_) => return Err(shutting_down()),
        };
        let warm = self.take().await?;
        if limits.share_scratch_with(&self.limits) {
            return Ok((warm, place));
        }
        let rebuilt = warm.rebuilt(*limits).await;
        let warm = rebuilt.unwrap_or_else(|| Err(shutting_down()))?;
        Ok((warm, place))
    }
}
