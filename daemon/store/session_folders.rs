//! Where the sessions of each workspace lie: `sessions/ID`, whichever workspace it belongs to, and
//! `sessions/ID@WORKSPACE` where another one has a session of that id already. A file in the folder says
//! whose it is, so that no workspace ever gets another one's, whatever the daemon is started with.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use tokio_util::sync::CancellationToken;

use super::{
    folder,
    session::{SessionId, check_not_cancelled},
};

/// Name of the file that says whose a session is.
const OWNER_FILE: &str = "workspace";

/// What the name of a folder begins with that is being made, or is to be deleted: no id has a dot there.
const UNFINISHED_PREFIX: &str = ".new-";
const REMOVED_PREFIX: &str = ".removed-";

/// Name of the file that tells of sessions that were removed.
const TOMBSTONES_FILE: &str = ".past";

/// The folders.
#[derive(Debug)]
pub(super) struct SessionFolders {
    path: PathBuf,
    /// How many have been made or taken away: each has another name while it is.
    rename_count: AtomicU64,
}

/// A session.
#[derive(Debug)]
pub(super) struct SessionLocation {
    pub(super) workspace: String,
    pub(super) id: SessionId,
    pub(super) folder: PathBuf,
}

impl SessionFolders {
    /// Those below `path`.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, rename_count: AtomicU64::new(0) }
    }

    /// The file that tells of sessions that were removed.
    pub(super) fn tombstones_path(&self) -> PathBuf {
        self.path.join(TOMBSTONES_FILE)
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

    /// Makes the folder of a session that has none, whole or not at all: half a name could be another
    /// one's, and on a full disk nothing is left behind. `fill` puts into it what it begins with.
    pub(super) fn create(
        &self,
        workspace: &str,
        id: &SessionId,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let unfinished = self.path.join(format!("{UNFINISHED_PREFIX}{}", self.next_number()));
        let made = self.create_at(&unfinished, workspace, id, fill);
        if made.is_err() {
            // Where it cannot be removed either, it is when the daemon starts again.
            let _gone = fs::remove_dir_all(&unfinished);
        }
        made
    }

    fn create_at(
        &self,
        unfinished: &Path,
        workspace: &str,
        id: &SessionId,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        // One of this name was left behind by another daemon.
        match fs::remove_dir_all(unfinished) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        folder::make(&self.path)?;
        folder::make(unfinished)?;
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(unfinished.join(OWNER_FILE))?;
        file.write_all(workspace.as_bytes())?;
        fill(unfinished)?;
        let [plain, own] = self.candidates(workspace, id);
        match fs::rename(unfinished, &plain) {
            Ok(()) => Ok(plain),
            // Another workspace has it, or nobody knows whose it is.
            Err(error) if already_exists(&error) => fs::rename(unfinished, &own).map(|()| own),
            Err(error) => Err(error),
        }
    }

    /// All sessions: whose each is, and its folder. What is none is left alone.
    pub(super) fn list(&self) -> io::Result<Vec<SessionLocation>> {
        let mut found = Vec::new();
        for entry in self.entries()? {
            let folder = entry?.path();
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with('.') {
                continue; // no session's
            }
            match self.identify(&folder, &name) {
                Ok(Some(session)) => found.push(session),
                Ok(None) => {
                    tracing::warn!(name = %name, "what is in the folder of the sessions is none: it is left alone");
                }
                Err(error) => {
                    tracing::warn!(name = %name, %error, "a session cannot be looked at");
                }
            }
        }
        Ok(found)
    }

    /// The session that a folder of this name is.
    fn identify(&self, folder: &Path, name: &str) -> io::Result<Option<SessionLocation>> {
        let Some(workspace) = owner(folder)? else {
            return Ok(None);
        };
        let of_several = name.strip_suffix(&format!("@{workspace}"));
        let id = SessionId::parse(of_several.unwrap_or(name));
        Ok(id.map(|id| SessionLocation { workspace, id, folder: folder.to_owned() }))
    }

    /// Takes a session away, so that there is none from then on; what it had is yet to be deleted. Answers
    /// where that is.
    pub(super) fn mark_removed(&self, folder: &Path) -> io::Result<PathBuf> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        loop {
            let removed = format!("{REMOVED_PREFIX}{}-{name}", self.next_number());
            let removed = self.path.join(removed);
            match fs::rename(folder, &removed) {
                Ok(()) => return Ok(removed),
                // By a daemon that died: each one takes another number.
                Err(error) if already_exists(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What was taken away and is not deleted yet: which session it was, if that can be told, and where it
    /// lies.
    pub(super) fn list_removed(&self) -> io::Result<Vec<(Option<SessionLocation>, PathBuf)>> {
        let mut removed = Vec::new();
        for entry in self.entries()? {
            let folder = entry?.path();
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            if let Some(rest) = name.strip_prefix(REMOVED_PREFIX) {
                let name = rest.split_once('-').map_or(rest, |(_, name)| name);
                let session = self.identify(&folder, name).ok().flatten();
                removed.push((session, folder));
            }
        }
        Ok(removed)
    }

    /// Deletes what a daemon that died was making. To be called before one is made.
    pub(super) fn delete_unfinished(&self) -> io::Result<()> {
        for entry in self.entries()? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED_PREFIX) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// Deletes what was taken away, as long as the daemon does not end.
    pub(super) fn delete(&self, folder: &Path, end: &CancellationToken) -> io::Result<()> {
        delete(folder, end)
    }

    fn next_number(&self) -> u64 {
        self.rename_count.fetch_add(1, Ordering::Relaxed)
    }

    fn entries(&self) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            entries => Some(entries?),
        };
        Ok(entries.into_iter().flatten())
    }

    /// Where a session may lie. No id has an `@`, and no name of a workspace a slash.
    fn candidates(&self, workspace: &str, id: &SessionId) -> [PathBuf; 2] {
        let id = id.as_str();
        [self.path.join(id), self.path.join(format!("{id}@{workspace}"))]
    }
}

/// Deletes a folder and what is in it, if it is there.
fn delete(folder: &Path, end: &CancellationToken) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        check_not_cancelled(end)?;
        match entry.file_type()?.is_dir() {
            true => delete(&entry.path(), end)?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_dir(folder)
}

/// The workspace that a session's folder belongs to.
fn owner(folder: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(folder.join(OWNER_FILE)) {
        Ok(name) => Ok(Some(name)),
        // One that is no folder belongs to nobody, too.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether something has the name already that is no empty folder.
fn already_exists(error: &io::Error) -> bool {
    use ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(folders: &SessionFolders) -> std::collections::BTreeMap<String, PathBuf> {
        let named = folders.list().unwrap().into_iter().map(|found| {
            assert_eq!(found.id, SessionId::default());
            (found.workspace, found.folder)
        });
        named.collect()
    }

    #[test]
    fn each_workspace_has_its_own_whatever_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let folders = SessionFolders::new(folder.path().to_owned());
        let id = SessionId::default();
        let make = |workspace| folders.create(workspace, &id, |_| Ok(())).unwrap();
        let find = |workspace| folders.find(workspace, &id).unwrap();
        assert_eq!(find("a"), None);
        let [plain, own] = ["default", "default@b"].map(|name| folder.path().join(name));
        assert_eq!(make("a"), plain);
        assert_eq!(find("b"), None);
        assert_eq!(make("b"), own);
        assert_eq!(find("b"), Some(own.clone()));
        assert_eq!(find("a"), Some(plain.clone()));
        // Also when the other one is gone meanwhile.
        fs::remove_dir_all(&plain).unwrap();
        assert_eq!(find("b"), Some(own.clone()));
        // Nothing is known of whose this is.
        fs::create_dir(&plain).unwrap();
        fs::write(plain.join("events.jsonl"), "").unwrap();
        let other = folder.path().join("default@a");
        assert_eq!(make("a"), other);
        let both = [("a".to_owned(), other.clone()), ("b".to_owned(), own.clone())];
        assert_eq!(listed(&folders), both.into());
        let removed = folders.mark_removed(&own).unwrap();
        assert_eq!(listed(&folders), [("a".to_owned(), other)].into());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        let (session, place) = folders.list_removed().unwrap().pop().unwrap();
        let session = session.unwrap();
        assert_eq!((&*session.workspace, session.id), ("b", id));
        assert_eq!(place, removed);
        folders.delete(&removed, &CancellationToken::new()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_is_no_session_is_left_alone_and_what_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let folders = SessionFolders::new(folder.path().to_owned());
        let id = SessionId::default();
        fs::write(folder.path().join("stray"), "").unwrap();
        fs::write(folder.path().join("default"), "").unwrap();
        fs::create_dir(folder.path().join("empty")).unwrap();
        assert!(listed(&folders).is_empty());
        assert_eq!(folders.find("a", &id).unwrap(), None);
        let full = |_: &Path| Err(io::Error::from(ErrorKind::StorageFull));
        assert!(folders.create("a", &id, full).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        let made = folders.create("a", &id, |_| Ok(())).unwrap();
        assert_eq!(made, folder.path().join("default@a"));
        assert_eq!(listed(&folders), [("a".to_owned(), made.clone())].into());
        // One that is told to end in the middle leaves the rest to the next one.
        let end = CancellationToken::new();
        end.cancel();
        assert!(folders.delete(&made, &end).is_err());
        assert!(made.exists());
        fs::create_dir(folder.path().join(".new-7")).unwrap();
        folders.delete_unfinished().unwrap();
        assert!(!folder.path().join(".new-7").exists());
    }
}
