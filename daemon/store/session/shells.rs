//! The states of named shells: files in the session's directory, one per caller and name.
//!
//! ```text
//! shells/OWNER/NAME     OWNER is the SHA-256 of the caller's name
//! ```
//!
//! They are removed with the session. They are not in the database, because its files would continue
//! to hold values that a command has removed (see [`crate::daemon::store::job_params`]).

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use crate::daemon::{checksum::sha256, store::directory::create, sys::STAT_BLOCK_BYTES};

/// Shells of one caller in a session.
pub(crate) const MAX_SHELLS_PER_CALLER: usize = 32;
/// Longest name of a shell, in characters.
const MAX_NAME_CHARS: usize = 64;
const SHELLS_DIR: &str = "shells";
/// Prefix of a file that is being written. No name of a shell begins with a dot.
const UNFINISHED_PREFIX: &str = ".new-";

/// A shell of a caller in a session.
#[derive(Debug, Clone)]
pub(crate) struct ShellName(String);

/// The stored state of a shell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StoredShell {
    State(Vec<u8>),
    /// The shell has none.
    New,
    /// The shell has none, and its caller has [`MAX_SHELLS_PER_CALLER`] others.
    TooMany,
}

impl ShellName {
    /// Parses a name: letters, digits, dots, underscores and hyphens, without a dot at the beginning.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_valid = (1..=MAX_NAME_CHARS).contains(&name.len())
            && !name.starts_with('.')
            && name.bytes().all(is_allowed);
        is_valid.then(|| Self(name.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Reads the state of a shell of the caller `owner` in the session in `directory`.
pub(super) fn read(directory: &Path, owner: &str, name: &ShellName) -> io::Result<StoredShell> {
    let shells = owner_directory(directory, owner);
    match fs::read(shells.join(&name.0)) {
        Ok(state) => Ok(StoredShell::State(state)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let is_full = count_shells(&shells)? >= MAX_SHELLS_PER_CALLER;
            Ok(if is_full { StoredShell::TooMany } else { StoredShell::New })
        }
        Err(error) => Err(error),
    }
}

/// Replaces the state of a shell, completely or not at all.
pub(super) fn save(
    directory: &Path,
    owner: &str,
    name: &ShellName,
    state: &[u8],
) -> io::Result<()> {
    create(&directory.join(SHELLS_DIR))?;
    let shells = owner_directory(directory, owner);
    create(&shells)?;

    let unfinished = shells.join(format!("{UNFINISHED_PREFIX}{}", name.0));
    let written =
        write_file(&unfinished, state).and_then(|()| fs::rename(&unfinished, shells.join(&name.0)));
    if written.is_err() {
        let _removed = fs::remove_file(&unfinished);
    }
    written
}

/// Removes the state of a shell, if it has one.
pub(super) fn remove(directory: &Path, owner: &str, name: &ShellName) -> io::Result<()> {
    match fs::remove_file(owner_directory(directory, owner).join(&name.0)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn owner_directory(directory: &Path, owner: &str) -> PathBuf {
    directory.join(SHELLS_DIR).join(sha256(owner.as_bytes()))
}

/// Returns the bytes that the states of the session in `directory` take on the disk.
pub(super) fn disk_usage(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for owner in entries(&directory.join(SHELLS_DIR))? {
        for file in entries(&owner)? {
            match fs::symlink_metadata(file) {
                Ok(metadata) => bytes += metadata.blocks() * STAT_BLOCK_BYTES,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(bytes)
}

fn count_shells(directory: &Path) -> io::Result<usize> {
    let is_shell = |path: &PathBuf| {
        path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.'))
    };
    Ok(entries(directory)?.iter().filter(|path| is_shell(path)).count())
}

/// Lists a directory; nothing if it does not exist.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file =
        File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content)
}
