//! What jobs that wait are to do: a file each, which is removed when the job starts. They are not in the
//! database, whose files would go on holding what was deleted in it (sqlite.org/wal.html: frames stay
//! until they are overwritten).

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::folder;

/// The files.
#[derive(Debug, Clone)]
pub(crate) struct JobParamFiles {
    folder: PathBuf,
}

impl JobParamFiles {
    /// Those in `folder`.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Keeps the parameters of a job: all of them, or nothing. Like the database, they outlive the daemon, and
    /// not a machine that loses power at that moment: a job whose file is empty then is lost, and not done
    /// without any. Blocks.
    pub(crate) fn save(&self, id: &str, params: &[u8]) -> io::Result<()> {
        let path = self.path(id);
        let made = create(&path).or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            folder::make(&self.folder)?;
            create(&path)
        });
        let mut file = made?;
        file.write_all(params).inspect_err(|_| self.remove(id))
    }

    /// The parameters of a job. Blocks.
    pub(crate) fn read(&self, id: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(id))
    }

    /// Removes the parameters of a job. Blocks.
    pub(crate) fn remove(&self, id: &str) {
        if let Err(error) = fs::remove_file(self.path(id))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::error!(%error, job_id = id, "the parameters of a job could not be erased");
        }
    }

    /// Removes those of all jobs but these, which a daemon that died has left. Answers how many bytes these
    /// have. What cannot be removed, or is no file, stays. Blocks.
    pub(crate) fn remove_orphaned(
        &self,
        queued: &HashSet<&str>,
    ) -> io::Result<HashMap<String, u64>> {
        let mut sizes = HashMap::new();
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(sizes),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            let id = path.file_stem().and_then(|stem| stem.to_str());
            let swept = match id.filter(|id| queued.contains(id)) {
                Some(id) => entry.metadata().map(|metadata| {
                    sizes.insert(id.to_owned(), metadata.len());
                }),
                None => fs::remove_file(&path),
            };
            if let Err(error) = swept {
                let path = path.display();
                tracing::warn!(%error, %path, "what is no parameters of a job that waits could not be removed");
            }
        }
        Ok(sizes)
    }

    /// No id has a slash: they are made here.
    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }
}

fn create(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_kept_until_they_are_erased() {
        let folder = tempfile::tempdir().unwrap();
        let params = JobParamFiles::new(folder.path().join("jobs"));
        assert!(params.remove_orphaned(&HashSet::new()).unwrap().is_empty());
        params.save("1", b"{}").unwrap();
        params.save("2", b"[]").unwrap();
        params.save("3", b"[]").unwrap();
        assert!(params.save("1", b"x").is_err());
        assert_eq!(params.read("1").unwrap(), b"{}");
        params.remove("2");
        params.remove("2");
        fs::create_dir(folder.path().join("jobs/3.json.d")).unwrap();
        let sizes = params.remove_orphaned(&["1"].into()).unwrap();
        assert_eq!(sizes, [("1".to_owned(), 2)].into());
        fs::remove_dir(folder.path().join("jobs/3.json.d")).unwrap();
        let left = fs::read_dir(folder.path().join("jobs")).unwrap().count();
        assert_eq!(left, 1);
        assert_eq!(params.read("1").unwrap(), b"{}");
    }
}
