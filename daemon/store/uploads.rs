//! Records of uploads that have begun: with them, what has come is found again after a restart, to
//! be resumed or to be swept away.

use std::{
    fs::{self, DirBuilder, DirEntry, File},
    io::{self, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

/// Records that are read at the start; what is beyond was not written by this daemon.
const MOST: usize = 4096;
/// Largest file that can be a record.
const LARGEST: u64 = 64 * 1024;

/// The folder of the records.
#[derive(Debug, Clone)]
pub(crate) struct UploadRecords {
    folder: PathBuf,
}

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
    pub(crate) wishes: UploadWishes,
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
pub(crate) struct UploadWishes {
    /// Whether nothing may be there.
    pub(crate) create_new: bool,
    /// Hash that the file there must have.
    pub(crate) expected_sha256: Option<String>,
    /// Permission bits.
    pub(crate) file_mode: Option<u32>,
}

impl UploadRecords {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// All that can be read. What is no record is swept; one that cannot be read stays for a later
    /// daemon. Blocks.
    pub(crate) fn load(&self) -> Vec<UploadRecord> {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return Vec::new();
        };
        let mut records = Vec::new();
        for entry in entries.flatten().take(MOST) {
            match read(&entry) {
                Ok(Some(record)) => records.push(record),
                // Cut off by a crash, or not ours.
                Ok(None) => {
                    tracing::warn!(file = %entry.path().display(), "not the record of an upload");
                    fs::remove_file(entry.path()).ok();
                }
                Err(error) => {
                    let file = entry.path();
                    tracing::warn!(file = %file.display(), %error, "the record of an upload cannot be read");
                }
            }
        }
        records
    }

    /// Writes a record, in one step; with `sync`, the disk has written it down then. Without, it is
    /// for a daemon that dies and not for a machine that does. Blocks.
    pub(crate) fn save(&self, record: &UploadRecord, sync: bool) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        let path = self.folder.join(file_name(&record.name));
        let temporary = path.with_extension("new");
        let mut file = File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        if sync {
            // Before it has its name: a record that was cut off is worse than the one before it.
            file.sync_all()?;
        }
        fs::rename(temporary, path)?;
        if sync {
            File::open(&self.folder)?.sync_all()?;
        }
        Ok(())
    }

    /// Deletes a record, if it is there. Blocks.
    pub(crate) fn remove(&self, name: &str) {
        if let Err(error) = fs::remove_file(self.folder.join(file_name(name)))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(name, %error, "the record of an upload cannot be deleted");
        }
    }
}

/// The record in a file; none where it holds something else.
fn read(entry: &DirEntry) -> io::Result<Option<UploadRecord>> {
    if entry.metadata()?.len() > LARGEST {
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

    #[test]
    fn records_come_back_and_what_is_none_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let records = UploadRecords::new(folder.path().join("uploads"));
        assert_eq!(records.load(), []);
        let record = UploadRecord {
            name: "01ABC".into(),
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
        };
        records.save(&record, true).unwrap();
        let at = |name: &str| folder.path().join("uploads").join(name);
        fs::write(at("01ABD.json"), "{\"name\"").unwrap();
        File::create(at("large.json"))
            .unwrap()
            .set_len(LARGEST + 1)
            .unwrap();
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
