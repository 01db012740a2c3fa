//! The commands that calls have started, by the ids that their callers know them by: those that run,
//! and those that have ended not long ago.
//!
//! What a command wrote takes memory; how it ended takes next to none. So the former is dropped
//! first, of those that ended longest ago.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::live::Process;
use crate::daemon::task;

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
    ended: Vec<Entry>,
}

/// A command and whom it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Name of the workspace in which it runs.
    pub(crate) workspace: String,
    /// The session that it was started in.
    pub(crate) session: String,
    /// The command.
    pub(crate) process: Arc<Process>,
}

impl Registry {
    /// An empty one.
    pub(crate) fn new(retention: Duration) -> Self {
        Self {
            retention,
            entries: Mutex::default(),
        }
    }

    /// Adds a command.
    pub(crate) fn add(&self, entry: Entry) {
        self.entries().running.push(entry);
    }

    /// The command of this id, if it belongs to `workspace`.
    pub(crate) fn find(&self, workspace: &str, id: &str) -> Option<Entry> {
        let entries = self.entries();
        let mut all = entries.running.iter().chain(&entries.ended);
        all.find(|entry| entry.process.about.id == id && entry.workspace == workspace)
            .cloned()
    }

    /// The commands of `workspace`, oldest first.
    pub(crate) fn list(&self, workspace: &str) -> Vec<Entry> {
        let mut listed: Vec<Entry> = {
            let entries = self.entries();
            let all = entries.running.iter().chain(&entries.ended);
            all.filter(|entry| entry.workspace == workspace)
                .cloned()
                .collect()
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
        entries.ended.push(entry);
        entries.make_room();
        drop(entries);
        let registry = Arc::clone(self);
        // It must not keep what was dropped meanwhile.
        let process = Arc::downgrade(process);
        task::spawn("retention of a process", async move {
            tokio::time::sleep(registry.retention).await;
            if let Some(process) = process.upgrade() {
                registry.remove(&process);
            }
        });
    }

    /// Drops a command.
    pub(crate) fn remove(&self, process: &Arc<Process>) {
        let mut entries = self.entries();
        entries.running.retain(|entry| !entry.is(process));
        entries.ended.retain(|entry| !entry.is(process));
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// Drops what there is no room for behind the last one that has ended.
    fn make_room(&mut self) {
        let Some(last) = self.ended.last() else {
            return;
        };
        let workspace = last.workspace.clone();
        let of_this = |entry: &&Entry| entry.workspace == workspace;
        if self.ended.iter().filter(of_this).count() > ENDED_AT_MOST
            && let Some(first) = self.ended.iter().position(|entry| of_this(&entry))
        {
            self.ended.remove(first);
        }
        let mut bytes: u64 = self
            .ended
            .iter()
            .map(|entry| entry.process.kept_bytes())
            .sum();
        for entry in &self.ended {
            if bytes <= ENDED_BYTES {
                break;
            }
            bytes -= entry.process.kept_bytes();
            entry.process.forget();
        }
    }
}

impl Entry {
    fn is(&self, process: &Arc<Process>) -> bool {
        Arc::ptr_eq(&self.process, process)
    }
}
