//! Where a daemon for one call keeps its files.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::{config::default_state_dir, store::state_dir::StateDir, workspace::Workspace};

/// Longest path of a temporary folder: with the socket's name it must fit into 107 bytes (unix(7)).
const MAX_TEMP_DIR_BYTES: usize = 80;

/// What a daemon for one call is to be like.
#[derive(Debug, Clone, Default)]
pub struct EmbeddedOptions {
    /// Minimum isolation level; `L3` by default.
    pub minimum_level: Option<String>,
    /// Whether root's files in the workspace are given to the user that commands run as.
    pub chown_workspace: bool,
}

/// What a daemon for one call keeps where it is found by those after it: its own state is gone with
/// it.
#[derive(Debug)]
pub(crate) struct PersistentDirs {
    /// Folder for journals, which a daemon of whatever kind must find.
    journals: PathBuf,
    /// Folder for records of uploads, by workspace. Not those of the daemon that may hold the
    /// directory: it reads them at its start, and no others.
    uploads: PathBuf,
}

impl PersistentDirs {
    /// In the state directory that who names none has. None where commands could reach it.
    pub(crate) fn find(workspace: &Path) -> Option<Self> {
        let state = default_state_dir();
        let workspace = fs::canonicalize(workspace).ok()?;
        let folder = |name| {
            let folder = StateDir::create_folder_in(&state, name).ok()?;
            Some(folder).filter(|folder| !folder.starts_with(&workspace))
        };
        Some(Self { journals: folder("changes")?, uploads: folder("embedded-uploads")? })
    }
}

/// Has what must outlive a daemon for one call be kept there, or where that is nowhere, be dropped
/// as far as it can be. Answers the folder for journals.
pub(crate) fn attach_persistent_dirs(
    durable: Option<PersistentDirs>,
    store: &mut StateDir,
    workspaces: &[Workspace],
) -> PathBuf {
    // It has one. Not by its name, which is the same for all.
    let workspace = workspaces.first().map(Workspace::identity);
    let Some((durable, (device, inode))) = durable.zip(workspace) else {
        store.set_uploads_folder(None);
        return store.change_journals_dir();
    };
    let uploads = durable.uploads.join(format!("{device:x}-{inode:x}"));
    store.set_uploads_folder(Some(uploads));
    durable.journals
}

/// Makes a folder that commands in `workspace` cannot reach.
pub(crate) fn create_temp_dir(workspace: &Path) -> io::Result<TempDir> {
    let workspace = fs::canonicalize(workspace).unwrap_or_else(|_| workspace.to_owned());
    let bases = [
        Some(env::temp_dir()),
        env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        Some("/var/tmp".into()),
        Some("/dev/shm".into()),
    ];
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for base in bases.into_iter().flatten() {
        let Ok(base) = fs::canonicalize(base) else {
            continue;
        };
        if base.starts_with(&workspace) || base.as_os_str().len() > MAX_TEMP_DIR_BYTES {
            continue;
        }
        match tempfile::Builder::new().prefix("jig-").tempdir_in(base) {
            Ok(folder) => return Ok(folder),
            Err(error) => last = error,
        }
    }
    Err(last)
}
