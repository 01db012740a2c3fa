//! Persistent home directories of commands: one for each workspace, in the state directory.
//!
//! A home belongs to the owner that the workspace had when the home was created. Other users cannot
//! enter the state directory. The daemon creates homes and never reads them: commands own their
//! content.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown},
    path::{Path, PathBuf},
};

use crate::daemon::{
    checksum::sha256,
    config::{Config, WorkspaceConfig},
    sandbox::plan::{BindMount, SANDBOX_HOME},
    store::state_dir::StateDir,
    sys::Errno,
    workspace::Workspace,
};

/// Longest part of a workspace's name in the name of its home.
const MAX_READABLE_NAME_BYTES: usize = 64;
/// Hexadecimal digits that distinguish the homes of workspaces with similar names.
const NAME_DIGEST_DIGITS: usize = 16;

/// Why a persistent home could not be created.
#[derive(Debug, thiserror::Error)]
#[error(
    "the persistent home directory of workspace {workspace} cannot be created in the state directory: {source}"
)]
pub(crate) struct HomeError {
    workspace: String,
    pub(super) source: io::Error,
}

/// Returns the home of each workspace with a persistent home, and creates missing ones.
pub(super) fn create_persistent_homes(
    config: &Config,
    workspaces: &[Workspace],
) -> Result<Vec<Option<BindMount>>, HomeError> {
    let home = |(config_of, workspace): (&WorkspaceConfig, &Workspace)| {
        if !config_of.persistent_home {
            return Ok(None);
        }
        let created = create_home(&config.state_dir, config_of, workspace);
        created.map(Some).map_err(|source| HomeError { workspace: config_of.name.clone(), source })
    };
    config.workspaces.iter().zip(workspaces).map(home).collect()
}

fn create_home(
    state: &Path,
    config: &WorkspaceConfig,
    workspace: &Workspace,
) -> io::Result<BindMount> {
    let source = StateDir::create_directory_in(state, "homes")?.join(home_dir_name(config));
    match DirBuilder::new().mode(0o700).create(&source) {
        Ok(()) => chown_to_workspace_owner(&source, workspace)?,
        // The files in an existing home belong to the earlier owner, so a new owner of the
        // directory alone could not use them. With mapped owners the home belongs to the commands
        // in any case; otherwise the sandbox setup checks the owner.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }

    let home = source.metadata()?;
    Ok(BindMount {
        file_identity: (home.dev(), home.ino()),
        source,
        destination: PathBuf::from(SANDBOX_HOME),
        writable: true,
    })
}

/// Gives a new home to the workspace's owner, as which commands create files.
fn chown_to_workspace_owner(home: &Path, workspace: &Workspace) -> io::Result<()> {
    let owner = rustix::fs::fstat(workspace)?;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }

    let result = chown(home, Some(owner.st_uid), Some(owner.st_gid));
    match result.as_ref().map_err(Errno::from_io_error) {
        // Root of a container without CAP_CHOWN, or without that user in its user namespace. There,
        // commands create files as root too.
        Err(Some(Errno::PERM | Errno::INVAL)) => Ok(()),
        _ => result,
    }
}

/// Name of a workspace's home: its readable name and a digest of its name and path.
///
/// A directory elsewhere with the same name is another workspace. Its commands must not find the
/// files of this one.
fn home_dir_name(config: &WorkspaceConfig) -> String {
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
    use super::{WorkspaceConfig, home_dir_name};
    use crate::daemon::config::protection::Protection;

    fn name_of(workspace: &str, path: &str) -> String {
        home_dir_name(&WorkspaceConfig {
            name: workspace.to_owned(),
            path: path.into(),
            mount_path: "/workspace".into(),
            binds: Vec::new(),
            follow_links: false,
            protection: Protection::default(),
            run_timeout: None,
            persistent_home: true,
        })
    }

    #[test]
    fn each_workspace_has_its_own_home() {
        let homes = [
            name_of("app", "/a/app"),
            name_of("app", "/b/app"),
            name_of("../app", "/a/app"),
            name_of("__/app", "/a/app"),
            name_of(&"n".repeat(120), "/a"),
            name_of(&"n".repeat(119), "/a"),
        ];
        for (index, home) in homes.iter().enumerate() {
            assert!(!homes[..index].contains(home), "{home}");
            assert!(!home.contains(['/', '.']) && home.len() <= 81, "{home}");
        }
        assert!(homes[0].starts_with("app-"));
        assert_eq!(homes[0], name_of("app", "/a/app"));
    }
}
