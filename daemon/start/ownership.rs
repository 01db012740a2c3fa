//! Gives workspaces of root to the user that commands run as (`--chown-workspace`).

use super::error::StartError;
use crate::daemon::{
    config::Config,
    workspace::{ChownSummary, Workspace},
};

/// The user that the files of the workspace with this index are given to.
///
/// Each workspace has its own user, so that commands without namespaces cannot change modes and
/// times of files in another workspace.
pub(super) fn sandbox_user(config: &Config, workspace: usize) -> u32 {
    // The configuration has an id for each workspace. `u32::MAX` is not a valid user.
    config.sandbox_ids.get(workspace).copied().unwrap_or(u32::MAX)
}

/// Gives root's files in a workspace to `user` and logs it. Returns a summary line if any changed.
///
/// Does nothing unless the daemon runs as root: only root can change owners, and only then do
/// commands run as another user.
pub(super) fn chown_workspace(
    workspace: &mut Workspace,
    user: u32,
) -> Result<Option<String>, StartError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }

    let path = workspace.path().display().to_string();
    let ChownSummary { changed, skipped, skipped_example } = workspace
        .chown_to(user)
        .map_err(|source| StartError::Chown { path: path.clone(), user, source })?;
    if changed == 0 && skipped == 0 {
        return Ok(None);
    }

    let owner = workspace.owner().0;
    tracing::info!(
        workspace = workspace.name(),
        path,
        changed,
        owner,
        left = skipped,
        example = skipped_example.as_deref().unwrap_or_default(),
        "gave root's files in the workspace to the user of commands (--chown-workspace)"
    );
    let example = skipped_example.map_or_else(String::new, |example| format!(" ({example})"));
    Ok(Some(format!(
        "{changed} files and directories of root in {path} belong to user {owner} now (--chown-workspace), {skipped} stay root's{example}"
    )))
}
