//! What a change of several files is about to do, written down before it is done: should the daemon
//! die half-way, the next one undoes it, or removes what it left.
//!
//! One file in the state directory for each change, one line of JSON for each thing that is said.
//! It needs no fsync: it is for a daemon that dies, not for a machine that does. The daemon whose
//! change it is holds a lock on it (flock(2)), so that another one on the same workspace lets it be.

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

/// Something that a change says before it does it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum JournalEntry {
    /// This directory is made.
    Make(String),
    /// A new content is written beside this path, under this name.
    Put {
        /// Path of the file that is changed.
        path: String,
        /// Name of the new content in the same directory.
        temporary: String,
    },
    /// All new contents are there: now they are put in place.
    Ready(Vec<JournalStep>),
    /// All are in place: what they have replaced is removed.
    Done,
}

/// One file of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalStep {
    /// Its path.
    pub(super) path: String,
    /// Name, in the same directory, of the new content before this step, and of the old one after
    /// it.
    pub(super) temporary: String,
    /// What comes there; none where what is there is deleted.
    pub(super) new: Option<FileVersion>,
    /// Whether anything is there before.
    pub(super) replaces: bool,
}

/// The journals of a workspace's changes.
#[derive(Debug)]
pub(super) struct JournalDirectory {
    folder: PathBuf,
}

/// The journal of one change. Removed when it is dropped: then the change is made, or undone.
#[derive(Debug)]
pub(super) struct TransactionJournal {
    file: File,
    path: PathBuf,
    is_kept: bool,
}

/// The journal of a change whose daemon has died.
#[derive(Debug)]
pub(super) struct OrphanedJournal {
    /// What it says.
    pub(super) entries: Vec<JournalEntry>,
    path: PathBuf,
    _lock: File,
}

impl JournalDirectory {
    /// Keeps journals in `folder`, made where it is missing.
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// Begins the journal of a change.
    pub(super) fn begin(&self) -> io::Result<TransactionJournal> {
        let path = self.folder.join(format!("{}.jsonl", Ulid::generate()));
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
        // Nobody else has it yet, but for who looks for what was left.
        flock(&file, FlockOperation::LockExclusive)?;
        let stays = false;
        Ok(TransactionJournal { file, path, is_kept: stays })
    }

    /// The journals that a daemon before this one has left, the oldest first.
    pub(super) fn orphaned(&self) -> io::Result<Vec<OrphanedJournal>> {
        let mut left = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            left.extend(OrphanedJournal::read_orphaned(entry?.path())?);
        }
        left.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(left)
    }
}

impl OrphanedJournal {
    /// Reads a journal, unless the daemon whose it is lives.
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
        // What was cut off was not acted upon.
        let entries = bytes
            .split_inclusive(|byte| *byte == b'\n')
            .map_while(|line| serde_json::from_slice(line.strip_suffix(b"\n")?).ok())
            .collect();
        Ok(Some(Self { entries, path, _lock: file }))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it: there is nothing left to do.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

impl TransactionJournal {
    /// Says something. It must succeed before any of it is done.
    pub(super) fn append(&mut self, entries: &[JournalEntry]) -> io::Result<()> {
        let mut lines = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut lines, entry)?;
            lines.push(b'\n');
        }
        self.file.write_all(&lines)
    }

    /// Has it stay for the next daemon.
    pub(super) fn keep_on_drop(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for TransactionJournal {
    fn drop(&mut self) {
        if !self.is_kept {
            // One that cannot be removed is found at the next start, and has nothing left to do.
            let _removed = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_found_but_for_what_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let journals = JournalDirectory::open(folder.path().join("changes")).unwrap();
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
        assert!(journals.orphaned().unwrap().is_empty(), "its daemon lives");
        journal.keep_on_drop();
        drop(journal);
        let mut left = journals.orphaned().unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].entries, entries);
        left.remove(0).remove().unwrap();
        assert!(journals.orphaned().unwrap().is_empty());
    }
}
