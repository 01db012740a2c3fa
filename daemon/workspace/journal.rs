//! What a change of several files is about to do, written down before it is done: should the daemon
//! die half-way, the next one undoes it, or removes what it left.
//!
//! One file in the state directory for each change, one line of JSON for each thing that is said.
//! It needs no fsync: it is for a daemon that dies, not for a machine that does.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use ulid::Ulid;

/// Something that a change says before it does it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
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
    Ready(Vec<Step>),
    /// All are in place: what they have replaced is removed.
    Done,
}

/// One file of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Step {
    /// Its path.
    pub(super) path: String,
    /// Name, in the same directory, of the new content before this step, and of the old one after
    /// it.
    pub(super) temporary: String,
    /// Device and inode of the new content; none where the file is deleted.
    pub(super) new: Option<(u64, u64)>,
    /// Whether there is an old content.
    pub(super) replaces: bool,
}

/// The journals of a workspace's changes.
#[derive(Debug)]
pub(super) struct Journals {
    folder: PathBuf,
}

/// The journal of one change. Removed when it is dropped: then the change is made, or undone.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    path: PathBuf,
}

impl Journals {
    /// Keeps journals in `folder`, made where it is missing.
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// Begins the journal of a change.
    pub(super) fn begin(&self) -> io::Result<Journal> {
        let path = self.folder.join(format!("{}.jsonl", Ulid::generate()));
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Journal { file, path })
    }

    /// The journals that a daemon before this one has left, each with its path.
    pub(super) fn left(&self) -> io::Result<Vec<(PathBuf, Vec<Entry>)>> {
        let mut left = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let entries = read(&path)?;
            left.push((path, entries));
        }
        left.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(left)
    }
}

/// The entries of a journal. One that was cut off was not acted upon.
fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let bytes = fs::read(path)?;
    Ok(bytes
        .split_inclusive(|byte| *byte == b'\n')
        .map_while(|line| serde_json::from_slice(line.strip_suffix(b"\n")?).ok())
        .collect())
}

impl Journal {
    /// Says something. It must succeed before it is done.
    pub(super) fn say(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // One that stays is found at the next start, and has nothing left to do.
        let _removed = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_found_but_for_what_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let journals = Journals::open(folder.path().join("changes")).unwrap();
        let mut journal = journals.begin().unwrap();
        let entries = [
            Entry::Make("a/b".to_owned()),
            Entry::Put {
                path: "a/b/\u{e9}\n".to_owned(),
                temporary: "t".to_owned(),
            },
            Entry::Ready(vec![Step {
                path: "a/b/c".to_owned(),
                temporary: "t".to_owned(),
                new: Some((1, u64::MAX)),
                replaces: true,
            }]),
            Entry::Done,
        ];
        for entry in &entries {
            journal.say(entry).unwrap();
        }
        journal.file.write_all(b"{\"make\":\"x").unwrap();
        let left = journals.left().unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].1, entries);
        drop(journal);
        assert!(journals.left().unwrap().is_empty());
    }
}
