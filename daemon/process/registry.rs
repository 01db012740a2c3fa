//! The commands that calls have started, by the ids that their callers know them by: those that run,
//! and those that have ended not long ago.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::live::Process;
use crate::daemon::task;

/// Commands that have ended and are kept at one time.
const ENDED_AT_MOST: usize = 1024;
/// Bytes of what they wrote that are kept in memory, of all together.
const ENDED_BYTES: u64 = 64 << 20;

/// The commands.
#[derive(Debug)]
pub(crate) struct Registry {
    /// How long those that have ended are kept: longer than a client needs to come back.
    retention: Duration,
    entries: Mutex<Vec<Entry>>,
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
        self.entries().push(entry);
    }

    /// The command of this id, if it belongs to `workspace`.
    pub(crate) fn find(&self, workspace: &str, id: &str) -> Option<Entry> {
        let entries = self.entries();
        let found = entries
            .iter()
            .find(|entry| entry.process.about.id == id && entry.workspace == workspace);
        found.cloned()
    }

    /// The commands of `workspace`, oldest first.
    pub(crate) fn list(&self, workspace: &str) -> Vec<Entry> {
        let entries = self.entries();
        let listed = entries.iter().filter(|entry| entry.workspace == workspace);
        listed.cloned().collect()
    }

    /// Keeps a command that has ended for as long as such are kept. Older ones make room.
    pub(crate) fn ended(self: &Arc<Self>, process: Arc<Process>) {
        self.make_room();
        let registry = Arc::clone(self);
        task::spawn("retention of a process", async move {
            tokio::time::sleep(registry.retention).await;
            registry.remove(&process);
        });
    }

    /// Drops a command that never was.
    pub(crate) fn remove(&self, process: &Arc<Process>) {
        self.entries()
            .retain(|entry| !Arc::ptr_eq(&entry.process, process));
    }

    fn make_room(&self) {
        let mut entries = self.entries();
        let ended = |entry: &Entry| {
            let process = &entry.process;
            process.has_ended().then(|| process.transcript.kept_bytes())
        };
        let kept: Vec<u64> = entries.iter().filter_map(ended).collect();
        let (mut count, mut bytes) = (kept.len(), kept.into_iter().sum::<u64>());
        entries.retain(|entry| match ended(entry) {
            Some(kept) if count > ENDED_AT_MOST || bytes > ENDED_BYTES => {
                count = count.saturating_sub(1);
                bytes = bytes.saturating_sub(kept);
                false
            }
            Some(_) | None => true,
        });
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
