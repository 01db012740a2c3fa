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

use super::handle::ProcessHandle;
use crate::daemon::{queue::PrincipalKey, task};

/// Commands of one workspace that have ended and are kept at one time.
const MAX_ENDED_PER_WORKSPACE: usize = 1024;
/// Bytes of what they wrote that are kept in memory, of all workspaces together.
const MAX_ENDED_OUTPUT_BYTES: u64 = 64 << 20;

/// The commands.
#[derive(Debug)]
pub(crate) struct ProcessRegistry {
    /// How long those that have ended are kept: longer than a client needs to come back.
    retention: Duration,
    state: Mutex<RegistryState>,
}

#[derive(Debug, Default)]
struct RegistryState {
    /// Those that run, in the order in which they were started.
    running: Vec<ProcessEntry>,
    /// Those that have ended, in the order in which they did.
    ended: Vec<EndedProcess>,
    /// Whether a task waits until the first of these has been kept for long enough.
    has_expiry_task: bool,
}

#[derive(Debug)]
struct EndedProcess {
    entry: ProcessEntry,
    ended_at: Instant,
}

/// A command and whom it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct ProcessEntry {
    /// Name of the workspace in which it runs.
    pub(crate) workspace: String,
    /// The session that it was started in.
    pub(crate) session: String,
    /// Who started it.
    pub(crate) caller: PrincipalKey,
    /// The command.
    pub(crate) process: Arc<ProcessHandle>,
}

impl ProcessRegistry {
    /// An empty one.
    pub(crate) fn new(retention: Duration) -> Self {
        Self { retention, state: Mutex::default() }
    }

    /// Adds a command.
    pub(crate) fn add(&self, entry: ProcessEntry) {
        self.state().running.push(entry);
    }

    /// The command of this id, if it belongs to `workspace`.
    pub(crate) fn find(&self, workspace: &str, id: &str) -> Option<ProcessEntry> {
        let entries = self.state();
        let mut all = entries.all();
        all.find(|entry| entry.process.info.id == id && entry.workspace == workspace).cloned()
    }

    /// The commands of `workspace`, oldest first.
    pub(crate) fn list(&self, workspace: &str) -> Vec<ProcessEntry> {
        let mut listed: Vec<ProcessEntry> = {
            let entries = self.state();
            let all = entries.all();
            all.filter(|entry| entry.workspace == workspace).cloned().collect()
        };
        // The ids are ULIDs: they sort by the time at which they were made.
        listed.sort_unstable_by(|a, b| a.process.info.id.cmp(&b.process.info.id));
        listed
    }

    /// Keeps a command that has ended for as long as such are kept.
    pub(crate) fn retire(self: &Arc<Self>, process: &Arc<ProcessHandle>) {
        let mut entries = self.state();
        let place = entries.running.iter().position(|entry| entry.is_process(process));
        let Some(place) = place else {
            return;
        };
        let entry = entries.running.remove(place);
        entries.ended.push(EndedProcess { entry, ended_at: Instant::now() });
        entries.evict_excess();
        if !std::mem::replace(&mut entries.has_expiry_task, true) {
            task::spawn("retention of processes", Arc::clone(self).expire_ended());
        }
    }

    /// Drops commands when they have been kept for long enough, as long as there are any.
    async fn expire_ended(self: Arc<Self>) {
        loop {
            let wait = {
                let mut entries = self.state();
                let left =
                    |ended: &EndedProcess| self.retention.saturating_sub(ended.ended_at.elapsed());
                entries.ended.retain(|ended| !left(ended).is_zero());
                let Some(first) = entries.ended.first() else {
                    entries.has_expiry_task = false;
                    return;
                };
                left(first)
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Drops a command.
    pub(crate) fn remove(&self, process: &Arc<ProcessHandle>) {
        let mut entries = self.state();
        entries.running.retain(|entry| !entry.is_process(process));
        entries.ended.retain(|ended| !ended.entry.is_process(process));
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RegistryState {
    fn all(&self) -> impl Iterator<Item = &ProcessEntry> {
        let ended = self.ended.iter().map(|ended| &ended.entry);
        self.running.iter().chain(ended)
    }

    /// Drops what there is no room for behind the last one that has ended.
    fn evict_excess(&mut self) {
        let Some(last) = self.ended.last() else {
            return;
        };
        let workspace = last.entry.workspace.clone();
        let ended = self.ended.iter().enumerate();
        let of_this = ended.filter(|(_, ended)| ended.entry.workspace == workspace);
        let of_this: Vec<_> =
            of_this.map(|(place, ended)| (place, &ended.entry.caller, 1)).collect();
        if of_this.len() > MAX_ENDED_PER_WORKSPACE
            && let Some(place) = oldest_of_heaviest_principal(&of_this)
        {
            self.ended.remove(place);
        }
        self.drop_excess_output();
    }

    /// Drops what commands wrote that there is no memory for.
    fn drop_excess_output(&self) {
        let ended = self.ended.iter().enumerate();
        let mut kept: Vec<_> = ended
            .map(|(place, ended)| {
                let bytes = ended.entry.process.retained_bytes();
                (place, &ended.entry.caller, bytes)
            })
            .filter(|(_, _, bytes)| *bytes > 0)
            .collect();
        while kept.iter().map(|(_, _, bytes)| bytes).sum::<u64>() > MAX_ENDED_OUTPUT_BYTES
            && let Some(place) = oldest_of_heaviest_principal(&kept)
        {
            self.ended[place].entry.process.drop_retained_output();
            kept.retain(|(other, _, _)| *other != place);
        }
    }
}

/// Where the first of that caller is who has the most, of places, those whose they are, and how much each is.
/// Of those who have as much, it is the one who has had something for longest.
fn oldest_of_heaviest_principal(kept: &[(usize, &PrincipalKey, u64)]) -> Option<usize> {
    let mut of_each: HashMap<&PrincipalKey, u64> = HashMap::new();
    for (_, caller, amount) in kept {
        *of_each.entry(caller).or_default() += amount;
    }
    let of_caller = |caller: &PrincipalKey| of_each.get(caller).copied();
    // Of those that are equal, `max_by_key` answers the last one.
    let places = kept.iter().rev();
    let oldest = places.max_by_key(|(_, caller, _)| of_caller(caller));
    oldest.map(|(place, _, _)| *place)
}

impl ProcessEntry {
    fn is_process(&self, process: &Arc<ProcessHandle>) -> bool {
        Arc::ptr_eq(&self.process, process)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::daemon::{
        process::{handle::ProcessInfo, input::InputQueue},
        store::session::StreamName,
    };

    fn entry(id: &str, caller: &str, workspace: &str) -> ProcessEntry {
        let about = ProcessInfo {
            id: id.to_owned(),
            command: String::new(),
            cwd: String::new(),
            has_terminal: false,
            ends_with_last_reader: false,
        };
        let input = InputQueue::new(Bytes::new(), true);
        ProcessEntry {
            workspace: workspace.to_owned(),
            session: String::new(),
            caller: caller.into(),
            process: Arc::clone(&ProcessHandle::prepare(about, input, 2 << 20).process),
        }
    }

    /// Adds one that ends at once, with so much that it wrote.
    fn end(registry: &Arc<ProcessRegistry>, entry: ProcessEntry, wrote: usize) {
        let process = Arc::clone(&entry.process);
        process.replay_buffer.push(StreamName::Stdout, &vec![b'x'; wrote]);
        registry.add(entry);
        registry.retire(&process);
    }

    #[tokio::test]
    async fn who_has_the_most_loses_his_oldest() {
        let registry = Arc::new(ProcessRegistry::new(Duration::from_secs(900)));
        end(&registry, entry("mine", "key:a", "w"), 0);
        for number in 0..MAX_ENDED_PER_WORKSPACE + 176 {
            let id = format!("other {number:04}");
            end(&registry, entry(&id, "key:b", "w"), 0);
        }
        end(&registry, entry("elsewhere", "key:b", "v"), 0);
        let kept = registry.list("w");
        assert_eq!(kept.len(), MAX_ENDED_PER_WORKSPACE);
        assert!(registry.find("w", "mine").is_some());
        assert!(registry.find("w", "other 0176").is_none());
        assert!(registry.find("w", "other 0177").is_some());
        assert!(registry.find("v", "elsewhere").is_some());
    }

    #[tokio::test]
    async fn who_wrote_the_most_loses_his_oldest_output() {
        const MIB: usize = 1 << 20;
        let registry = Arc::new(ProcessRegistry::new(Duration::from_secs(900)));
        end(&registry, entry("mine", "key:a", "w"), MIB);
        for number in 0..70 {
            let id = format!("other {number:02}");
            end(&registry, entry(&id, "key:b", "w"), MIB);
        }
        let kept = |id: &str| registry.find("w", id).unwrap().process.retained_bytes();
        assert_eq!(kept("mine"), MIB as u64);
        assert_eq!((kept("other 06"), kept("other 07")), (0, MIB as u64));
    }

    #[tokio::test]
    async fn one_task_drops_what_was_kept_for_long_enough() {
        let registry = Arc::new(ProcessRegistry::new(Duration::from_millis(50)));
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
