//! Which job comes next. A decision, without clocks, locks or files.
//!
//! A place goes to the caller who has waited longest since he had one, and of his jobs, among the queues that
//! have room, to the first. So neither priorities nor numbers of one caller's jobs hold up those of another.
//! Where callers are told apart, a quarter of all places is left for those who have few: a job may last for
//! ever, and whoever comes next finds one.
//!
//! Of two jobs of one caller that wait, the one whose rank is lower comes first: the time at which it was
//! submitted, put back by [`AGEING_MS`] for each step of its priority. So whoever waits for that long is as
//! good as one of a priority higher by one that comes then, and none waits for ever; and as both grow old
//! alike, the order of two never changes while they wait.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::UNIX_EPOCH,
};

use crate::daemon::{queue::Headroom, store::jobs::Job};

/// Milliseconds of waiting that count as much as one step of priority.
const AGEING_MS: i64 = 60_000;

/// A queue of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct JobQueueKey {
    /// Name of the workspace.
    workspace: String,
    /// Name of the queue.
    queue: String,
}

/// How many are done at a time.
#[derive(Debug, Clone)]
pub(super) struct JobConcurrencyLimits {
    /// Of all queues together.
    pub(super) total: usize,
    /// Of one queue, where its name is not in `named`.
    pub(super) per_queue: u32,
    /// Of the queues of these names.
    pub(super) by_queue_name: BTreeMap<String, u32>,
    /// Whether there may be several callers, to whom something is left.
    pub(super) is_shared: bool,
}

/// A job, as far as its turn goes.
#[derive(Debug, Clone)]
pub(super) struct JobQueueEntry {
    principal: String,
    queue: JobQueueKey,
    position: JobQueuePosition,
}

/// The queues.
#[derive(Debug)]
pub(super) struct JobQueues {
    concurrency: JobConcurrencyLimits,
    queues: HashMap<JobQueueKey, JobQueue>,
    flows: HashMap<String, JobFlow>,
    /// The jobs that have a place.
    running: HashMap<String, JobQueueEntry>,
    /// Moves on with each turn.
    sequence: u64,
}

#[derive(Debug, Default)]
struct JobQueue {
    running: u32,
    /// By their callers.
    queued: HashMap<String, BTreeSet<JobQueuePosition>>,
}

#[derive(Debug)]
struct JobFlow {
    /// When it was his turn, or he came.
    last_started: u64,
    running: usize,
    /// The first of his jobs in each queue that has room.
    heads: BTreeSet<(JobQueuePosition, JobQueueKey)>,
    /// Queues in which he waits.
    queue_count: usize,
}

/// A place in a queue: what comes first is least.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct JobQueuePosition {
    rank: i64,
    /// Ids are ULIDs, made one after the other: of two with one rank, the one that was submitted first comes
    /// first.
    id: String,
}

impl JobQueueEntry {
    /// That of a job.
    pub(super) fn of(job: &Job) -> Self {
        let since = job.submitted.duration_since(UNIX_EPOCH).unwrap_or_default();
        let submitted = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        Self {
            principal: job.principal.clone(),
            queue: JobQueueKey { workspace: job.workspace.clone(), queue: job.queue.clone() },
            position: JobQueuePosition {
                rank: submitted.saturating_sub(i64::from(job.priority) * AGEING_MS),
                id: job.id.clone(),
            },
        }
    }
}

impl JobQueues {
    /// Queues without jobs.
    pub(super) fn new(concurrency: JobConcurrencyLimits) -> Self {
        Self {
            concurrency,
            queues: HashMap::new(),
            flows: HashMap::new(),
            running: HashMap::new(),
            sequence: 0,
        }
    }

    /// Leaves a part of the places to others from now on.
    pub(super) fn keep_headroom(&mut self) {
        self.concurrency.is_shared = true;
    }

    /// Puts a job into its queue. One that had a place has it no more.
    pub(super) fn enqueue(&mut self, entry: &JobQueueEntry) {
        self.remove(entry);
        self.sequence += 1;
        let now = self.sequence;
        // Who comes again goes behind those who have waited.
        let caller = self.flows.entry(entry.principal.clone());
        caller.or_insert_with(|| JobFlow {
            last_started: now,
            running: 0,
            heads: BTreeSet::new(),
            queue_count: 0,
        });
        self.update_queue(&entry.queue, |queues| {
            let queue = queues.queues.entry(entry.queue.clone()).or_default();
            let places = queue.queued.entry(entry.principal.clone()).or_default();
            let is_first = places.is_empty();
            places.insert(entry.position.clone());
            if let Some(caller) = queues.flows.get_mut(&entry.principal) {
                caller.queue_count += usize::from(is_first);
            }
        });
    }

    /// Takes a job out that has a place, or waits for one; answers whether it was there.
    pub(super) fn remove(&mut self, entry: &JobQueueEntry) -> bool {
        let had_place = self.running.remove(&entry.position.id).is_some();
        let was_there = self.update_queue(&entry.queue, |queues| {
            if had_place {
                if let Some(queue) = queues.queues.get_mut(&entry.queue) {
                    queue.running -= 1;
                }
                if let Some(caller) = queues.flows.get_mut(&entry.principal) {
                    caller.running -= 1;
                }
                true
            } else {
                queues.dequeue(entry)
            }
        });
        let caller = self.flows.get(&entry.principal);
        if caller.is_some_and(|caller| caller.running == 0 && caller.queue_count == 0) {
            self.flows.remove(&entry.principal);
        }
        was_there
    }

    /// The job whose turn it is, which has a place from now on. `most`: how many of one caller may have one.
    pub(super) fn start_next(&mut self, most: impl Fn(&str) -> usize) -> Option<String> {
        let all = self.concurrency.total;
        let free = all.saturating_sub(self.running.len());
        let reserve = match self.concurrency.is_shared {
            true => Headroom::of_permits(all),
            false => Headroom::NONE,
        };
        let may_have_another = |name: &str, caller: &JobFlow| {
            let (own, left) = (caller.running + 1, free.saturating_sub(1));
            free > 0 && reserve.allows(own as u64, left as u64) && caller.running < most(name)
        };
        let mut callers: Vec<_> =
            self.flows.iter().filter(|(_, caller)| !caller.heads.is_empty()).collect();
        callers.sort_unstable_by_key(|(_, caller)| caller.last_started);
        let mut callers = callers.into_iter();
        let (name, caller) = callers.find(|(name, caller)| may_have_another(name, caller))?;
        let (place, queue) = caller.heads.first().cloned()?;
        let entry = JobQueueEntry { principal: name.clone(), queue, position: place };
        self.sequence += 1;
        let now = self.sequence;
        self.update_queue(&entry.queue, |queues| {
            queues.dequeue(&entry);
            if let Some(queue) = queues.queues.get_mut(&entry.queue) {
                queue.running += 1;
            }
            if let Some(caller) = queues.flows.get_mut(&entry.principal) {
                caller.running += 1;
                caller.last_started = now;
            }
        });
        let id = entry.position.id.clone();
        self.running.insert(id.clone(), entry);
        Some(id)
    }

    /// Takes out a job that waits; answers whether it does.
    fn dequeue(&mut self, entry: &JobQueueEntry) -> bool {
        let Some(queue) = self.queues.get_mut(&entry.queue) else {
            return false;
        };
        let Some(places) = queue.queued.get_mut(&entry.principal) else {
            return false;
        };
        let waits = places.remove(&entry.position);
        if places.is_empty() {
            queue.queued.remove(&entry.principal);
            if let Some(caller) = self.flows.get_mut(&entry.principal) {
                caller.queue_count -= 1;
            }
        }
        waits
    }

    /// Changes a queue, and finds the first jobs in it anew. What has neither waiting nor running jobs is
    /// forgotten.
    fn update_queue<T>(&mut self, key: &JobQueueKey, change: impl FnOnce(&mut Self) -> T) -> T {
        for (caller, place) in self.heads_of(key) {
            if let Some(caller) = self.flows.get_mut(&caller) {
                caller.heads.remove(&(place, key.clone()));
            }
        }
        let result = change(self);
        let queue = self.queues.get(key);
        if queue.is_some_and(|queue| queue.running == 0 && queue.queued.is_empty()) {
            self.queues.remove(key);
        }
        for (caller, place) in self.heads_of(key) {
            if let Some(caller) = self.flows.get_mut(&caller) {
                caller.heads.insert((place, key.clone()));
            }
        }
        result
    }

    /// The first job of each caller in a queue, if it has room.
    fn heads_of(&self, key: &JobQueueKey) -> Vec<(String, JobQueuePosition)> {
        let most = self.concurrency.by_queue_name.get(&key.queue);
        let most = *most.unwrap_or(&self.concurrency.per_queue);
        let queue = self.queues.get(key).filter(|queue| queue.running < most);
        let waiting = queue.into_iter().flat_map(|queue| &queue.queued);
        waiting
            .filter_map(|(caller, places)| Some((caller.clone(), places.first()?.clone())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::daemon::store::jobs::JobState;

    /// A job of this caller: `CALLER:WORKSPACE/QUEUE`.
    fn entry(whose: &str, id: &str, priority: i32, seconds: u64) -> JobQueueEntry {
        let (caller, queue) = whose.split_once(':').unwrap();
        let (workspace, queue) = queue.split_once('/').unwrap();
        JobQueueEntry::of(&Job {
            id: id.to_owned(),
            workspace: workspace.to_owned(),
            session: "default".to_owned(),
            principal: caller.to_owned(),
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

    fn queues(all: usize, each: u32, named: &[(&str, u32)]) -> JobQueues {
        JobQueues::new(JobConcurrencyLimits {
            total: all,
            per_queue: each,
            by_queue_name: named
                .iter()
                .map(|(name, number)| ((*name).to_owned(), *number))
                .collect(),
            is_shared: true,
        })
    }

    fn taken(queues: &mut JobQueues) -> Vec<String> {
        std::iter::from_fn(|| queues.start_next(|_| usize::MAX)).collect()
    }

    #[test]
    fn priority_comes_first_until_who_waits_has_grown_old() {
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
            assert_eq!(taken(&mut queues), expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn each_queue_of_each_workspace_has_its_own_concurrency() {
        let mut queues = queues(6, 2, &[("one", 1)]);
        let whose = ["u:a/q", "u:a/q", "u:a/q", "u:a/one", "u:a/one", "u:b/q", "u:b/q", "u:b/q"];
        let entries: Vec<_> = (0..8)
            .map(|number| entry(whose[number], &number.to_string(), 0, number as u64))
            .collect();
        for entry in &entries {
            queues.enqueue(entry);
        }
        assert_eq!(taken(&mut queues), ["0", "1", "3", "5", "6"]);
        queues.remove(&entries[3]);
        assert_eq!(taken(&mut queues), ["4"]);
        queues.remove(&entries[0]);
        queues.remove(&entries[5]);
        assert_eq!(taken(&mut queues), ["2", "7"]);
        for entry in &entries {
            queues.remove(entry);
            // Once is enough.
            queues.remove(entry);
        }
        assert_eq!(taken(&mut queues), [""; 0]);
        assert!(queues.queues.is_empty() && queues.running.is_empty());
        assert!(queues.flows.is_empty());
    }

    #[test]
    fn callers_take_turns_whatever_their_priorities_and_queues() {
        let mut queues = queues(2, 1, &[]);
        let mut running = Vec::new();
        // Twenty queues of one caller, and one of another, in which the first one waits, too.
        for number in 0..20 {
            let waiting = entry(&format!("many:w/q{number}"), &format!("m{number:02}"), 100, 0);
            queues.enqueue(&waiting);
            running.push(waiting);
        }
        for number in 0..3 {
            let id = format!("f{number}");
            let waiting = entry("few:w/q0", &id, -100, 100);
            queues.enqueue(&waiting);
            running.push(waiting);
        }
        let mut end = |id: &str| {
            let ended = running.iter().find(|entry| entry.position.id == id);
            queues.remove(ended.unwrap());
            taken(&mut queues)
        };
        assert_eq!(end("m19"), ["m00"], "the last place is for another");
        assert_eq!(end("m00"), ["f0", "m01"]);
        assert_eq!(end("f0"), ["f1"]);
        assert_eq!(end("m01"), ["m02"]);
    }

    #[test]
    fn one_caller_does_not_get_all_places_and_no_more_than_he_may() {
        let mut queues = queues(64, 4, &[]);
        for number in 0..100 {
            let whose = format!("a:w/{}", number / 4);
            queues.enqueue(&entry(&whose, &format!("a{number:03}"), 0, 0));
        }
        assert_eq!(taken(&mut queues).len(), 48);
        for number in 0..100 {
            let whose = format!("b:w/{}", number / 4 + 50);
            queues.enqueue(&entry(&whose, &format!("b{number:03}"), 0, 0));
        }
        assert_eq!(taken(&mut queues).len(), 1);
        queues.enqueue(&entry("c:w/c", "c", 0, 0));
        assert_eq!(taken(&mut queues), ["c"]);
        let mut queues =
            JobQueues::new(JobConcurrencyLimits { is_shared: false, ..queues.concurrency });
        for number in 0..100 {
            queues.enqueue(&entry(&format!("a:w/{number}"), &number.to_string(), 0, 0));
        }
        assert_eq!(std::iter::from_fn(|| queues.start_next(|_| 7)).count(), 7);
        assert_eq!(taken(&mut queues).len(), 57);
    }

    #[test]
    fn one_that_gives_its_place_back_is_first_when_it_comes_again() {
        let mut queues = queues(2, 1, &[]);
        let [first, second] = ["a", "b"].map(|id| entry("u:w/q", id, 0, 0));
        queues.enqueue(&first);
        queues.enqueue(&second);
        assert_eq!(taken(&mut queues), ["a"]);
        queues.remove(&first);
        assert_eq!(taken(&mut queues), ["b"]);
        queues.enqueue(&entry("u:w/q", "c", 0, 0));
        queues.enqueue(&first);
        assert_eq!(taken(&mut queues), [""; 0]);
        queues.remove(&second);
        assert_eq!(taken(&mut queues), ["a"]);
        queues.enqueue(&first);
        assert_eq!(taken(&mut queues), ["a"]);
    }
}
