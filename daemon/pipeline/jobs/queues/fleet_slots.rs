//! Slots for the jobs that a daemon has from its fleet: it claims no more than would begin now.

use super::{ClaimedFleetJobs, JobQueueEntry, JobQueues};

impl JobQueues {
    /// Returns how many jobs of the fleet would begin now in a queue of these workspaces, beside those
    /// that are `claimed`. All may be of one caller, which leaves headroom for others.
    pub(in crate::daemon::pipeline::jobs) fn free_fleet_slots(
        &self,
        queue: &str,
        workspaces: &[String],
        claimed: ClaimedFleetJobs,
    ) -> usize {
        let own_jobs = || self.running.values().filter(|entry| !entry.position.is_of_fleet);
        let total = self.concurrency.total;
        let free = total.saturating_sub(own_jobs().count() + claimed.total);
        let headroom = self.headroom();
        let may_take = |more: usize| {
            more == 0 || headroom.allows((claimed.total + more) as u64, (free - more) as u64)
        };
        let free = (0..=free).rev().find(|more| may_take(*more)).unwrap_or_default();

        let max_running = self.max_running_in(queue) as usize;
        let of_workspace = |workspace: &String| {
            let is_here = |entry: &&JobQueueEntry| {
                entry.queue.queue == queue && entry.queue.workspace == *workspace
            };
            max_running.saturating_sub(own_jobs().filter(is_here).count())
        };
        let of_queue: usize = workspaces.iter().map(of_workspace).sum();
        free.min(of_queue.saturating_sub(claimed.in_queue))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{entry, queues, start_all},
        *,
    };

    #[test]
    fn jobs_of_the_fleet_get_the_slots_that_others_leave() {
        let mut queues = queues(8, 4, &[]);
        queues.concurrency.is_shared = false;
        let workspaces = ["w", "v"].map(str::to_owned);
        let free = |queues: &JobQueues, queue: &str, total, in_queue| {
            queues.free_fleet_slots(queue, &workspaces, ClaimedFleetJobs { total, in_queue })
        };
        assert_eq!(free(&queues, "q", 0, 0), 8);
        assert_eq!([free(&queues, "q", 3, 1), free(&queues, "q", 8, 8)], [5, 0]);

        // Two jobs of the queue, one of another, and one of the fleet, which is among the claimed ones.
        for (id, owner) in ["u:w/q", "u:w/q", "u:w/other", "u:w/q"].iter().enumerate() {
            let mut entry = entry(owner, &id.to_string(), 0, 0);
            entry.position.is_of_fleet = id == 3;
            queues.enqueue(&entry);
        }
        assert_eq!(start_all(&mut queues).len(), 4);
        assert_eq!([free(&queues, "q", 1, 1), free(&queues, "other", 1, 0)], [4, 4]);
        assert_eq!([free(&queues, "q", 2, 2), free(&queues, "q", 9, 9)], [3, 0]);

        // A quarter is for other callers: two of eight slots.
        queues.reserve_headroom();
        assert_eq!([free(&queues, "q", 1, 1), free(&queues, "q", 3, 3)], [2, 0]);
        // One that has none gets one of them.
        for owner in ["a", "b", "c"] {
            queues.enqueue(&entry(&format!("{owner}:w/more"), owner, 0, 0));
        }
        assert_eq!(start_all(&mut queues).len(), 3);
        assert_eq!([free(&queues, "q", 0, 0), free(&queues, "q", 1, 1)], [1, 0]);
    }
}
