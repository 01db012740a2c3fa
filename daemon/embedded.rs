//! Where a daemon for one call keeps its files.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::{config::default_state_dir, store::state_dir::StateDir};

/// Longest path of a temporary folder: with the socket's name it must fit into 107 bytes (unix(7)).
const LONGEST_FOLDER: usize = 80;

/// Where a daemon for one call keeps its journals: its own state is gone with it, and the next one,
/// of whatever kind, must find them. None where commands could reach them.
pub(crate) fn durable_changes(workspace: &Path) -> Option<PathBuf> {
    let changes = StateDir::changes_in(&default_state_dir()).ok()?;
    let workspace = fs::canonicalize(workspace).ok()?;
    Some(changes).filter(|changes| !changes.starts_with(workspace))
}

/// Makes a folder that commands in `workspace` cannot reach.
pub(crate) fn temporary_folder(workspace: &Path) -> io::Result<TempDir> {
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
        if base.starts_with(&workspace) || base.as_os_str().len() > LONGEST_FOLDER {
            continue;
        }
        match tempfile::Builder::new().prefix("jig-").tempdir_in(base) {
            Ok(folder) => return Ok(folder),
            Err(error) => last = error,
        }
    }
    Err(last)
}
