//! Slots for the jobs that a daemon has from its fleet.

use tokio::sync::watch;

use super::{JobRegistry, queues::ClaimedFleetJobs};

impl JobRegistry {
    /// Returns how many jobs of the fleet would begin now in a queue of these workspaces, beside those
    /// that are `claimed`.
    pub(crate) fn free_fleet_slots(
        &self,
        queue: &str,
        workspaces: &[String],
        claimed: ClaimedFleetJobs,
    ) -> usize {
        self.state().queues.free_fleet_slots(queue, workspaces, claimed)
    }

    /// Notified when the free slots may have changed.
    pub(crate) fn watch_slots(&self) -> watch::Receiver<()> {
        self.slots.subscribe()
    }
}
