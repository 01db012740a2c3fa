//! Changes that are reported together, in bounded memory.

use crate::daemon::workspace::metadata::FileKind;

/// Bytes of the paths of one batch, before it becomes a rescan. The last path may exceed it.
const MAX_BATCH_PATH_BYTES: usize = 1 << 20;
/// Changes of one batch.
const MAX_BATCH_CHANGES: usize = 8192;

/// A change of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntryChange {
    pub(crate) kind: EntryChangeKind,
    /// Path of the entry, relative to the workspace.
    pub(crate) path: String,
    /// Type of the entry. Of a deleted one, only a directory is known.
    pub(crate) file_kind: FileKind,
}

/// What happened to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryChangeKind {
    Created,
    Changed,
    Deleted,
    /// The directory must be listed again.
    Rescan,
}

/// Changes in their order.
#[derive(Debug, Default)]
pub(crate) struct ChangeBatch {
    pub(crate) changes: Vec<EntryChange>,
    /// Changed entries that have no path in the contract.
    pub(crate) skipped_names: u32,
    /// Whether the kernel has more events.
    pub(crate) has_more: bool,
    path_bytes: usize,
    /// Whether a change was not added.
    pub(super) is_full: bool,
}

impl ChangeBatch {
    /// Adds a change, unless the batch is full.
    pub(super) fn push(&mut self, kind: EntryChangeKind, path: &[u8], file_kind: FileKind) {
        if self.changes.len() >= MAX_BATCH_CHANGES || self.path_bytes >= MAX_BATCH_PATH_BYTES {
            self.is_full = true;
            return;
        }
        // The filter has excluded other names, so nothing is lost.
        let path = String::from_utf8_lossy(path).into_owned();
        self.path_bytes += path.len();
        self.changes.push(EntryChange { kind, path, file_kind });
    }

    pub(super) fn skip(&mut self) {
        self.skipped_names = self.skipped_names.saturating_add(1);
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Replaces the changes from `start` on by one that stands for everything below `path`.
    pub(super) fn replace_by_rescan(&mut self, start: usize, path: &[u8]) {
        let replaced = self.changes.drain(start..);
        self.path_bytes -= replaced.map(|change| change.path.len()).sum::<usize>();
        let path = String::from_utf8_lossy(path).into_owned();
        let path = if path.is_empty() { ".".to_owned() } else { path };
        self.path_bytes += path.len();
        let file_kind = FileKind::Directory;
        self.changes.push(EntryChange { kind: EntryChangeKind::Rescan, path, file_kind });
        self.is_full = false;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.skipped_names == 0
    }
}
