//! Decides which job starts next. Pure state: no clocks, locks or files.
//!
//! A slot is the permission to run one job. A free slot goes to the caller that has waited longest
//! since its last one, for the first of its jobs whose queue has a free slot. One caller's
//! priorities and number of jobs therefore do not delay another caller. If several callers have
//! keys, a quarter of all slots is headroom for callers that use few: a new caller finds a slot
//! even if all other jobs run for ever.
//!
//! Of two queued jobs of one caller, the one with the lower rank comes first. The rank is the
//! submission time, minus [`AGEING_MS_PER_PRIORITY_STEP`] for each step of priority. A job that has
//! waited for that long equals a new job of the next priority, so no job waits for ever. Both age
//! alike, so the order of two queued jobs never changes.

#[cfg(feature = "fleet")]
mod fleet_slots;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::UNIX_EPOCH,
};

use crate::daemon::{
    queue::Headroom,
    store::{fleet_starts::UNSETTLED_PREFIX, jobs::Job},
};

/// Waiting time that counts as much as one step of priority.
const AGEING_MS_PER_PRIORITY_STEP: i64 = 60_000;

/// The key of a queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct JobQueueKey {
    workspace: String,
    queue: String,
}

/// Limits on running jobs.
#[derive(Debug, Clone)]
pub(super) struct JobConcurrencyLimits {
    /// In all queues together.
    pub(super) total: usize,
    /// In a queue without an entry in `by_queue_name`.
    pub(super) per_queue: u32,
    /// In the queues of these names.
    pub(super) by_queue_name: BTreeMap<String, u32>,
    /// Whether there may be several callers, each of which leaves headroom for others.
    pub(super) is_shared: bool,
}

/// Jobs that the daemon has claimed from its fleet. Each has a slot, or will have one soon.
#[derive(Debug, Clone, Copy)]
#[cfg(feature = "fleet")]
pub(crate) struct ClaimedFleetJobs {
    /// In all queues.
    pub(crate) total: usize,
    /// In the queue concerned.
    pub(crate) in_queue: usize,
}

/// A job, as the queues see it.
#[derive(Debug, Clone)]
pub(super) struct JobQueueEntry {
    principal: String,
    queue: JobQueueKey,
    position: JobQueuePosition,
}

/// All queues of all workspaces.
#[derive(Debug)]
pub(super) struct JobQueues {
    concurrency: JobConcurrencyLimits,
    queues: HashMap<JobQueueKey, JobQueue>,
    flows: HashMap<String, JobFlow>,
    /// The jobs that hold a slot.
    running: HashMap<String, JobQueueEntry>,
    /// Incremented for each slot and each enqueued job.
    sequence: u64,
}

#[derive(Debug, Default)]
struct JobQueue {
    running: u32,
    /// Queued jobs, by caller.
    queued: HashMap<String, BTreeSet<JobQueuePosition>>,
}

#[derive(Debug)]
struct JobFlow {
    /// The sequence number at its last slot, or at its arrival.
    last_started: u64,
    running: usize,
    /// Its first job in each queue with a free slot.
    heads: BTreeSet<(JobQueuePosition, JobQueueKey)>,
    /// Number of queues in which it has jobs.
    queue_count: usize,
}

/// A position in a queue. The least one comes first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct JobQueuePosition {
    rank: i64,
    /// Ids are increasing ULIDs: with equal ranks, the job that was submitted first comes first.
    id: String,
    /// Whether the daemon has the job from its fleet.
    is_of_fleet: bool,
}

impl JobQueueEntry {
    pub(super) fn of(job: &Job) -> Self {
        let since_epoch = job.submitted.duration_since(UNIX_EPOCH).unwrap_or_default();
        let submitted_ms = i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX);
        Self {
            principal: job.principal.clone(),
            queue: JobQueueKey { workspace: job.workspace.clone(), queue: job.queue.clone() },
            position: JobQueuePosition {
                rank: submitted_ms
                    .saturating_sub(i64::from(job.priority) * AGEING_MS_PER_PRIORITY_STEP),
                id: job.id.clone(),
                is_of_fleet: job
                    .request_id
                    .as_ref()
                    .is_some_and(|request_id| request_id.starts_with(UNSETTLED_PREFIX)),
            },
        }
    }
}

impl JobQueues {
    pub(super) fn new(concurrency: JobConcurrencyLimits) -> Self {
        Self {
            concurrency,
            queues: HashMap::new(),
            flows: HashMap::new(),
            running: HashMap::new(),
            sequence: 0,
        }
    }

    /// Permanently reserves headroom for callers that use little.
    pub(super) fn reserve_headroom(&mut self) {
        self.concurrency.is_shared = true;
    }

    /// Adds a job to its queue. A running job loses its slot.
    pub(super) fn enqueue(&mut self, entry: &JobQueueEntry) {
        self.remove(entry);
        self.sequence += 1;
        let sequence = self.sequence;

        // A new caller queues behind those that wait already.
        let flow = self.flows.entry(entry.principal.clone());
        flow.or_insert_with(|| JobFlow {
            last_started: sequence,
            running: 0,
            heads: BTreeSet::new(),
            queue_count: 0,
        });

        self.update_queue(&entry.queue, |queues| {
            let queue = queues.queues.entry(entry.queue.clone()).or_default();
            let positions = queue.queued.entry(entry.principal.clone()).or_default();
            let is_first = positions.is_empty();
            positions.insert(entry.position.clone());
            if let Some(flow) = queues.flows.get_mut(&entry.principal) {
                flow.queue_count += usize::from(is_first);
            }
        });
    }

    /// Removes a running or queued job. Returns whether it was there.
    pub(super) fn remove(&mut self, entry: &JobQueueEntry) -> bool {
        let was_running = self.running.remove(&entry.position.id).is_some();
        let was_present = self.update_queue(&entry.queue, |queues| {
            if was_running {
                if let Some(queue) = queues.queues.get_mut(&entry.queue) {
                    queue.running -= 1;
                }
                if let Some(flow) = queues.flows.get_mut(&entry.principal) {
                    flow.running -= 1;
                }
                true
            } else {
                queues.dequeue(entry)
            }
        });

        let flow = self.flows.get(&entry.principal);
        if flow.is_some_and(|flow| flow.running == 0 && flow.queue_count == 0) {
            self.flows.remove(&entry.principal);
        }

        was_present
    }

    /// Gives a slot to the next job. `max_running` limits the running jobs of one caller.
    pub(super) fn start_next(&mut self, max_running: impl Fn(&str) -> usize) -> Option<String> {
        let total = self.concurrency.total;
        let free = total.saturating_sub(self.running.len());
        let headroom = self.headroom();
        let may_run_another = |principal: &str, flow: &JobFlow| {
            let (own, left) = (flow.running + 1, free.saturating_sub(1));
            free > 0
                && headroom.allows(own as u64, left as u64)
                && flow.running < max_running(principal)
        };

        let mut flows: Vec<_> =
            self.flows.iter().filter(|(_, flow)| !flow.heads.is_empty()).collect();
        flows.sort_unstable_by_key(|(_, flow)| flow.last_started);
        let (principal, flow) =
            flows.into_iter().find(|(principal, flow)| may_run_another(principal, flow))?;
        let (position, queue) = flow.heads.first().cloned()?;
        let entry = JobQueueEntry { principal: principal.clone(), queue, position };

        self.sequence += 1;
        let sequence = self.sequence;
        self.update_queue(&entry.queue, |queues| {
            queues.dequeue(&entry);
            if let Some(queue) = queues.queues.get_mut(&entry.queue) {
                queue.running += 1;
            }
            if let Some(flow) = queues.flows.get_mut(&entry.principal) {
                flow.running += 1;
                flow.last_started = sequence;
            }
        });

        let id = entry.position.id.clone();
        self.running.insert(id.clone(), entry);

        Some(id)
    }

    /// What each caller leaves for others.
    fn headroom(&self) -> Headroom {
        if self.concurrency.is_shared {
            Headroom::of_permits(self.concurrency.total)
        } else {
            Headroom::NONE
        }
    }

    /// Limit on the running jobs of a queue in each workspace.
    fn max_running_in(&self, queue: &str) -> u32 {
        *self.concurrency.by_queue_name.get(queue).unwrap_or(&self.concurrency.per_queue)
    }

    /// Removes a queued job. Returns whether it was there.
    fn dequeue(&mut self, entry: &JobQueueEntry) -> bool {
        let Some(queue) = self.queues.get_mut(&entry.queue) else {
            return false;
        };
        let Some(positions) = queue.queued.get_mut(&entry.principal) else {
            return false;
        };

        let was_queued = positions.remove(&entry.position);
        if positions.is_empty() {
            queue.queued.remove(&entry.principal);
            if let Some(flow) = self.flows.get_mut(&entry.principal) {
                flow.queue_count -= 1;
            }
        }

        was_queued
    }

    /// Changes a queue, and updates the first jobs in it. Removes a queue without jobs.
    fn update_queue<T>(&mut self, key: &JobQueueKey, change: impl FnOnce(&mut Self) -> T) -> T {
        for (principal, position) in self.heads_of(key) {
            if let Some(flow) = self.flows.get_mut(&principal) {
                flow.heads.remove(&(position, key.clone()));
            }
        }

        let result = change(self);
        let queue = self.queues.get(key);
        if queue.is_some_and(|queue| queue.running == 0 && queue.queued.is_empty()) {
            self.queues.remove(key);
        }

        for (principal, position) in self.heads_of(key) {
            if let Some(flow) = self.flows.get_mut(&principal) {
                flow.heads.insert((position, key.clone()));
            }
        }

        result
    }

    /// Returns the first job of each caller in a queue, if the queue has a free slot.
    fn heads_of(&self, key: &JobQueueKey) -> Vec<(String, JobQueuePosition)> {
        let max_running = self.max_running_in(&key.queue);
        let queue = self.queues.get(key).filter(|queue| queue.running < max_running);

        queue
            .into_iter()
            .flat_map(|queue| &queue.queued)
            .filter_map(|(principal, positions)| {
                Some((principal.clone(), positions.first()?.clone()))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::daemon::store::jobs::JobState;

    /// Creates a job of `CALLER:WORKSPACE/QUEUE`.
    pub(super) fn entry(owner: &str, id: &str, priority: i32, seconds: u64) -> JobQueueEntry {
        let (principal, queue) = owner.split_once(':').unwrap();
        let (workspace, queue) = queue.split_once('/').unwrap();
        JobQueueEntry::of(&Job {
            id: id.to_owned(),
            workspace: workspace.to_owned(),
            session: "default".to_owned(),
            principal: principal.to_owned(),
            request_id: None,
            dialect: String::new(),
            model_call_id: String::new(),
            tool: "run".to_owned(),
            queue: queue.to_owned(),
            priority,
            state: JobState::Queued,
            trace: String::new(),
            submitted: UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds),
            started: None,
            ended: None,
            step: None,
        })
    }

    pub(super) fn queues(total: usize, per_queue: u32, named: &[(&str, u32)]) -> JobQueues {
        JobQueues::new(JobConcurrencyLimits {
            total,
            per_queue,
            by_queue_name: named
                .iter()
                .map(|(name, number)| ((*name).to_owned(), *number))
                .collect(),
            is_shared: true,
        })
    }

    pub(super) fn start_all(queues: &mut JobQueues) -> Vec<String> {
        std::iter::from_fn(|| queues.start_next(|_| usize::MAX)).collect()
    }

    #[test]
    fn priority_wins_until_a_waiting_job_has_aged() {
        for (first, second, expected) in [
            // (priority, submitted at) of a and b.
            ((0, 0), (0, 1), ["a", "b"]),
            ((0, 0), (1, 1), ["b", "a"]),
            ((0, 0), (1, 59), ["b", "a"]),
            ((0, 0), (1, 61), ["a", "b"]),
            ((0, 0), (5, 299), ["b", "a"]),
            ((0, 0), (5, 301), ["a", "b"]),
            ((-100, 0), (100, 11_999), ["b", "a"]),
            ((-100, 0), (100, 12_001), ["a", "b"]),
        ] {
            let mut queues = queues(10, 10, &[]);
            queues.enqueue(&entry("u:w/q", "b", second.0, second.1));
            queues.enqueue(&entry("u:w/q", "a", first.0, first.1));
            assert_eq!(start_all(&mut queues), expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn each_queue_of_each_workspace_has_its_own_concurrency() {
        let mut queues = queues(6, 2, &[("one", 1)]);
        let owners = ["u:a/q", "u:a/q", "u:a/q", "u:a/one", "u:a/one", "u:b/q", "u:b/q", "u:b/q"];
        let entries: Vec<_> = (0..8)
            .map(|number| entry(owners[number], &number.to_string(), 0, number as u64))
            .collect();
        for entry in &entries {
            queues.enqueue(entry);
        }

        assert_eq!(start_all(&mut queues), ["0", "1", "3", "5", "6"]);
        queues.remove(&entries[3]);
        assert_eq!(start_all(&mut queues), ["4"]);
        queues.remove(&entries[0]);
        queues.remove(&entries[5]);
        assert_eq!(start_all(&mut queues), ["2", "7"]);
        for entry in &entries {
            queues.remove(entry);
            // Removing twice has no effect.
            queues.remove(entry);
        }

        assert_eq!(start_all(&mut queues), [""; 0]);
        assert!(queues.queues.is_empty() && queues.running.is_empty());
        assert!(queues.flows.is_empty());
    }

    #[test]
    fn callers_alternate_despite_priorities_and_queues() {
        let mut queues = queues(2, 1, &[]);
        let mut entries = Vec::new();

        // Twenty queues of one caller, and one of another caller that shares one of them.
        for number in 0..20 {
            let queued_entry =
                entry(&format!("many:w/q{number}"), &format!("m{number:02}"), 100, 0);
            queues.enqueue(&queued_entry);
            entries.push(queued_entry);
        }

        for number in 0..3 {
            let id = format!("f{number}");
            let queued_entry = entry("few:w/q0", &id, -100, 100);
            queues.enqueue(&queued_entry);
            entries.push(queued_entry);
        }

        let mut end = |id: &str| {
            let ended = entries.iter().find(|entry| entry.position.id == id);
            queues.remove(ended.unwrap());
            start_all(&mut queues)
        };
        assert_eq!(end("m19"), ["m00"], "the last slot is headroom for another caller");
        assert_eq!(end("m00"), ["f0", "m01"]);
        assert_eq!(end("f0"), ["f1"]);
        assert_eq!(end("m01"), ["m02"]);
    }

    #[test]
    fn one_caller_leaves_headroom_and_respects_its_limit() {
        let mut queues = queues(64, 4, &[]);
        for number in 0..100 {
            let owner = format!("a:w/{}", number / 4);
            queues.enqueue(&entry(&owner, &format!("a{number:03}"), 0, 0));
        }

        assert_eq!(start_all(&mut queues).len(), 48);
        for number in 0..100 {
            let owner = format!("b:w/{}", number / 4 + 50);
            queues.enqueue(&entry(&owner, &format!("b{number:03}"), 0, 0));
        }

        assert_eq!(start_all(&mut queues).len(), 1);
        queues.enqueue(&entry("c:w/c", "c", 0, 0));
        assert_eq!(start_all(&mut queues), ["c"]);
        let mut queues =
            JobQueues::new(JobConcurrencyLimits { is_shared: false, ..queues.concurrency });
        for number in 0..100 {
            queues.enqueue(&entry(&format!("a:w/{number}"), &number.to_string(), 0, 0));
        }

        assert_eq!(std::iter::from_fn(|| queues.start_next(|_| 7)).count(), 7);
        assert_eq!(start_all(&mut queues).len(), 57);
    }

    #[test]
    fn requeued_job_keeps_its_position() {
        let mut queues = queues(2, 1, &[]);
        let [first, second] = ["a", "b"].map(|id| entry("u:w/q", id, 0, 0));
        queues.enqueue(&first);
        queues.enqueue(&second);
        assert_eq!(start_all(&mut queues), ["a"]);
        queues.remove(&first);
        assert_eq!(start_all(&mut queues), ["b"]);

        queues.enqueue(&entry("u:w/q", "c", 0, 0));
        queues.enqueue(&first);
        assert_eq!(start_all(&mut queues), [""; 0]);
        queues.remove(&second);
        assert_eq!(start_all(&mut queues), ["a"]);
        queues.enqueue(&first);
        assert_eq!(start_all(&mut queues), ["a"]);
    }
}
