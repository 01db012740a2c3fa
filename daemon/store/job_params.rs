//! Parameters of queued jobs: one file each, removed when the job starts.
//!
//! They are not in the database because its files would continue to hold deleted data: frames of
//! the WAL stay until they are overwritten (sqlite.org/wal.html).

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::directory;

#[derive(Debug, Clone)]
pub(crate) struct JobParamFiles {
    directory: PathBuf,
}

impl JobParamFiles {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Stores the parameters of a job, completely or not at all. Blocks.
    ///
    /// Like the database, they survive the death of the daemon, but not a power failure at that
    /// moment. The file may then be empty; its job is lost, never run without parameters.
    pub(crate) fn save(&self, id: &str, params: &[u8]) -> io::Result<()> {
        let path = self.path(id);
        let created = create(&path).or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            directory::create(&self.directory)?;
            create(&path)
        });
        let mut file = created?;
        file.write_all(params).inspect_err(|_| self.remove(id))
    }

    /// Reads the parameters of a job. Blocks.
    pub(crate) fn read(&self, id: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(id))
    }

    /// Removes the parameters of a job. Blocks.
    pub(crate) fn remove(&self, id: &str) {
        if let Err(error) = fs::remove_file(self.path(id))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::error!(%error, job_id = id, "cannot delete the parameters of a job");
        }
    }

    /// Removes the parameters of all jobs except `queued`, which an earlier daemon left. Returns the
    /// bytes of the remaining files by job id. Files that cannot be removed stay. Blocks.
    pub(crate) fn remove_orphaned(
        &self,
        queued: &HashSet<&str>,
    ) -> io::Result<HashMap<String, u64>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashMap::new()),
            Err(error) => return Err(error),
        };

        let mut sizes = HashMap::new();
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            let id = path.file_stem().and_then(|stem| stem.to_str());
            let result = match id.filter(|id| queued.contains(id)) {
                Some(id) => entry.metadata().map(|metadata| {
                    sizes.insert(id.to_owned(), metadata.len());
                }),
                None => fs::remove_file(&path),
            };
            if let Err(error) = result {
                let path = path.display();
                tracing::warn!(%error, %path, "cannot remove or read a file in the directory of job parameters");
            }
        }
        Ok(sizes)
    }

    /// Job ids are created by the daemon and have no slash.
    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }
}

fn create(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_stored_until_removed() {
        let directory = tempfile::tempdir().unwrap();
        let params = JobParamFiles::new(directory.path().join("jobs"));
        assert!(params.remove_orphaned(&HashSet::new()).unwrap().is_empty());
        params.save("1", b"{}").unwrap();
        params.save("2", b"[]").unwrap();
        params.save("3", b"[]").unwrap();
        assert!(params.save("1", b"x").is_err());
        assert_eq!(params.read("1").unwrap(), b"{}");
        params.remove("2");
        params.remove("2");
        fs::create_dir(directory.path().join("jobs/3.json.d")).unwrap();
        let sizes = params.remove_orphaned(&["1"].into()).unwrap();
        assert_eq!(sizes, [("1".to_owned(), 2)].into());
        fs::remove_dir(directory.path().join("jobs/3.json.d")).unwrap();
        let remaining = fs::read_dir(directory.path().join("jobs")).unwrap().count();
        assert_eq!(remaining, 1);
        assert_eq!(params.read("1").unwrap(), b"{}");
    }
}
