//! Reports on paths of a repository that the daemon protects by default.

use super::shared_limits::StartWarning;
use crate::daemon::{config::Config, sandbox::level::IsolationLevel};

/// Logs which paths of the workspace are protected by default, or warns that they are not.
pub(super) fn log(config: &Config, workspace: &str, level: IsolationLevel) {
    if let Some(warning) = warning(config, workspace, level) {
        warning.log();
        return;
    }

    let protection = config.protection(workspace);
    if let Some(protection) =
        protection.filter(|protection| !protection.required && !protection.paths.is_empty())
    {
        tracing::info!(
            workspace,
            paths = protection.path_names().join(", "),
            remedy = "--protect none lets tools and commands change them",
            "the workspace is a repository: files that make git run programs are protected"
        );
    }
}

/// Warns if commands can change files that make git run programs, and the operator has not accepted
/// it.
pub(super) fn warning(
    config: &Config,
    workspace: &str,
    level: IsolationLevel,
) -> Option<StartWarning> {
    let protection = config.protection(workspace)?;
    if let Some(problem) = &protection.problem {
        return Some(StartWarning {
            text: format!("workspace {workspace} is a repository that is not protected: {problem}"),
            remedy: "replace the link, list what to protect with --protect, or disable the protection with --protect none",
        });
    }

    let is_unprotected =
        level == IsolationLevel::L1 && !protection.required && !protection.paths.is_empty();
    is_unprotected.then(|| StartWarning {
        text: format!(
            "workspace {workspace} is a repository, and commands can change what makes git run programs: these paths are NOT protected at {level}, where only file tools refuse to change them: {}",
            protection.path_names().join(", ")
        ),
        remedy: "make L2 available (jigd --check shows what it needs), or run git in a clone of the workspace and not in the workspace; --protect none disables this warning",
    })
}
