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

/// The folders.
#[derive(Debug)]
pub(super) struct SessionFolders {
    path: PathBuf,
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

    /// Where a session may lie. No id has an `@`, and no name of a workspace a slash.
    fn candidates(&self, workspace: &str, id: &SessionId) -> [PathBuf; 2] {
        let id = id.as_str();
        [
            self.path.join(id),
            self.path.join(format!("{id}@{workspace}")),
        ]
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
    }
}
