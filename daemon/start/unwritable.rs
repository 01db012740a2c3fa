//! Warning about workspaces that an unprivileged daemon cannot write.

use std::{fs, os::unix::fs::MetadataExt as _};

use rustix::{
    fs::{Access, AtFlags, CWD, accessat},
    io::Errno,
    process::geteuid,
};

use super::shared_limits::StartWarning;
use crate::daemon::workspace::Workspace;

/// Warns if owner and mode of the workspace keep the daemon, and so its commands, from writing it.
///
/// No flag can change that for an unprivileged daemon.
pub(super) fn warning(workspace: &Workspace) -> Option<StartWarning> {
    let path = workspace.path();
    let (access, flags) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    if accessat(CWD, path, access, flags) != Err(Errno::ACCESS) {
        return None;
    }

    let owner = fs::metadata(path).ok()?.uid();
    Some(StartWarning {
        text: format!(
            "workspace {} at {path:?} belongs to user {owner}, and the daemon's user {} cannot write it: tools and commands can only read",
            workspace.name(),
            geteuid().as_raw()
        ),
        remedy: "have root give it to the daemon's user (chown -R), or start the daemon as its owner",
    })
}
