//! Which job comes next. A decision, without clocks, locks or files.
//!
//! Of two jobs that wait, the one whose rank is lower comes first: the time at which it was submitted,
//! put back by [`AGEING_MS`] for each step of its priority. So whoever waits for that long is as good as one
//! of a priority higher by one that comes then, and none waits for ever; and as both grow old alike, the
//! order of two never changes while they wait.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{SystemTime, UNIX_EPOCH},
};

/// Milliseconds of waiting that count as much as one step of priority.
const AGEING_MS: i64 = 60_000;

/// A queue of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueueKey {
    /// Name of the workspace.
    pub(super) workspace: String,
    /// Name of the queue.
    pub(super) queue: String,
}

/// How many are done at a time.
#[derive(Debug, Clone)]
pub(super) struct Concurrency {
    /// Of all queues together.
    pub(super) all: u32,
    /// Of one queue, where its name is not in `named`.
    pub(super) each: u32,
    /// Of the queues of these names.
    pub(super) named: BTreeMap<String, u32>,
}

/// The queues.
#[derive(Debug)]
pub(super) struct Queues {
    concurrency: Concurrency,
    waiting: HashMap<QueueKey, BTreeSet<Place>>,
    running: HashMap<QueueKey, u32>,
    /// The first one of each queue from which one may be taken.
    heads: BTreeSet<(Place, QueueKey)>,
    waiting_count: u32,
    running_count: u32,
}

/// A place in a queue: what comes first is least.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    rank: i64,
    /// Ids are ULIDs: of two with one rank, the one that was made first comes first.
    id: String,
}

impl Place {
    fn new(id: &str, priority: i32, submitted: SystemTime) -> Self {
        let since = submitted.duration_since(UNIX_EPOCH).unwrap_or_default();
        let submitted = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        Self {
            rank: submitted.saturating_sub(i64::from(priority) * AGEING_MS),
            id: id.to_owned(),
        }
    }
}

impl Queues {
    /// Queues without jobs.
    pub(super) fn new(concurrency: Concurrency) -> Self {
        Self {
            concurrency,
            waiting: HashMap::new(),
            running: HashMap::new(),
            heads: BTreeSet::new(),
            waiting_count: 0,
            running_count: 0,
        }
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> u32 {
        self.waiting_count
    }

    /// Puts a job into a queue.
    pub(super) fn push(&mut self, key: &QueueKey, id: &str, priority: i32, submitted: SystemTime) {
        self.change(key, |queues| {
            let places = queues.waiting.entry(key.clone()).or_default();
            if places.insert(Place::new(id, priority, submitted)) {
                queues.waiting_count += 1;
            }
        });
    }

    /// Takes a job out of its queue, if it waits there.
    pub(super) fn remove(
        &mut self,
        key: &QueueKey,
        id: &str,
        priority: i32,
        submitted: SystemTime,
    ) -> bool {
        self.change(key, |queues| {
            let place = Place::new(id, priority, submitted);
            let places = queues.waiting.get_mut(key);
            let found = places.is_some_and(|places| places.remove(&place));
            queues.waiting_count -= u32::from(found);
            found
        })
    }

    /// The job whose turn it is, which counts as running from now on.
    pub(super) fn next(&mut self) -> Option<String> {
        if self.running_count >= self.concurrency.all {
            return None;
        }
        let (place, key) = self.heads.first().cloned()?;
        self.change(&key, |queues| {
            if let Some(places) = queues.waiting.get_mut(&key) {
                places.remove(&place);
            }
            *queues.running.entry(key.clone()).or_default() += 1;
            queues.waiting_count -= 1;
            queues.running_count += 1;
        });
        Some(place.id)
    }

    /// A job of this queue runs no more.
    pub(super) fn done(&mut self, key: &QueueKey) {
        self.change(key, |queues| {
            if let Some(running) = queues.running.get_mut(key) {
                *running -= 1;
                queues.running_count -= 1;
            }
        });
    }

    /// Changes a queue, and finds its head anew. What has neither waiting nor running jobs is forgotten.
    fn change<T>(&mut self, key: &QueueKey, change: impl FnOnce(&mut Self) -> T) -> T {
        if let Some(head) = self.head(key) {
            self.heads.remove(&(head, key.clone()));
        }
        let result = change(self);
        if self.waiting.get(key).is_some_and(BTreeSet::is_empty) {
            self.waiting.remove(key);
        }
        if self.running.get(key) == Some(&0) {
            self.running.remove(key);
        }
        if let Some(head) = self.head(key) {
            self.heads.insert((head, key.clone()));
        }
        result
    }

    /// The first one of a queue, if one may be taken from it.
    fn head(&self, key: &QueueKey) -> Option<Place> {
        let most = self.concurrency.named.get(&key.queue);
        let running = self.running.get(key).copied().unwrap_or_default();
        if running >= *most.unwrap_or(&self.concurrency.each) {
            return None;
        }
        self.waiting.get(key)?.first().cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(workspace: &str, queue: &str) -> QueueKey {
        QueueKey {
            workspace: workspace.to_owned(),
            queue: queue.to_owned(),
        }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
    }

    fn queues(all: u32, each: u32, named: &[(&str, u32)]) -> Queues {
        Queues::new(Concurrency {
            all,
            each,
            named: named
                .iter()
                .map(|(name, number)| ((*name).to_owned(), *number))
                .collect(),
        })
    }

    fn taken(queues: &mut Queues) -> Vec<String> {
        std::iter::from_fn(|| queues.next()).collect()
    }

    #[test]
    fn priority_comes_first_until_who_waits_has_grown_old() {
        let q = key("w", "q");
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
            queues.push(&q, "b", second.0, at(second.1));
            queues.push(&q, "a", first.0, at(first.1));
            assert_eq!(taken(&mut queues), expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn each_queue_of_each_workspace_has_its_own_concurrency() {
        let mut queues = queues(5, 2, &[("one", 1)]);
        let [a, b, one] = [key("a", "q"), key("b", "q"), key("a", "one")];
        for (number, queue) in [&a, &a, &a, &one, &one, &b, &b, &b].into_iter().enumerate() {
            let id = format!("{}{number}", queue.workspace);
            queues.push(queue, &id, 0, at(number as u64));
        }
        assert_eq!(queues.waiting(), 8);
        assert_eq!(taken(&mut queues), ["a0", "a1", "a3", "b5", "b6"]);
        assert_eq!(queues.waiting(), 3);
        queues.done(&one);
        assert_eq!(taken(&mut queues), ["a4"]);
        queues.done(&a);
        queues.done(&b);
        assert_eq!(taken(&mut queues), ["a2", "b7"]);
        for queue in [&a, &a, &one, &b, &b] {
            queues.done(queue);
        }
        assert_eq!(queues.next(), None);
        assert!(queues.waiting.is_empty() && queues.running.is_empty());
        assert!(queues.heads.is_empty());
        assert_eq!((queues.waiting_count, queues.running_count), (0, 0));
    }

    #[test]
    fn one_that_waits_can_be_taken_out() {
        let mut queues = queues(1, 1, &[]);
        let q = key("w", "q");
        queues.push(&q, "a", 0, at(0));
        queues.push(&q, "b", 0, at(1));
        assert!(queues.remove(&q, "a", 0, at(0)));
        assert!(!queues.remove(&q, "a", 0, at(0)));
        assert_eq!(taken(&mut queues), ["b"]);
        assert!(!queues.remove(&q, "b", 0, at(1)));
    }
}
