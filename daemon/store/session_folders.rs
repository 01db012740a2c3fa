//! Where the sessions of each workspace lie: `sessions/ID`, whichever workspace it belongs to, and
//! `sessions/ID@WORKSPACE` where another one has a session of that id already. A file in the folder says
//! whose it is, so that no workspace ever gets another one's, whatever the daemon is started with.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::session::SessionId;

/// Name of the file that says whose a session is.
const OWNER: &str = "workspace";

/// What the name of a folder begins with that is to be deleted: no id has a dot there.
const REMOVED: &str = ".removed-";

/// The folders.
#[derive(Debug)]
pub(super) struct SessionFolders {
    path: PathBuf,
}

/// A session.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) workspace: String,
    pub(super) id: SessionId,
    pub(super) folder: PathBuf,
}

impl SessionFolders {
    /// Those below `path`.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The folder of a session, if it has one.
    pub(super) fn find(&self, workspace: &str, id: &SessionId) -> io::Result<Option<PathBuf>> {
        for folder in self.candidates(workspace, id) {
            if owner(&folder)?.as_deref() == Some(workspace) {
                return Ok(Some(folder));
            }
        }
        Ok(None)
    }

    /// The folder of a session, which is made where it has none.
    pub(super) fn claim(&self, workspace: &str, id: &SessionId) -> io::Result<PathBuf> {
        if let Some(folder) = self.find(workspace, id)? {
            return Ok(folder);
        }
        let [plain, own] = self.candidates(workspace, id);
        let folder = if is_free(&plain)? { plain } else { own };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        // Whole or not at all: half a name could be another one's.
        let unfinished = folder.join(format!("{OWNER}.new"));
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(workspace.as_bytes())?;
        fs::rename(&unfinished, folder.join(OWNER))?;
        Ok(folder)
    }

    /// All sessions: whose each is, and its folder.
    pub(super) fn list(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for entry in self.entries()? {
            let folder = entry?.path();
            let Some(name) = folder.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if name.starts_with(REMOVED) {
                continue;
            }
            let Some(workspace) = owner(&folder)? else {
                continue; // being made
            };
            let of_several = name.strip_suffix(&format!("@{workspace}"));
            if let Some(id) = SessionId::parse(of_several.unwrap_or(name)) {
                found.push(Found {
                    workspace,
                    id,
                    folder,
                });
            }
        }
        Ok(found)
    }

    /// Takes a session away, so that there is none from then on; what it had is yet to be deleted.
    pub(super) fn take_away(&self, folder: &Path) -> io::Result<()> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let removed = self.path.join(format!("{REMOVED}{name}"));
        delete(&removed)?;
        fs::rename(folder, &removed)
    }

    /// Deletes what was taken away, and what a daemon that died had taken away.
    pub(super) fn delete_removed(&self) -> io::Result<()> {
        for entry in self.entries()? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(REMOVED) {
                delete(&entry.path())?;
            }
        }
        Ok(())
    }

    fn entries(&self) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            entries => Some(entries?),
        };
        Ok(entries.into_iter().flatten())
    }

    /// Where a session may lie. No id has an `@`, and no name of a workspace a slash.
    fn candidates(&self, workspace: &str, id: &SessionId) -> [PathBuf; 2] {
        let id = id.as_str();
        [
            self.path.join(id),
            self.path.join(format!("{id}@{workspace}")),
        ]
    }
}

/// Deletes a folder, if it is there.
fn delete(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The workspace that a session's folder belongs to.
fn owner(folder: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(folder.join(OWNER)) {
        Ok(name) => Ok(Some(name)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether nothing was ever kept there, also where making it was cut off.
fn is_free(folder: &Path) -> io::Result<bool> {
    Ok(owner(folder)?.is_none() && !folder.join("events.jsonl").try_exists()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workspace_has_its_own_whatever_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let folders = || SessionFolders::new(folder.path().to_owned());
        let id = SessionId::default();
        assert_eq!(folders().find("a", &id).unwrap(), None);
        let [plain, own] = ["default", "default@b"].map(|name| folder.path().join(name));
        assert_eq!(folders().claim("a", &id).unwrap(), plain);
        assert_eq!(folders().find("b", &id).unwrap(), None);
        assert_eq!(folders().claim("b", &id).unwrap(), own);
        for _ in 0..2 {
            assert_eq!(folders().claim("b", &id).unwrap(), own);
            assert_eq!(folders().claim("a", &id).unwrap(), plain);
        }
        // Also when the other one is gone meanwhile.
        fs::remove_dir_all(&plain).unwrap();
        assert_eq!(folders().claim("b", &id).unwrap(), own);
        // Nothing is known of whose this is.
        fs::create_dir(&plain).unwrap();
        fs::write(plain.join("events.jsonl"), "").unwrap();
        let other = folder.path().join("default@a");
        assert_eq!(folders().claim("a", &id).unwrap(), other);
        let listed = || {
            let listed = folders().list().unwrap();
            let named = listed.into_iter().map(|found| {
                assert_eq!(found.id, id);
                (found.workspace, found.folder)
            });
            named.collect::<std::collections::BTreeMap<_, _>>()
        };
        let both = [
            ("a".to_owned(), other.clone()),
            ("b".to_owned(), own.clone()),
        ];
        assert_eq!(listed(), both.into());
        folders().take_away(&own).unwrap();
        assert_eq!(listed(), [("a".to_owned(), other)].into());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        folders().delete_removed().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
