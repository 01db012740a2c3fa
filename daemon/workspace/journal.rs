//! Write-ahead journal of a change of several files. After a crash, the next daemon uses it to undo
//! the change, or to finish its cleanup.
//!
//! Each change has one file in the state directory, with one line of JSON per entry. The journal is
//! not synced to disk: it protects against a crash of the daemon, not of the machine. The daemon
//! that makes the change holds a lock on the file (flock(2)), so that another daemon on the same
//! workspace does not undo it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::snapshot::FileVersion;
use crate::daemon::sys::Errno;

/// A step of a change, recorded before it is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum JournalEntry {
    /// This directory is created.
    Make(String),
    /// A new content is written beside a path.
    Put {
        /// Path of the changed file.
        path: String,
        /// Name of the new content in the same directory.
        temporary: String,
    },
    /// All new contents are complete, and are now put in place.
    Ready(Vec<JournalStep>),
    /// All new contents are in place, and the replaced files are now removed.
    Done,
}

/// The change of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalStep {
    pub(super) path: String,
    /// Name, in the same directory, of the new content before the step and of the old one after it.
    pub(super) temporary: String,
    /// The new content. `None` if the file is deleted.
    pub(super) new: Option<FileVersion>,
    /// Whether the path exists before the step.
    pub(super) replaces: bool,
}

/// The journals of a workspace's changes.
#[derive(Debug)]
pub(super) struct JournalDirectory {
    directory: PathBuf,
}

/// The journal of one change, removed when dropped: then the change is complete or undone.
#[derive(Debug)]
pub(super) struct TransactionJournal {
    file: File,
    path: PathBuf,
    keeps_file: bool,
}

/// The journal of a change that a crashed daemon has left.
#[derive(Debug)]
pub(super) struct OrphanedJournal {
    /// The complete entries.
    pub(super) entries: Vec<JournalEntry>,
    path: PathBuf,
    _lock: File,
}

impl JournalDirectory {
    /// Stores journals in `directory`, which is created if it is missing.
    pub(super) fn open(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        Ok(Self { directory })
    }

    /// Starts the journal of a change.
    pub(super) fn begin(&self) -> io::Result<TransactionJournal> {
        let path = self.directory.join(format!("{}.jsonl", Ulid::generate()));
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
        // Only a daemon that searches for orphaned journals can have opened the file.
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(TransactionJournal { file, path, keeps_file: false })
    }

    /// Returns the journals that crashed daemons have left, the oldest first.
    pub(super) fn orphaned(&self) -> io::Result<Vec<OrphanedJournal>> {
        let mut journals = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            journals.extend(OrphanedJournal::read_orphaned(entry?.path())?);
        }
        journals.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(journals)
    }
}

impl OrphanedJournal {
    /// Reads a journal. `None` if its daemon is still running.
    fn read_orphaned(path: PathBuf) -> io::Result<Option<Self>> {
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        // An incomplete line was not acted upon.
        let entries = bytes
            .split_inclusive(|byte| *byte == b'\n')
            .map_while(|line| serde_json::from_slice(line.strip_suffix(b"\n")?).ok())
            .collect();
        Ok(Some(Self { entries, path, _lock: file }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the journal, after its change was undone.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

impl TransactionJournal {
    /// Appends entries. The daemon must not do what they record unless this succeeds.
    pub(super) fn append(&mut self, entries: &[JournalEntry]) -> io::Result<()> {
        let mut lines = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut lines, entry)?;
            lines.push(b'\n');
        }
        self.file.write_all(&lines)
    }

    /// Keeps the file for the next daemon.
    pub(super) fn keep_on_drop(&mut self) {
        self.keeps_file = true;
    }
}

impl Drop for TransactionJournal {
    fn drop(&mut self) {
        if !self.keeps_file {
            // A journal that cannot be removed is found at the next start. Undoing has no effect
            // then.
            let _removed = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphaned_journal_has_all_complete_entries() {
        let directory = tempfile::tempdir().unwrap();
        let journals = JournalDirectory::open(directory.path().join("changes")).unwrap();
        let mut journal = journals.begin().unwrap();
        let entries = [
            JournalEntry::Make("a/b".to_owned()),
            JournalEntry::Put { path: "a/b/\u{e9}\n".to_owned(), temporary: "t".to_owned() },
            JournalEntry::Ready(vec![JournalStep {
                path: "a/b/c".to_owned(),
                temporary: "t".to_owned(),
                new: Some(FileVersion::read(rustix::fs::CWD, "/").unwrap()),
                replaces: true,
            }]),
            JournalEntry::Done,
        ];
        let (first, rest) = entries.split_at(1);
        journal.append(first).unwrap();
        journal.append(rest).unwrap();
        journal.file.write_all(b"{\"make\":\"x").unwrap();
        assert!(journals.orphaned().unwrap().is_empty(), "its daemon is running");
        journal.keep_on_drop();
        drop(journal);
        let mut orphaned = journals.orphaned().unwrap();
        assert_eq!(orphaned.len(), 1);
        assert_eq!(orphaned[0].entries, entries);
        orphaned.remove(0).remove().unwrap();
        assert!(journals.orphaned().unwrap().is_empty());
    }
}
