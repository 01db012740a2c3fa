//! Directories of an embedded daemon, which serves one call of the process it runs in.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::daemon::{config::default_state_dir, store::state_dir::StateDir, workspace::Workspace};

/// Longest path of a temporary directory: with the socket's name it must fit into 107 bytes
/// (unix(7)).
const MAX_TEMP_DIR_BYTES: usize = 80;

/// Settings of an embedded daemon.
#[derive(Debug, Clone, Default)]
pub struct EmbeddedOptions {
    /// Minimum isolation level; `L3` by default.
    pub minimum_level: Option<String>,
    /// Whether to give root's files in the workspace to the user that commands run as.
    pub chown_workspace: bool,
}

/// Directories that outlive an embedded daemon, so that later daemons find them.
#[derive(Debug)]
pub(crate) struct PersistentDirs {
    /// Journals. All daemons, embedded or not, must find them.
    journals: PathBuf,
    /// Upload records, one directory per workspace. A long-running daemon that holds the state
    /// directory does not use them: it reads upload records only when it starts.
    uploads: PathBuf,
}

impl PersistentDirs {
    /// Creates them in the default state directory. Returns `None` if commands could reach them.
    pub(crate) fn find(workspace: &Path) -> Option<Self> {
        let state = default_state_dir();
        let workspace = fs::canonicalize(workspace).ok()?;
        let directory = |name| {
            let directory = StateDir::create_directory_in(&state, name).ok()?;
            Some(directory).filter(|directory| !directory.starts_with(&workspace))
        };
        Some(Self { journals: directory("changes")?, uploads: directory("embedded-uploads")? })
    }
}

/// Points `store` to the persistent directories, and returns the directory for journals.
///
/// Without persistent directories, upload records are dropped and journals go to `store` itself.
pub(crate) fn attach_persistent_dirs(
    persistent: Option<PersistentDirs>,
    store: &mut StateDir,
    workspaces: &[Workspace],
) -> PathBuf {
    // An embedded daemon has one workspace. Its name is always the same, so its identity names the
    // directory.
    let identity = workspaces.first().map(Workspace::identity);
    let Some((persistent, (device, inode))) = persistent.zip(identity) else {
        store.set_uploads_directory(None);
        return store.change_journals_dir();
    };

    let uploads = persistent.uploads.join(format!("{device:x}-{inode:x}"));
    store.set_uploads_directory(Some(uploads));
    persistent.journals
}

/// Creates a temporary directory that commands in `workspace` cannot reach.
pub(crate) fn create_temp_dir(workspace: &Path) -> io::Result<TempDir> {
    let workspace = fs::canonicalize(workspace).unwrap_or_else(|_| workspace.to_owned());
    let bases = [
        Some(env::temp_dir()),
        env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        Some("/var/tmp".into()),
        Some("/dev/shm".into()),
    ];

    let mut last_error = io::Error::from(io::ErrorKind::NotFound);
    for base in bases.into_iter().flatten() {
        let Ok(base) = fs::canonicalize(base) else { continue };
        if base.starts_with(&workspace) || base.as_os_str().len() > MAX_TEMP_DIR_BYTES {
            continue;
        }
        match tempfile::Builder::new().prefix("jig-").tempdir_in(base) {
            Ok(directory) => return Ok(directory),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}
