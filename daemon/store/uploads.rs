//! Records of uploads in progress, one file each.
//!
//! After a restart, the daemon uses them to find partial files, to resume or remove them.

use std::{
    fs::{self, DirEntry, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    directory,
    record_locks::{RecordLocks, TEMPORARY_EXTENSION, lock_directory},
};

/// Records that are read at startup. This daemon never writes more.
const MAX_UPLOAD_RECORDS: usize = 4096;
/// Larger files are not records.
const MAX_UPLOAD_RECORD_BYTES: u64 = 64 * 1024;

/// The directory of the records.
#[derive(Debug, Clone)]
pub(crate) struct UploadRecords {
    directory: PathBuf,
    ownership: DirectoryOwnership,
}

/// Which daemons store records in the directory.
#[derive(Debug, Clone)]
enum DirectoryOwnership {
    /// One daemon at a time: the holder of the state directory.
    Exclusive,
    /// One daemon; the directory is removed with it.
    Ephemeral,
    /// Several daemons at a time. The locks are those of this daemon's records.
    Shared(Arc<RecordLocks>),
}

/// Keeps other daemons from loading the records of the directory until it is dropped.
#[derive(Debug)]
pub(crate) struct DirectoryLock(
    #[expect(dead_code, reason = "held for what dropping it does")] Option<File>,
);

/// An upload, as stored in JSON. Its keys keep the names of earlier versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UploadRecord {
    /// A ULID; also the name of the file.
    pub(crate) name: String,
    /// The id that the caller chose; none if the upload cannot be resumed.
    pub(crate) upload_id: Option<String>,
    pub(crate) workspace: String,
    /// Target path of the file. The partial file is in the same directory.
    pub(crate) path: String,
    /// Bytes of the complete file.
    pub(crate) size: u64,
    /// Hash of the complete file.
    pub(crate) sha256: String,
    /// Missing in records of earlier versions.
    #[serde(default, rename = "wishes")]
    pub(crate) options: UploadOptions,
    /// Name of the partial file.
    #[serde(rename = "draft_name")]
    pub(crate) partial_name: String,
    /// Device and inode of the partial file; `None` before it is created.
    #[serde(rename = "draft_identity")]
    pub(crate) partial_identity: Option<(u64, u64)>,
    /// Whether the upload replaces a file; `None` until the partial file is about to be renamed.
    pub(crate) replaces: Option<bool>,
    /// Set once the file is at its target path: true if no file was there before.
    pub(crate) complete: Option<bool>,
    /// Time of the last received data, in seconds since the Unix epoch.
    pub(crate) touched: u64,
}

/// Options of an upload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UploadOptions {
    /// Whether the target must not exist.
    pub(crate) create_new: bool,
    /// Hash that the existing file must have.
    pub(crate) expected_sha256: Option<String>,
    /// Permission bits.
    pub(crate) file_mode: Option<u32>,
}

impl UploadRecords {
    /// The records of a daemon that uses the directory alone.
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, ownership: DirectoryOwnership::Exclusive }
    }

    /// The records of a daemon whose directory is removed with it.
    pub(crate) fn ephemeral(directory: PathBuf) -> Self {
        Self { directory, ownership: DirectoryOwnership::Ephemeral }
    }

    /// The records of a daemon that shares the directory with others.
    pub(crate) fn shared(directory: PathBuf) -> Self {
        Self { directory, ownership: DirectoryOwnership::Shared(Arc::default()) }
    }

    /// Whether other daemons may store records in the directory.
    pub(crate) fn are_shared(&self) -> bool {
        matches!(self.ownership, DirectoryOwnership::Shared(_))
    }

    /// Whether the records remain after the daemon exits.
    pub(crate) fn are_persistent(&self) -> bool {
        !matches!(self.ownership, DirectoryOwnership::Ephemeral)
    }

    /// Locks the directory against [`Self::load`] by other daemons; waits for one that loads.
    /// Blocks.
    pub(crate) fn lock_directory(&self) -> DirectoryLock {
        // If locking fails, an upload may start from the beginning that could have been resumed.
        DirectoryLock(self.locks().and_then(|_| lock_directory(&self.directory, true)))
    }

    /// Like [`Self::lock_directory`], but returns `None` if another daemon holds the lock.
    pub(crate) fn try_lock_directory(&self) -> Option<DirectoryLock> {
        match self.locks() {
            Some(_) => lock_directory(&self.directory, false)
                .map(|directory| DirectoryLock(Some(directory))),
            None => Some(DirectoryLock(None)),
        }
    }

    /// Loads all readable records. Blocks.
    ///
    /// Removes files that are not records; leaves unreadable ones to a later daemon. In a shared
    /// directory, it skips records that another daemon holds. This daemon holds the returned ones
    /// until [`Self::release`].
    pub(crate) fn load(&self) -> Vec<UploadRecord> {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return Vec::new();
        };

        let mut records = Vec::new();
        for entry in entries.flatten().take(MAX_UPLOAD_RECORDS) {
            let path = entry.path();
            let result = match self.locks().map_or(Ok(true), |locks| locks.try_lock_record(&path)) {
                Ok(true) => read_record(&entry),
                Ok(false) => continue,
                Err(error) => Err(error),
            };

            match result {
                Ok(Some(record)) => {
                    records.push(record);
                    continue;
                }
                // Cut off by a crash, or not written by a daemon.
                Ok(None) => {
                    tracing::warn!(file = %path.display(), "removing a file that is not an upload record");
                    fs::remove_file(&path).ok();
                }
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "cannot read an upload record");
                }
            }
            self.release_path(&path);
        }
        records
    }

    /// Writes a record atomically. With `sync`, it survives a power failure; without, only the
    /// death of the daemon. Blocks.
    pub(crate) fn save(&self, record: &UploadRecord, sync: bool) -> io::Result<()> {
        directory::create(&self.directory)?;

        let path = self.path_of(&record.name);
        let temporary = path.with_extension(TEMPORARY_EXTENSION);
        let mut file = File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        if sync {
            // Before the rename: a truncated record is worse than the previous one.
            file.sync_all()?;
        }

        let rename = || fs::rename(&temporary, &path);
        match self.locks() {
            Some(locks) => locks.lock_renamed(&path, file, rename)?,
            None => rename()?,
        }

        if sync {
            File::open(&self.directory)?.sync_all()?;
        }
        Ok(())
    }

    /// Deletes a record, if it exists. Blocks.
    pub(crate) fn remove(&self, name: &str) {
        if let Err(error) = fs::remove_file(self.path_of(name))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(name, %error, "cannot delete an upload record");
        }
        self.release(name);
    }

    /// Deletes the records of a deleted workspace. In a shared directory, those may be of the
    /// workspace of another daemon, and remain. Blocks.
    pub(crate) fn remove_all_in(&self, workspace: &str) {
        if self.are_shared() {
            return;
        }
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return;
        };
        for entry in entries.flatten() {
            if let Ok(Some(record)) = read_record(&entry)
                && record.workspace == workspace
            {
                self.remove(&record.name);
            }
        }
    }

    /// Makes a record available to other daemons.
    pub(crate) fn release(&self, name: &str) {
        self.release_path(&self.path_of(name));
    }

    fn release_path(&self, path: &Path) {
        if let Some(locks) = self.locks() {
            locks.unlock(path);
        }
    }

    fn locks(&self) -> Option<&RecordLocks> {
        match &self.ownership {
            DirectoryOwnership::Shared(locks) => Some(locks),
            DirectoryOwnership::Exclusive | DirectoryOwnership::Ephemeral => None,
        }
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.directory.join(file_name(name))
    }
}

/// Reads the record in a file; `None` if the content is not a record.
fn read_record(entry: &DirEntry) -> io::Result<Option<UploadRecord>> {
    if entry.metadata()?.len() > MAX_UPLOAD_RECORD_BYTES {
        return Ok(None);
    }
    let json = fs::read(entry.path())?;
    let record = serde_json::from_slice::<UploadRecord>(&json).ok();
    Ok(record.filter(|record| entry.file_name() == file_name(&record.name).as_str()))
}

fn file_name(name: &str) -> String {
    format!("{name}.json")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn record(name: &str) -> UploadRecord {
        UploadRecord {
            name: name.into(),
            upload_id: Some("a".into()),
            workspace: "w".into(),
            path: "p".into(),
            size: 7,
            sha256: "00".into(),
            options: Default::default(),
            partial_name: ".jig-01ABC.tmp".into(),
            partial_identity: Some((1, u64::MAX)),
            replaces: Some(true),
            complete: None,
            touched: 5,
        }
    }

    #[test]
    fn record_is_held_by_one_daemon_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let shared = || UploadRecords::shared(directory.path().join("uploads"));
        let (one, other) = (shared(), shared());
        assert!(one.try_lock_directory().is_none(), "the directory does not exist yet");
        assert_eq!(one.load(), []);
        one.save(&record("01ABC"), false).unwrap();
        assert_eq!(other.load(), []);
        let changed = UploadRecord { touched: 6, ..record("01ABC") };
        one.save(&changed, false).unwrap();
        assert_eq!(other.load(), []);
        assert_eq!(one.load(), [], "already held");
        // A file being written is not removed.
        let unfinished = directory.path().join("uploads/01ABD.new");
        fs::write(&unfinished, "{").unwrap();
        one.release("01ABC");
        assert_eq!(other.load(), std::slice::from_ref(&changed));
        assert!(unfinished.exists());
        assert_eq!(one.load(), []);
        drop(other);
        assert_eq!(one.load(), [changed]);
        one.remove("01ABC");
        assert_eq!(shared().load(), []);

        let lock = one.lock_directory();
        assert!(shared().try_lock_directory().is_none());
        drop(lock);
        assert!(shared().try_lock_directory().is_some());
    }

    #[test]
    fn records_are_loaded_and_other_files_removed() {
        let directory = tempfile::tempdir().unwrap();
        let records = UploadRecords::new(directory.path().join("uploads"));
        assert_eq!(records.load(), []);
        let record = record("01ABC");
        records.save(&record, true).unwrap();
        let at = |name: &str| directory.path().join("uploads").join(name);
        fs::write(at("01ABD.json"), "{\"name\"").unwrap();
        File::create(at("large.json")).unwrap().set_len(MAX_UPLOAD_RECORD_BYTES + 1).unwrap();
        fs::copy(at("01ABC.json"), at("other.json")).unwrap();
        // An unreadable file may be a record that is readable later.
        symlink(".", at("01ABE.json")).unwrap();
        assert_eq!(records.load(), [record]);
        let remaining = fs::read_dir(directory.path().join("uploads")).unwrap();
        let mut remaining: Vec<_> = remaining.map(|entry| entry.unwrap().file_name()).collect();
        remaining.sort();
        assert_eq!(remaining, ["01ABC.json", "01ABE.json"]);
        fs::remove_file(at("01ABE.json")).unwrap();
        records.remove("01ABC");
        records.remove("01ABC");
        assert_eq!(records.load(), []);
    }
}
