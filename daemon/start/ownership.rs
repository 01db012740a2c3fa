//! Workspaces whose files are given to the user that commands run as.

use super::error::StartError;
use crate::daemon::{
    config::Config,
    workspace::{ChownSummary, Workspace},
};

/// The user that a workspace's files are given to: another one for each, so that commands without
/// namespaces cannot change modes and times of another workspace's files.
pub(super) fn sandbox_user(config: &Config, workspace: usize) -> u32 {
    // There is one for each workspace; the last number is no user.
    config.sandbox_ids.get(workspace).copied().unwrap_or(u32::MAX)
}

/// Gives root's files in a workspace to `user`, and logs it. Only root can, and only for root is there a
/// need. Returns what has changed, as a line.
pub(super) fn chown_workspace(
    workspace: &mut Workspace,
    user: u32,
) -> Result<Option<String>, StartError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let path = workspace.path().display().to_string();
    let given = workspace.chown_to(user);
    let ChownSummary { changed, skipped: left, skipped_example: example } =
        given.map_err(|source| StartError::Chown { path: path.clone(), user, source })?;
    if changed == 0 && left == 0 {
        return Ok(None);
    }
    let owner = workspace.owner().0;
    tracing::info!(
        workspace = workspace.name(),
        path,
        changed,
        owner,
        left,
        example = example.as_deref().unwrap_or_default(),
        "what belonged to root in the workspace belongs to the user of commands now (--chown-workspace)"
    );
    let example = example.map_or_else(String::new, |example| format!(" ({example})"));
    Ok(Some(format!(
        "{changed} files and directories of root in {path} belong to user {owner} now (--chown-workspace), {left} stay root's{example}"
    )))
}
