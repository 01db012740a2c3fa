//! The registry of started commands by id: those that run, and those that ended recently.
//!
//! An ended command's output takes memory; its result takes next to none. Output is therefore
//! dropped first. When a limit is exceeded, the caller with the most loses its oldest entry, so one
//! busy caller does not evict entries of others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::handle::ProcessHandle;
use crate::daemon::{queue::PrincipalName, task};

/// Ended commands that one workspace retains.
const MAX_ENDED_PROCESSES_PER_WORKSPACE: usize = 1024;
/// Output of ended commands held in memory, over all workspaces.
const MAX_ENDED_OUTPUT_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct ProcessRegistry {
    /// How long ended commands are retained: longer than a client needs to reconnect.
    retention: Duration,
    state: Mutex<RegistryState>,
}

#[derive(Debug, Default)]
struct RegistryState {
    /// In the order of their start.
    running: Vec<ProcessEntry>,
    /// In the order of their end.
    ended: Vec<EndedProcess>,
    /// Whether a task waits to remove the first of `ended`.
    has_expiry_task: bool,
}

#[derive(Debug)]
struct EndedProcess {
    entry: ProcessEntry,
    ended_at: Instant,
}

/// A command and its owner.
#[derive(Debug, Clone)]
pub(crate) struct ProcessEntry {
    pub(crate) workspace: String,
    pub(crate) session: String,
    /// The principal that started it.
    pub(crate) principal: PrincipalName,
    pub(crate) process: Arc<ProcessHandle>,
}

impl ProcessRegistry {
    pub(crate) fn new(retention: Duration) -> Self {
        Self { retention, state: Mutex::default() }
    }

    /// Adds a running command.
    pub(crate) fn add(&self, entry: ProcessEntry) {
        self.state().running.push(entry);
    }

    /// Returns the command with this id, if it belongs to `workspace`.
    pub(crate) fn find(&self, workspace: &str, id: &str) -> Option<ProcessEntry> {
        let state = self.state();
        let mut all = state.all();
        all.find(|entry| entry.process.info.id == id && entry.workspace == workspace).cloned()
    }

    /// Lists the commands of `workspace`, oldest first.
    pub(crate) fn list(&self, workspace: &str) -> Vec<ProcessEntry> {
        let mut entries: Vec<ProcessEntry> = {
            let state = self.state();
            state.all().filter(|entry| entry.workspace == workspace).cloned().collect()
        };
        // The ids are ULIDs, which sort by their creation time.
        entries.sort_unstable_by(|a, b| a.process.info.id.cmp(&b.process.info.id));
        entries
    }

    /// Moves a command to the ended ones, which expire.
    pub(crate) fn retire(self: &Arc<Self>, process: &Arc<ProcessHandle>) {
        let mut state = self.state();
        let Some(index) = state.running.iter().position(|entry| entry.is_process(process)) else {
            return;
        };

        let entry = state.running.remove(index);
        state.ended.push(EndedProcess { entry, ended_at: Instant::now() });
        state.evict_excess();
        if !std::mem::replace(&mut state.has_expiry_task, true) {
            task::spawn("retention of processes", Arc::clone(self).expire_ended());
        }
    }

    /// Removes ended commands as they expire, until there are none.
    async fn expire_ended(self: Arc<Self>) {
        loop {
            let wait = {
                let mut state = self.state();
                let remaining =
                    |ended: &EndedProcess| self.retention.saturating_sub(ended.ended_at.elapsed());
                state.ended.retain(|ended| !remaining(ended).is_zero());
                let Some(first) = state.ended.first() else {
                    state.has_expiry_task = false;
                    return;
                };
                remaining(first)
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Removes a command.
    pub(crate) fn remove(&self, process: &Arc<ProcessHandle>) {
        let mut state = self.state();
        state.running.retain(|entry| !entry.is_process(process));
        state.ended.retain(|ended| !ended.entry.is_process(process));
    }

    /// Removes the ended commands of a workspace that is deleted.
    pub(crate) fn remove_all_in(&self, workspace: &str) {
        self.state().ended.retain(|ended| ended.entry.workspace != workspace);
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

    /// Evicts one ended command if the workspace of the newest exceeds its limit, then drops excess
    /// output.
    fn evict_excess(&mut self) {
        let Some(newest) = self.ended.last() else {
            return;
        };

        let of_workspace: Vec<_> = self
            .ended
            .iter()
            .enumerate()
            .filter(|(_, ended)| ended.entry.workspace == newest.entry.workspace)
            .map(|(index, ended)| (index, &ended.entry.principal, 1))
            .collect();
        if of_workspace.len() > MAX_ENDED_PROCESSES_PER_WORKSPACE
            && let Some(index) = oldest_of_heaviest_principal(&of_workspace)
        {
            self.ended.remove(index);
        }
        self.drop_excess_output();
    }

    /// Drops output beyond [`MAX_ENDED_OUTPUT_BYTES`].
    fn drop_excess_output(&self) {
        let mut retained: Vec<_> = self
            .ended
            .iter()
            .enumerate()
            .map(|(index, ended)| {
                (index, &ended.entry.principal, ended.entry.process.replay_bytes())
            })
            .filter(|(_, _, bytes)| *bytes > 0)
            .collect();
        while retained.iter().map(|(_, _, bytes)| bytes).sum::<u64>() > MAX_ENDED_OUTPUT_BYTES
            && let Some(index) = oldest_of_heaviest_principal(&retained)
        {
            self.ended[index].entry.process.drop_retained_output();
            retained.retain(|(other, _, _)| *other != index);
        }
    }
}

/// Returns the index of the oldest entry of the principal with the largest total. `entries` holds an
/// index, a principal and an amount each, oldest first. Of principals with equal totals, it takes
/// the one with the oldest entry.
fn oldest_of_heaviest_principal(entries: &[(usize, &PrincipalName, u64)]) -> Option<usize> {
    let mut totals: HashMap<&PrincipalName, u64> = HashMap::new();
    for (_, principal, amount) in entries {
        *totals.entry(principal).or_default() += amount;
    }
    let total = |principal: &PrincipalName| totals.get(principal).copied();

    // `max_by_key` returns the last of equal elements, so this iterates from the newest.
    let oldest = entries.iter().rev().max_by_key(|(_, principal, _)| total(principal));
    oldest.map(|(index, _, _)| *index)
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

    fn entry(id: &str, principal: &str, workspace: &str) -> ProcessEntry {
        let info = ProcessInfo {
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
            principal: principal.into(),
            process: Arc::clone(&ProcessHandle::prepare(info, input, 2 << 20).process),
        }
    }

    /// Adds a command that ends at once, with `bytes` of output.
    fn end(registry: &Arc<ProcessRegistry>, entry: ProcessEntry, bytes: usize) {
        let process = Arc::clone(&entry.process);
        process.replay_buffer.push(StreamName::Stdout, &vec![b'x'; bytes]);
        registry.add(entry);
        registry.retire(&process);
    }

    #[tokio::test]
    async fn busiest_caller_loses_its_oldest_command() {
        let registry = Arc::new(ProcessRegistry::new(Duration::from_secs(900)));
        end(&registry, entry("mine", "key:a", "w"), 0);
        for number in 0..MAX_ENDED_PROCESSES_PER_WORKSPACE + 176 {
            let id = format!("other {number:04}");
            end(&registry, entry(&id, "key:b", "w"), 0);
        }
        end(&registry, entry("elsewhere", "key:b", "v"), 0);
        assert_eq!(registry.list("w").len(), MAX_ENDED_PROCESSES_PER_WORKSPACE);
        assert!(registry.find("w", "mine").is_some());
        assert!(registry.find("w", "other 0176").is_none());
        assert!(registry.find("w", "other 0177").is_some());
        assert!(registry.find("v", "elsewhere").is_some());
    }

    #[tokio::test]
    async fn caller_with_the_most_output_loses_its_oldest() {
        const MIB: usize = 1 << 20;
        let registry = Arc::new(ProcessRegistry::new(Duration::from_secs(900)));
        end(&registry, entry("mine", "key:a", "w"), MIB);
        for number in 0..70 {
            let id = format!("other {number:02}");
            end(&registry, entry(&id, "key:b", "w"), MIB);
        }
        let retained = |id: &str| registry.find("w", id).unwrap().process.replay_bytes();
        assert_eq!(retained("mine"), MIB as u64);
        assert_eq!((retained("other 06"), retained("other 07")), (0, MIB as u64));
    }

    #[tokio::test]
    async fn one_task_removes_expired_commands() {
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
