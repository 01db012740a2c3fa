//! Records of uploads that have begun: with them, what has come is found again after a restart, to
//! be resumed or to be swept away.

use std::{
    fs::{self, DirEntry, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    folder,
    record_locks::{RecordLocks, TEMPORARY_EXTENSION, lock_folder},
};

/// Records that are read at the start; what is beyond was not written by this daemon.
const MAX_UPLOAD_RECORDS: usize = 4096;
/// Largest file that can be a record.
const MAX_UPLOAD_RECORD_BYTES: u64 = 64 * 1024;

/// The folder of the records.
#[derive(Debug, Clone)]
pub(crate) struct UploadRecords {
    folder: PathBuf,
    ownership: FolderOwnership,
}

/// Who keeps records in the folder.
#[derive(Debug, Clone)]
enum FolderOwnership {
    /// One daemon at a time, whose state directory it is in.
    Exclusive,
    /// One daemon, with which it goes.
    Ephemeral,
    /// Several daemons at a time. These are the records of this one.
    Shared(Arc<RecordLocks>),
}

/// While it is held, no other daemon looks through the folder.
#[derive(Debug)]
pub(crate) struct FolderLock(
    #[expect(dead_code, reason = "held for what dropping it does")] Option<File>,
);

/// What is known of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UploadRecord {
    /// Its own name: a ULID.
    pub(crate) name: String,
    /// Id that its caller gave it; none when it cannot be resumed.
    pub(crate) upload_id: Option<String>,
    /// The workspace.
    pub(crate) workspace: String,
    /// Where the file is to be. What has come lies beside it.
    pub(crate) path: String,
    /// Bytes of the whole file.
    pub(crate) size: u64,
    /// Hash of the whole file.
    pub(crate) sha256: String,
    /// What else its caller wants of it; none in records of earlier versions.
    #[serde(default)]
    pub(crate) wishes: UploadOptions,
    /// Name of what has come.
    pub(crate) draft_name: String,
    /// Its device and inode; none before it is made.
    pub(crate) draft_identity: Option<(u64, u64)>,
    /// Whether it is to replace a file; none before it is about to be put in its place.
    pub(crate) replaces: Option<bool>,
    /// Whether the file is in its place, and if so, whether nothing was there before.
    pub(crate) complete: Option<bool>,
    /// Seconds since 1970 when something last came.
    pub(crate) touched: u64,
}

/// What a caller wants of an upload beside the bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UploadOptions {
    /// Whether nothing may be there.
    pub(crate) create_new: bool,
    /// Hash that the file there must have.
    pub(crate) expected_sha256: Option<String>,
    /// Permission bits.
    pub(crate) file_mode: Option<u32>,
}

impl UploadRecords {
    /// Those of a daemon that alone has the folder.
    pub(super) fn new(folder: PathBuf) -> Self {
        let keeper = FolderOwnership::Exclusive;
        Self { folder, ownership: keeper }
    }

    /// Those of a daemon whose folder is removed with it.
    pub(crate) fn ephemeral(folder: PathBuf) -> Self {
        let keeper = FolderOwnership::Ephemeral;
        Self { folder, ownership: keeper }
    }

    /// Those of a daemon that shares the folder with others.
    pub(crate) fn shared(folder: PathBuf) -> Self {
        let keeper = FolderOwnership::Shared(Arc::default());
        Self { folder, ownership: keeper }
    }

    /// Whether other daemons keep records in the folder.
    pub(crate) fn are_shared(&self) -> bool {
        matches!(self.ownership, FolderOwnership::Shared(_))
    }

    /// Whether they are there when the daemon is not any more.
    pub(crate) fn are_persistent(&self) -> bool {
        !matches!(self.ownership, FolderOwnership::Ephemeral)
    }

    /// Has others not look through the folder meanwhile. Waits for one that does. Blocks.
    pub(crate) fn lock_folder(&self) -> FolderLock {
        // One that fails keeps nobody away: then an upload may start again that could go on.
        FolderLock(self.locks().and_then(|_| lock_folder(&self.folder, true)))
    }

    /// As [`Self::look`]; none where another daemon looks now.
    pub(crate) fn try_lock_folder(&self) -> Option<FolderLock> {
        match self.locks() {
            Some(_) => lock_folder(&self.folder, false).map(|folder| FolderLock(Some(folder))),
            None => Some(FolderLock(None)),
        }
    }

    /// All that can be read. What is no record is swept; one that cannot be read stays for a later
    /// daemon. Where others share the folder, those that are no daemon's: they are this one's from
    /// here on, until it lets them go. Blocks.
    pub(crate) fn load(&self) -> Vec<UploadRecord> {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return Vec::new();
        };
        let mut records = Vec::new();
        for entry in entries.flatten().take(MAX_UPLOAD_RECORDS) {
            let path = entry.path();
            let found = match self.locks().map_or(Ok(true), |locks| locks.try_lock_record(&path)) {
                Ok(true) => read_record(&entry),
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            match found {
                Ok(Some(record)) => {
                    records.push(record);
                    continue;
                }
                // Cut off by a crash, or not ours.
                Ok(None) => {
                    tracing::warn!(file = %path.display(), "not the record of an upload");
                    fs::remove_file(&path).ok();
                }
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "the record of an upload cannot be read");
                }
            }
            self.release_path(&path);
        }
        records
    }

    /// Writes a record, in one step; with `sync`, the disk has written it down then. Without, it is
    /// for a daemon that dies and not for a machine that does. Blocks.
    pub(crate) fn save(&self, record: &UploadRecord, sync: bool) -> io::Result<()> {
        folder::make(&self.folder)?;
        let path = self.path_of(&record.name);
        let temporary = path.with_extension(TEMPORARY_EXTENSION);
        let mut file = File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        if sync {
            // Before it has its name: a record that was cut off is worse than the one before it.
            file.sync_all()?;
        }
        let rename = || fs::rename(&temporary, &path);
        match self.locks() {
            Some(locks) => locks.lock_renamed(&path, file, rename)?,
            None => rename()?,
        }
        if sync {
            File::open(&self.folder)?.sync_all()?;
        }
        Ok(())
    }

    /// Deletes a record, if it is there. Blocks.
    pub(crate) fn remove(&self, name: &str) {
        if let Err(error) = fs::remove_file(self.path_of(name))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(name, %error, "the record of an upload cannot be deleted");
        }
        self.release(name);
    }

    /// Leaves a record to other daemons.
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
            FolderOwnership::Shared(locks) => Some(locks),
            FolderOwnership::Exclusive | FolderOwnership::Ephemeral => None,
        }
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.folder.join(file_name(name))
    }
}

/// The record in a file; none where it holds something else.
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
            wishes: Default::default(),
            draft_name: ".jig-01ABC.tmp".into(),
            draft_identity: Some((1, u64::MAX)),
            replaces: Some(true),
            complete: None,
            touched: 5,
        }
    }

    #[test]
    fn each_record_is_one_daemons_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let shared = || UploadRecords::shared(folder.path().join("uploads"));
        let (one, other) = (shared(), shared());
        assert!(one.try_lock_folder().is_none(), "there is no folder yet");
        assert_eq!(one.load(), []);
        one.save(&record("01ABC"), false).unwrap();
        assert_eq!(other.load(), []);
        let changed = UploadRecord { touched: 6, ..record("01ABC") };
        one.save(&changed, false).unwrap();
        assert_eq!(other.load(), []);
        assert_eq!(one.load(), [], "it has it already");
        // What is being written at this moment is nobody's to sweep.
        let unfinished = folder.path().join("uploads/01ABD.new");
        fs::write(&unfinished, "{").unwrap();
        one.release("01ABC");
        assert_eq!(other.load(), std::slice::from_ref(&changed));
        assert!(unfinished.exists());
        assert_eq!(one.load(), []);
        drop(other);
        assert_eq!(one.load(), [changed]);
        one.remove("01ABC");
        assert_eq!(shared().load(), []);

        let looks = one.lock_folder();
        assert!(shared().try_lock_folder().is_none());
        drop(looks);
        assert!(shared().try_lock_folder().is_some());
    }

    #[test]
    fn records_come_back_and_what_is_none_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let records = UploadRecords::new(folder.path().join("uploads"));
        assert_eq!(records.load(), []);
        let record = record("01ABC");
        records.save(&record, true).unwrap();
        let at = |name: &str| folder.path().join("uploads").join(name);
        fs::write(at("01ABD.json"), "{\"name\"").unwrap();
        File::create(at("large.json")).unwrap().set_len(MAX_UPLOAD_RECORD_BYTES + 1).unwrap();
        fs::copy(at("01ABC.json"), at("other.json")).unwrap();
        // What cannot be read may be a record all the same, and be read another time.
        symlink(".", at("01ABE.json")).unwrap();
        assert_eq!(records.load(), [record]);
        let left = fs::read_dir(folder.path().join("uploads")).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["01ABC.json", "01ABE.json"]);
        fs::remove_file(at("01ABE.json")).unwrap();
        records.remove("01ABC");
        records.remove("01ABC");
        assert_eq!(records.load(), []);
    }
}
