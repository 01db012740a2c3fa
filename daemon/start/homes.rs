//! Home directories that are kept: one for each workspace, in the state directory.
//!
//! They belong to whom the workspace did when they were made, and nobody else can enter the state
//! directory. The daemon makes them and never looks into them: what they hold is the commands'.

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
/// Digits that tell apart the homes of workspaces whose names look alike.
const NAME_DIGEST_DIGITS: usize = 16;

/// Why a home that is to be kept is not there.
#[derive(Debug, thiserror::Error)]
#[error(
    "the home directory of workspace {workspace}, which is to be kept, cannot be made in the state directory: {source}"
)]
pub(crate) struct HomeError {
    /// The workspace.
    workspace: String,
    /// Why.
    source: io::Error,
}

/// The home of each workspace, where it is kept: made, if it is missing.
pub(super) fn create_persistent_homes(
    config: &Config,
    workspaces: &[Workspace],
) -> Result<Vec<Option<BindMount>>, HomeError> {
    let home = |(of, workspace): (&WorkspaceConfig, &Workspace)| {
        if !of.persistent_home {
            return Ok(None);
        }
        let made = create_home(&config.state_dir, of, workspace);
        made.map(Some).map_err(|source| HomeError { workspace: of.name.clone(), source })
    };
    config.workspaces.iter().zip(workspaces).map(home).collect()
}

fn create_home(
    state: &Path,
    config: &WorkspaceConfig,
    workspace: &Workspace,
) -> io::Result<BindMount> {
    let source = StateDir::create_folder_in(state, "homes")?.join(home_dir_name(config));
    match DirBuilder::new().mode(0o700).create(&source) {
        Ok(()) => chown_to_workspace_owner(&source, workspace)?,
        // What is in it belongs to whom it was made for: a new owner of the directory alone could do
        // nothing with it. Where owners are mapped, it is its commands' all the same; elsewhere the
        // sandbox's makers look.
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

/// Gives a new home to the workspace's owner, as whom commands make files.
fn chown_to_workspace_owner(home: &Path, workspace: &Workspace) -> io::Result<()> {
    let owner = rustix::fs::fstat(workspace)?;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let given = chown(home, Some(owner.st_uid), Some(owner.st_gid));
    match given.as_ref().map_err(Errno::from_io_error) {
        // Root of a container that may not, or whose user namespace does not have that user: its
        // commands make files as root themselves.
        Err(Some(Errno::PERM | Errno::INVAL)) => Ok(()),
        _ => given,
    }
}

/// Name of a workspace's home: another directory of the same name is another workspace, whose
/// commands must not find what these left.
fn home_dir_name(config: &WorkspaceConfig) -> String {
    let plain = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte),
        _ => '_',
    };
    let readable: String = config.name.bytes().take(MAX_READABLE_NAME_BYTES).map(plain).collect();
    let path = config.path.as_os_str().as_encoded_bytes();
    let sum = sha256(&[config.name.as_bytes(), path].join(&0));
    format!("{readable}-{}", &sum[..NAME_DIGEST_DIGITS])
}

#[cfg(test)]
mod tests {
    use super::{WorkspaceConfig, home_dir_name};
    use crate::daemon::config::protection::Protection;

    fn of(workspace: &str, path: &str) -> String {
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
    fn each_workspace_has_a_home_of_its_own() {
        let homes = [
            of("app", "/a/app"),
            of("app", "/b/app"),
            of("../app", "/a/app"),
            of("__/app", "/a/app"),
            of(&"n".repeat(120), "/a"),
            of(&"n".repeat(119), "/a"),
        ];
        for (index, home) in homes.iter().enumerate() {
            assert!(!homes[..index].contains(home), "{home}");
            assert!(!home.contains(['/', '.']) && home.len() <= 81, "{home}");
        }
        assert!(homes[0].starts_with("app-"));
        assert_eq!(homes[0], of("app", "/a/app"));
    }
}
