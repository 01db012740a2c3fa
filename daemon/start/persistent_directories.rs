//! Persistent directories of commands: a home and a `/tmp` for each workspace of the configuration,
//! in the state directory.
//!
//! A directory belongs to the owner that the workspace had when the directory was created. Other
//! users cannot enter the state directory. The daemon creates these directories and never reads
//! them: commands own their content.

use std::{
    fs::{DirBuilder, Permissions, set_permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

use crate::daemon::{
    checksum::sha256,
    config::{Config, WorkspaceConfig},
    sandbox::plan::{BindMount, SANDBOX_HOME, SANDBOX_TMP},
    store::state_dir::StateDir,
    sys::Errno,
    workspace::Workspace,
};

/// Longest part of a workspace's name in the names of its directories.
const MAX_READABLE_NAME_BYTES: usize = 64;
/// Hexadecimal digits that distinguish the directories of workspaces with similar names.
const NAME_DIGEST_DIGITS: usize = 16;
/// Mode of a home.
const HOME_MODE: u32 = 0o700;
/// Mode of a `/tmp`. Programs check for it, and other users cannot enter the state directory.
const TMP_MODE: u32 = 0o1777;

/// Why a persistent directory could not be created.
#[derive(Debug, thiserror::Error)]
#[error(
    "the persistent {directory} of workspace {workspace} cannot be created in the state directory: {source}"
)]
pub(crate) struct PersistentDirectoryError {
    directory: &'static str,
    workspace: String,
    pub(super) source: io::Error,
}

/// Returns the persistent directories of each workspace, and creates missing ones.
pub(super) fn create_persistent_directories(
    config: &Config,
    workspaces: &[Workspace],
) -> Result<Vec<Vec<BindMount>>, PersistentDirectoryError> {
    let directories = |(config_of, workspace): (&WorkspaceConfig, &Workspace)| {
        let create = |directory, parent, mode, destination| {
            create(&config.state_dir, parent, mode, destination, config_of, workspace).map_err(
                |source| {
                    let workspace = config_of.name.clone();
                    PersistentDirectoryError { directory, workspace, source }
                },
            )
        };
        let mut binds = Vec::new();
        if config_of.persistent.home {
            binds.push(create("home directory", "homes", HOME_MODE, SANDBOX_HOME)?);
        }
        if config_of.persistent.tmp {
            binds.push(create("/tmp", "tmp", TMP_MODE, SANDBOX_TMP)?);
        }
        Ok(binds)
    };
    config.workspaces.iter().zip(workspaces).map(directories).collect()
}

/// Creates the directory of a workspace below `parent` in the state directory, unless it exists.
fn create(
    state: &Path,
    parent: &str,
    mode: u32,
    destination: &str,
    config: &WorkspaceConfig,
    workspace: &Workspace,
) -> io::Result<BindMount> {
    let source = StateDir::create_directory_in(state, parent)?.join(directory_name(config));
    match DirBuilder::new().mode(HOME_MODE).create(&source) {
        Ok(()) => {
            // Not by mkdir(2), which applies the umask.
            set_permissions(&source, Permissions::from_mode(mode))?;
            chown_to_workspace_owner(&source, workspace)?;
        }
        // The files in an existing directory belong to the earlier owner, so a new owner of the
        // directory alone could not use them. With mapped owners it belongs to the commands in any
        // case; otherwise the sandbox setup checks the owner.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }

    let metadata = source.metadata()?;
    Ok(BindMount {
        file_identity: (metadata.dev(), metadata.ino()),
        source,
        destination: PathBuf::from(destination),
        writable: true,
    })
}

/// Gives a new directory to the workspace's owner, as which commands create files.
fn chown_to_workspace_owner(directory: &Path, workspace: &Workspace) -> io::Result<()> {
    let owner = rustix::fs::fstat(workspace)?;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }

    let result = chown(directory, Some(owner.st_uid), Some(owner.st_gid));
    match result.as_ref().map_err(Errno::from_io_error) {
        // Root of a container without CAP_CHOWN, or without that user in its user namespace. There,
        // commands create files as root too.
        Err(Some(Errno::PERM | Errno::INVAL)) => Ok(()),
        _ => result,
    }
}

/// Name of a workspace's directory: its readable name and a digest of its name and path.
///
/// A directory elsewhere with the same name is another workspace. Its commands must not find the
/// files of this one.
fn directory_name(config: &WorkspaceConfig) -> String {
    let safe_char = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte),
        _ => '_',
    };
    let bytes = config.name.bytes().take(MAX_READABLE_NAME_BYTES);
    let readable: String = bytes.map(safe_char).collect();

    let path = config.path.as_os_str().as_encoded_bytes();
    let digest = sha256(&[config.name.as_bytes(), path].join(&0));
    format!("{readable}-{}", &digest[..NAME_DIGEST_DIGITS])
}

#[cfg(test)]
mod tests {
    use super::{WorkspaceConfig, directory_name};
    use crate::daemon::{config::protection::Protection, sandbox::plan::PersistentDirectories};

    fn name_of(workspace: &str, path: &str) -> String {
        directory_name(&WorkspaceConfig {
            name: workspace.to_owned(),
            path: path.into(),
            mount_path: "/workspace".into(),
            binds: Vec::new(),
            follow_links: false,
            protection: Protection::default(),
            run_timeout: None,
            persistent: PersistentDirectories::default(),
        })
    }

    #[test]
    fn each_workspace_has_its_own_directory() {
        let names = [
            name_of("app", "/a/app"),
            name_of("app", "/b/app"),
            name_of("../app", "/a/app"),
            name_of("__/app", "/a/app"),
            name_of(&"n".repeat(120), "/a"),
            name_of(&"n".repeat(119), "/a"),
        ];
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{name}");
            assert!(!name.contains(['/', '.']) && name.len() <= 81, "{name}");
        }
        assert!(names[0].starts_with("app-"));
        assert_eq!(names[0], name_of("app", "/a/app"));
    }
}
