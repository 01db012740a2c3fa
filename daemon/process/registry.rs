//! The commands that calls have started, by the ids that their callers know them by: those that run,
//! and those that have ended not long ago.
//!
//! What a command wrote takes memory; how it ended takes next to none. So the former is dropped
//! first. Where there is no room, the caller who has the most loses his oldest: what another does costs
//! nobody what he has just ended.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::live::Process;
use crate::daemon::{queue::Name, task};

/// Commands of one workspace that have ended and are kept at one time.
const ENDED_AT_MOST: usize = 1024;
/// Bytes of what they wrote that are kept in memory, of all workspaces together.
const ENDED_BYTES: u64 = 64 << 20;

/// The commands.
#[derive(Debug)]
pub(crate) struct Registry {
    /// How long those that have ended are kept: longer than a client needs to come back.
    retention: Duration,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// Those that run, in the order in which they were started.
    running: Vec<Entry>,
    /// Those that have ended, in the order in which they did.
    ended: Vec<Ended>,
    /// Whether a task waits until the first of these has been kept for long enough.
    has_task: bool,
}

#[derive(Debug)]
struct Ended {
    entry: Entry,
    since: Instant,
}

/// A command and whom it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Name of the workspace in which it runs.
    pub(crate) workspace: String,
    /// The session that it was started in.
    pub(crate) session: String,
    /// Who started it.
    pub(crate) caller: Name,
    /// The command.
    pub(crate) process: Arc<Process>,
}

impl Registry {
    /// An empty one.
    pub(crate) fn new(retention: Duration) -> Self {
        Self { retention, entries: Mutex::default() }
    }

    /// Adds a command.
    pub(crate) fn add(&self, entry: Entry) {
        self.entries().running.push(entry);
    }

    /// The command of this id, if it belongs to `workspace`.
    pub(crate) fn find(&self, workspace: &str, id: &str) -> Option<Entry> {
        let entries = self.entries();
        let mut all = entries.all();
        all.find(|entry| entry.process.about.id == id && entry.workspace == workspace).cloned()
    }

    /// The commands of `workspace`, oldest first.
    pub(crate) fn list(&self, workspace: &str) -> Vec<Entry> {
        let mut listed: Vec<Entry> = {
            let entries = self.entries();
            let all = entries.all();
            all.filter(|entry| entry.workspace == workspace).cloned().collect()
        };
        // The ids are ULIDs: they sort by the time at which they were made.
        listed.sort_unstable_by(|a, b| a.process.about.id.cmp(&b.process.about.id));
        listed
    }

    /// Keeps a command that has ended for as long as such are kept.
    pub(crate) fn ended(self: &Arc<Self>, process: &Arc<Process>) {
        let mut entries = self.entries();
        let place = entries.running.iter().position(|entry| entry.is(process));
        let Some(place) = place else {
            return;
        };
        let entry = entries.running.remove(place);
        entries.ended.push(Ended { entry, since: Instant::now() });
        entries.make_room();
        if !std::mem::replace(&mut entries.has_task, true) {
            task::spawn("retention of processes", Arc::clone(self).retain());
        }
    }

    /// Drops commands when they have been kept for long enough, as long as there are any.
    async fn retain(self: Arc<Self>) {
        loop {
            let wait = {
                let mut entries = self.entries();
                let left = |ended: &Ended| self.retention.saturating_sub(ended.since.elapsed());
                entries.ended.retain(|ended| !left(ended).is_zero());
                let Some(first) = entries.ended.first() else {
                    entries.has_task = false;
                    return;
                };
                left(first)
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Drops a command.
    pub(crate) fn remove(&self, process: &Arc<Process>) {
        let mut entries = self.entries();
        entries.running.retain(|entry| !entry.is(process));
        entries.ended.retain(|ended| !ended.entry.is(process));
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn all(&self) -> impl Iterator<Item = &Entry> {
        let ended = self.ended.iter().map(|ended| &ended.entry);
        self.running.iter().chain(ended)
    }

    /// Drops what there is no room for behind the last one that has ended.
    fn make_room(&mut self) {
        let Some(last) = self.ended.last() else {
            return;
        };
        let workspace = last.entry.workspace.clone();
        let ended = self.ended.iter().enumerate();
        let of_this = ended.filter(|(_, ended)| ended.entry.workspace == workspace);
        let of_this: Vec<_> =
            of_this.map(|(place, ended)| (place, &ended.entry.caller, 1)).collect();
        if of_this.len() > ENDED_AT_MOST
            && let Some(place) = oldest_of_most(&of_this)
        {
            self.ended.remove(place);
        }
        self.forget_output();
    }

    /// Drops what commands wrote that there is no memory for.
    fn forget_output(&self) {
        let ended = self.ended.iter().enumerate();
        let mut kept: Vec<_> = ended
            .map(|(place, ended)| {
                let bytes = ended.entry.process.kept_bytes();
                (place, &ended.entry.caller, bytes)
            })
            .filter(|(_, _, bytes)| *bytes > 0)
            .collect();
        while kept.iter().map(|(_, _, bytes)| bytes).sum::<u64>() > ENDED_BYTES
            && let Some(place) = oldest_of_most(&kept)
        {
            self.ended[place].entry.process.forget();
            kept.retain(|(other, _, _)| *other != place);
        }
    }
}

/// Where the first of that caller is who has the most, of places, those whose they are, and how much each is.
/// Of those who have as much, it is the one who has had something for longest.
fn oldest_of_most(kept: &[(usize, &Name, u64)]) -> Option<usize> {
    let mut of_each: HashMap<&Name, u64> = HashMap::new();
    for (_, caller, amount) in kept {
        *of_each.entry(caller).or_default() += amount;
    }
    let of_caller = |caller: &Name| of_each.get(caller).copied();
    // Of those that are equal, `max_by_key` answers the last one.
    let places = kept.iter().rev();
    let oldest = places.max_by_key(|(_, caller, _)| of_caller(caller));
    oldest.map(|(place, _, _)| *place)
}

impl Entry {
    fn is(&self, process: &Arc<Process>) -> bool {
        Arc::ptr_eq(&self.process, process)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::daemon::{
        process::{input::Input, live::About},
        store::session::StreamName,
    };

    fn entry(id: &str, caller: &str, workspace: &str) -> Entry {
        let about = About {
            id: id.to_owned(),
            command: String::new(),
            cwd: String::new(),
            has_terminal: false,
            ends_alone: false,
        };
        let input = Input::new(Bytes::new(), true);
        Entry {
            workspace: workspace.to_owned(),
            session: String::new(),
            caller: caller.into(),
            process: Arc::clone(&Process::prepare(about, input, 2 << 20).process),
        }
    }

    /// Adds one that ends at once, with so much that it wrote.
    fn end(registry: &Arc<Registry>, entry: Entry, wrote: usize) {
        let process = Arc::clone(&entry.process);
        process.transcript.push(StreamName::Stdout, &vec![b'x'; wrote]);
        registry.add(entry);
        registry.ended(&process);
    }

    #[tokio::test]
    async fn who_has_the_most_loses_his_oldest() {
        let registry = Arc::new(Registry::new(Duration::from_secs(900)));
        end(&registry, entry("mine", "key:a", "w"), 0);
        for number in 0..ENDED_AT_MOST + 176 {
            let id = format!("other {number:04}");
            end(&registry, entry(&id, "key:b", "w"), 0);
        }
        end(&registry, entry("elsewhere", "key:b", "v"), 0);
        let kept = registry.list("w");
        assert_eq!(kept.len(), ENDED_AT_MOST);
        assert!(registry.find("w", "mine").is_some());
        assert!(registry.find("w", "other 0176").is_none());
        assert!(registry.find("w", "other 0177").is_some());
        assert!(registry.find("v", "elsewhere").is_some());
    }

    #[tokio::test]
    async fn who_wrote_the_most_loses_his_oldest_output() {
        const MIB: usize = 1 << 20;
        let registry = Arc::new(Registry::new(Duration::from_secs(900)));
        end(&registry, entry("mine", "key:a", "w"), MIB);
        for number in 0..70 {
            let id = format!("other {number:02}");
            end(&registry, entry(&id, "key:b", "w"), MIB);
        }
        let kept = |id: &str| registry.find("w", id).unwrap().process.kept_bytes();
        assert_eq!(kept("mine"), MIB as u64);
        assert_eq!((kept("other 06"), kept("other 07")), (0, MIB as u64));
    }

    #[tokio::test]
    async fn one_task_drops_what_was_kept_for_long_enough() {
        let registry = Arc::new(Registry::new(Duration::from_millis(50)));
        let tasks = || Arc::strong_count(&registry) - 1;
        for id in ["a", "b", "c"] {
            end(&registry, entry(id, "key:a", "w"), 0);
            assert_eq!(tasks(), 1);
        }
        while tasks() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(registry.list("w").is_empty());
        end(&registry, entry("d", "key:a", "w"), 0);
        assert_eq!(tasks(), 1);
    }
}
