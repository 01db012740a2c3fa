//! Unix sockets of the host below workspaces and binds. A command that connects to one reaches the
//! program that listens there, whatever the network of commands is and though the mount be read-only.
//! The kernel refuses it where its Landlock can ([`landlock`]); where it cannot, the operator is told.

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

/// Sockets that a message names.
const MAX_NAMED_SOCKETS: usize = 8;
/// What an operator can do about them.
pub(super) const REMEDY: &str = "move them elsewhere or end the programs that listen there, or use Linux 7.1 or newer, whose Landlock refuses commands the sockets of others";
/// The kernel's list of Unix sockets in the daemon's network namespace.
const PROC_NET_UNIX: &str = "/proc/net/unix";

/// Sockets of the host that commands of a workspace could connect to.
#[derive(Debug, Default)]
pub(super) struct HostSockets(BTreeSet<PathBuf>);

impl HostSockets {
    /// Looks for those that are there now. Without a list there are none to be named.
    pub(super) fn find(
        config: &Config,
        workspace: &str,
        level: IsolationLevel,
        landlock_abi: u32,
    ) -> Self {
        // At L1 a command cannot make a socket.
        if level < IsolationLevel::L2 || landlock_abi >= landlock::RESOLVE_UNIX_ABI {
            return Self::default();
        }
        let list = fs::read(PROC_NET_UNIX).unwrap_or_default();
        let of_name = config.workspaces.iter();
        let of_name = of_name.filter(|config| config.name == workspace);
        Self(of_name.flat_map(|config| sockets_below(config, &list)).collect())
    }

    /// Adds those of another workspace.
    pub(super) fn add(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Their paths, where there are any.
    pub(super) fn describe(&self) -> Option<String> {
        let named = self.0.iter().take(MAX_NAMED_SOCKETS);
        let named: Vec<String> = named.map(|path| format!("{path:?}")).collect();
        let more = self.0.len() - named.len();
        match (named.is_empty(), more) {
            (true, _) => None,
            (false, 0) => Some(named.join(", ")),
            (false, more) => Some(format!("{} and {more} more", named.join(", "))),
        }
    }

    /// Tells the log, once for all.
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

/// Sockets of `list` that lie below the workspace or one of its binds.
fn sockets_below(workspace: &WorkspaceConfig, list: &[u8]) -> Vec<PathBuf> {
    let binds = workspace.binds.iter().map(|bind| &bind.source);
    let roots: Vec<&PathBuf> = binds.chain([&workspace.path]).collect();
    let identities: Vec<_> = roots.iter().filter_map(file_identity).collect();
    let lines = list.split(|byte| *byte == b'\n').skip(1);
    lines
        .filter_map(socket_path)
        .flat_map(|name| {
            // A relative name tells nothing of where its program was: the roots are looked at, an
            // absolute one stays what it is.
            roots.iter().map(move |root| root.join(name))
        })
        .filter_map(|path| resolve_socket_below(&path, &identities))
        .collect()
}

/// The path of a line of the list, if it has one.
fn socket_path(line: &[u8]) -> Option<&Path> {
    // Address, references, protocol, flags, type, state, inode.
    let mut rest = line;
    for _ in 0..7 {
        let field = rest.trim_ascii_start();
        let end = field.iter().position(u8::is_ascii_whitespace)?;
        rest = field.get(end..)?;
    }
    let name = rest.get(1..).filter(|name| !name.is_empty())?;
    // An abstract name.
    let is_path = !name.starts_with(b"@");
    is_path.then(|| Path::new(OsStr::from_bytes(name)))
}

/// The true path of a socket, if a directory above it is one of these: by device and inode, because
/// links and mounts give a directory other names.
fn resolve_socket_below(path: &Path, identities: &[(u64, u64)]) -> Option<PathBuf> {
    let folder = fs::canonicalize(path.parent()?).ok()?;
    let path = folder.join(path.file_name()?);
    let is_socket = path.symlink_metadata().ok()?.file_type().is_socket();
    let mut above = folder.ancestors().filter_map(file_identity);
    (is_socket && above.any(|above| identities.contains(&above))).then_some(path)
}

fn file_identity(path: impl AsRef<Path>) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::{HostSockets, MAX_NAMED_SOCKETS, socket_path};

    #[test]
    fn names_are_read_from_the_list() {
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
    fn a_message_names_some_and_counts_the_rest() {
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
