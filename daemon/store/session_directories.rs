//! The directories of sessions: `sessions/ID`, or `sessions/ID@WORKSPACE` if another workspace has
//! a session of that id.
//!
//! A file in the directory names its workspace. So no workspace ever opens a session of another,
//! however the daemon is configured.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use tokio_util::sync::CancellationToken;

use super::{
    directory,
    session::{SessionId, check_not_cancelled},
};

/// File in a session's directory that names its workspace.
const OWNER_FILE: &str = "workspace";

/// Prefix of directories that are being created. No session id starts with a dot.
const UNFINISHED_PREFIX: &str = ".new-";
/// Prefix of directories that are being deleted.
const REMOVED_PREFIX: &str = ".removed-";

/// The tombstones, under the name that earlier versions gave the file.
const TOMBSTONES_FILE: &str = ".past";

#[derive(Debug)]
pub(super) struct SessionDirectories {
    path: PathBuf,
    /// Makes the names of directories unique while they are created or removed.
    rename_count: AtomicU64,
}

#[derive(Debug)]
pub(super) struct SessionLocation {
    pub(super) workspace: String,
    pub(super) id: SessionId,
    pub(super) directory: PathBuf,
}

impl SessionDirectories {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, rename_count: AtomicU64::new(0) }
    }

    pub(super) fn tombstones_path(&self) -> PathBuf {
        self.path.join(TOMBSTONES_FILE)
    }

    /// Returns the directory of a session, if it exists.
    pub(super) fn find(&self, workspace: &str, id: &SessionId) -> io::Result<Option<PathBuf>> {
        for directory in self.candidates(workspace, id) {
            if owner(&directory)?.as_deref() == Some(workspace) {
                return Ok(Some(directory));
            }
        }
        Ok(None)
    }

    /// Creates the directory of a session that has none. `fill` creates its initial content.
    ///
    /// Atomic: part of a workspace's name could be the name of another, and a full disk leaves
    /// nothing behind.
    pub(super) fn create(
        &self,
        workspace: &str,
        id: &SessionId,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let unfinished = self.path.join(format!("{UNFINISHED_PREFIX}{}", self.next_number()));
        let created = self.create_at(&unfinished, workspace, id, fill);
        if created.is_err() {
            // If this fails too, `delete_unfinished` removes it after the next start.
            let _removed = fs::remove_dir_all(&unfinished);
        }
        created
    }

    fn create_at(
        &self,
        unfinished: &Path,
        workspace: &str,
        id: &SessionId,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        // An earlier daemon may have left a directory of this name.
        match fs::remove_dir_all(unfinished) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }

        directory::create(&self.path)?;
        directory::create(unfinished)?;

        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(unfinished.join(OWNER_FILE))?;
        file.write_all(workspace.as_bytes())?;
        fill(unfinished)?;

        let [plain, qualified] = self.candidates(workspace, id);
        match fs::rename(unfinished, &plain) {
            Ok(()) => Ok(plain),
            // Another workspace has it, or its owner is unknown.
            Err(error) if already_exists(&error) => {
                fs::rename(unfinished, &qualified).map(|()| qualified)
            }
            Err(error) => Err(error),
        }
    }

    /// Lists the directories of all sessions. Ignores directories that are no session's.
    pub(super) fn list(&self) -> io::Result<Vec<SessionLocation>> {
        let mut locations = Vec::new();
        for entry in self.entries()? {
            let directory = entry?.path();
            let name = directory.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with('.') {
                continue; // in progress, or the tombstones
            }

            match self.identify(&directory, &name) {
                Ok(Some(location)) => locations.push(location),
                Ok(None) => {
                    tracing::warn!(name = %name, "ignoring an entry of the sessions directory that is not a session");
                }
                Err(error) => {
                    tracing::warn!(name = %name, %error, "cannot read a session's directory");
                }
            }
        }
        Ok(locations)
    }

    /// Returns the session that a directory belongs to, which has or had the name `name`.
    fn identify(&self, directory: &Path, name: &str) -> io::Result<Option<SessionLocation>> {
        let Some(workspace) = owner(directory)? else {
            return Ok(None);
        };
        let unqualified = name.strip_suffix(&format!("@{workspace}"));
        let id = SessionId::parse(unqualified.unwrap_or(name));
        Ok(id.map(|id| SessionLocation { workspace, id, directory: directory.to_owned() }))
    }

    /// Renames a session's directory, after which the session no longer exists. [`Self::delete`]
    /// deletes the renamed directory, whose path is returned.
    pub(super) fn mark_removed(&self, directory: &Path) -> io::Result<PathBuf> {
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        loop {
            let removed = format!("{REMOVED_PREFIX}{}-{name}", self.next_number());
            let removed = self.path.join(removed);
            match fs::rename(directory, &removed) {
                Ok(()) => return Ok(removed),
                // Left by an earlier daemon: takes the next number.
                Err(error) if already_exists(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Lists the directories that [`Self::mark_removed`] renamed, each with its session if that can
    /// be determined.
    pub(super) fn list_removed(&self) -> io::Result<Vec<(Option<SessionLocation>, PathBuf)>> {
        let mut removed = Vec::new();
        for entry in self.entries()? {
            let directory = entry?.path();
            let name = directory.file_name().unwrap_or_default().to_string_lossy();
            if let Some(rest) = name.strip_prefix(REMOVED_PREFIX) {
                let name = rest.split_once('-').map_or(rest, |(_, name)| name);
                let session = self.identify(&directory, name).ok().flatten();
                removed.push((session, directory));
            }
        }
        Ok(removed)
    }

    /// Deletes directories that an earlier daemon did not finish. Call it before creating any.
    pub(super) fn delete_unfinished(&self) -> io::Result<()> {
        for entry in self.entries()? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED_PREFIX) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// Deletes a directory with its content. Fails once `shutdown` is cancelled.
    pub(super) fn delete(&self, directory: &Path, shutdown: &CancellationToken) -> io::Result<()> {
        delete(directory, shutdown)
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

    /// Returns the possible directories of a session. No id contains `@`, no workspace name a
    /// slash.
    fn candidates(&self, workspace: &str, id: &SessionId) -> [PathBuf; 2] {
        let id = id.as_str();
        [self.path.join(id), self.path.join(format!("{id}@{workspace}"))]
    }
}

/// Deletes a directory and its content, if it exists.
fn delete(directory: &Path, shutdown: &CancellationToken) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };

    for entry in entries {
        let entry = entry?;
        check_not_cancelled(shutdown)?;
        if entry.file_type()?.is_dir() {
            delete(&entry.path(), shutdown)?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(directory)
}

/// Returns the workspace that a session's directory belongs to.
fn owner(directory: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(directory.join(OWNER_FILE)) {
        Ok(name) => Ok(Some(name)),
        // A file in the place of a directory has no owner either.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether the target of a rename exists and is not an empty directory.
fn already_exists(error: &io::Error) -> bool {
    use ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(directories: &SessionDirectories) -> std::collections::BTreeMap<String, PathBuf> {
        let locations = directories.list().unwrap().into_iter().map(|location| {
            assert_eq!(location.id, SessionId::default());
            (location.workspace, location.directory)
        });
        locations.collect()
    }

    #[test]
    fn workspaces_with_equal_session_ids_have_separate_directories() {
        let directory = tempfile::tempdir().unwrap();
        let directories = SessionDirectories::new(directory.path().to_owned());
        let id = SessionId::default();
        let make = |workspace| directories.create(workspace, &id, |_| Ok(())).unwrap();
        let find = |workspace| directories.find(workspace, &id).unwrap();
        assert_eq!(find("a"), None);
        let [plain, own] = ["default", "default@b"].map(|name| directory.path().join(name));
        assert_eq!(make("a"), plain);
        assert_eq!(find("b"), None);
        assert_eq!(make("b"), own);
        assert_eq!(find("b"), Some(own.clone()));
        assert_eq!(find("a"), Some(plain.clone()));
        // Unaffected by the removal of the other.
        fs::remove_dir_all(&plain).unwrap();
        assert_eq!(find("b"), Some(own.clone()));
        // The owner of this directory is unknown.
        fs::create_dir(&plain).unwrap();
        fs::write(plain.join("events.jsonl"), "").unwrap();
        let other = directory.path().join("default@a");
        assert_eq!(make("a"), other);
        let both = [("a".to_owned(), other.clone()), ("b".to_owned(), own.clone())];
        assert_eq!(listed(&directories), both.into());
        let removed = directories.mark_removed(&own).unwrap();
        assert_eq!(listed(&directories), [("a".to_owned(), other)].into());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
        let (session, path) = directories.list_removed().unwrap().pop().unwrap();
        let session = session.unwrap();
        assert_eq!((&*session.workspace, session.id), ("b", id));
        assert_eq!(path, removed);
        directories.delete(&removed, &CancellationToken::new()).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn other_entries_are_ignored_and_failed_creation_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let directories = SessionDirectories::new(directory.path().to_owned());
        let id = SessionId::default();
        fs::write(directory.path().join("stray"), "").unwrap();
        fs::write(directory.path().join("default"), "").unwrap();
        fs::create_dir(directory.path().join("empty")).unwrap();
        assert!(listed(&directories).is_empty());
        assert_eq!(directories.find("a", &id).unwrap(), None);
        let full = |_: &Path| Err(io::Error::from(ErrorKind::StorageFull));
        assert!(directories.create("a", &id, full).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
        let created = directories.create("a", &id, |_| Ok(())).unwrap();
        assert_eq!(created, directory.path().join("default@a"));
        assert_eq!(listed(&directories), [("a".to_owned(), created.clone())].into());
        // Cancelled midway: the next daemon deletes the rest.
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        assert!(directories.delete(&created, &shutdown).is_err());
        assert!(created.exists());
        fs::create_dir(directory.path().join(".new-7")).unwrap();
        directories.delete_unfinished().unwrap();
        assert!(!directory.path().join(".new-7").exists());
    }
}
