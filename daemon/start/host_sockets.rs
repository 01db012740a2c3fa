//! Finds Unix sockets of the host below workspaces and binds, to warn about them.
//!
//! A command that connects to such a socket reaches the host program that listens there, even with
//! the network disabled and a read-only mount. Landlock refuses the connection if the kernel
//! supports that ([`landlock`]). Otherwise the operator gets a warning.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use crate::daemon::{
    config::{Config, WorkspaceConfig},
    sandbox::{landlock, level::IsolationLevel},
};

/// Sockets that a message names at most.
const MAX_NAMED_SOCKETS: usize = 8;
/// What the operator can do about such sockets.
pub(super) const REMEDY: &str = "move the sockets out of the workspaces and binds, stop the programs that listen on them, or use Linux 7.1 or newer, where Landlock denies commands access to sockets of other processes";
/// The kernel's list of Unix sockets in the daemon's network namespace.
const PROC_NET_UNIX: &str = "/proc/net/unix";
/// Fields of a line before the path: address, references, protocol, flags, type, state, inode.
const FIELDS_BEFORE_PATH: usize = 7;

/// Sockets of the host that commands of a workspace could connect to.
#[derive(Debug, Default)]
pub(super) struct HostSockets(BTreeSet<PathBuf>);

impl HostSockets {
    /// Searches the sockets that exist now. Finds none if the kernel's list cannot be read.
    pub(super) fn find(
        config: &Config,
        workspace: &str,
        level: IsolationLevel,
        landlock_abi: u32,
    ) -> Self {
        // At L1, commands cannot create a socket.
        if level < IsolationLevel::L2 || landlock_abi >= landlock::RESOLVE_UNIX_ABI {
            return Self::default();
        }

        let list = fs::read(PROC_NET_UNIX).unwrap_or_default();
        let matching = config.workspaces.iter().filter(|config| config.name == workspace);
        Self(matching.flat_map(|config| sockets_below(config, &list)).collect())
    }

    /// Adds the sockets of another workspace.
    pub(super) fn add(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Lists their paths for a message; `None` if there are none.
    pub(super) fn describe(&self) -> Option<String> {
        let paths = self.0.iter().take(MAX_NAMED_SOCKETS);
        let paths: Vec<String> = paths.map(|path| format!("{path:?}")).collect();
        let more = self.0.len() - paths.len();
        match (paths.is_empty(), more) {
            (true, _) => None,
            (false, 0) => Some(paths.join(", ")),
            (false, more) => Some(format!("{} and {more} more", paths.join(", "))),
        }
    }

    /// Logs one warning for all of them.
    pub(super) fn warn(&self) {
        if let Some(sockets) = self.describe() {
            tracing::warn!(
                sockets,
                remedy = REMEDY,
                "commands can connect to Unix sockets of the host that lie below workspaces or binds"
            );
        }
    }
}

/// Returns the sockets of `list` below the workspace or one of its binds.
fn sockets_below(workspace: &WorkspaceConfig, list: &[u8]) -> Vec<PathBuf> {
    let binds = workspace.binds.iter().map(|bind| &bind.source);
    let roots: Vec<&PathBuf> = binds.chain([&workspace.path]).collect();
    let identities: Vec<_> = roots.iter().filter_map(file_identity).collect();

    let lines = list.split(|byte| *byte == b'\n').skip(1);
    lines
        .filter_map(socket_path)
        // A relative path does not say where its program was, so try it below each root. `join`
        // leaves an absolute path unchanged.
        .flat_map(|path| roots.iter().map(move |root| root.join(path)))
        .filter_map(|path| resolve_socket_below(&path, &identities))
        .collect()
}

/// Returns the path in a line of the list; `None` for unnamed and abstract sockets.
fn socket_path(line: &[u8]) -> Option<&Path> {
    let mut rest = line;
    for _ in 0..FIELDS_BEFORE_PATH {
        let field = rest.trim_ascii_start();
        let end = field.iter().position(u8::is_ascii_whitespace)?;
        rest = field.get(end..)?;
    }

    let name = rest.get(1..).filter(|name| !name.is_empty())?;
    let is_abstract = name.starts_with(b"@");
    (!is_abstract).then(|| Path::new(OsStr::from_bytes(name)))
}

/// Returns the canonical path of a socket, if one of its parent directories is in `identities`.
///
/// Compares device and inode, because links and mounts give a directory other paths.
fn resolve_socket_below(path: &Path, identities: &[(u64, u64)]) -> Option<PathBuf> {
    let directory = fs::canonicalize(path.parent()?).ok()?;
    let path = directory.join(path.file_name()?);
    let is_socket = path.symlink_metadata().ok()?.file_type().is_socket();
    let mut parents = directory.ancestors().filter_map(file_identity);
    (is_socket && parents.any(|parent| identities.contains(&parent))).then_some(path)
}

/// Device and inode of a file.
fn file_identity(path: impl AsRef<Path>) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::{HostSockets, MAX_NAMED_SOCKETS, socket_path};

    #[test]
    fn paths_are_parsed_from_the_list() {
        let line = |name: &str| {
            format!("0000000000000000: 00000002 00000000 00010000 0001 01    42{name}")
        };
        let read = |text: &str| socket_path(line(text).as_bytes()).map(Path::to_owned);
        assert_eq!(read(""), None);
        assert_eq!(read(" @abstract"), None);
        assert_eq!(read(" /run/a b"), Some("/run/a b".into()));
        assert_eq!(read(" own.sock"), Some("own.sock".into()));
    }

    #[test]
    fn message_names_first_sockets_and_counts_the_rest() {
        let sockets = |count: usize| {
            let paths = (0..count).map(|number| format!("/w/{number}").into());
            HostSockets(paths.collect::<BTreeSet<_>>())
        };
        assert_eq!(sockets(0).describe(), None);
        assert_eq!(sockets(1).describe().unwrap(), "\"/w/0\"");
        let many = sockets(MAX_NAMED_SOCKETS + 2).describe().unwrap();
        assert!(many.ends_with(" and 2 more"), "{many}");
    }
}
