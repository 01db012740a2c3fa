//! What must be so for commands to be run in the daemon's own namespaces.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::super::{
    plan::{DEFAULT_MOUNT_PATH, NetworkMode, SYSTEM_DIRECTORIES, SandboxPlan, WorkspacePlan},
    stage::{Stage, StageFailure},
    wire::SandboxIdentity,
};
use crate::daemon::sys::Errno;

/// The first version of Landlock that keeps signals and abstract sockets within a domain.
const MIN_LANDLOCK_ABI: u32 = 6;
/// Longest path of the directory for temporary files: what is made in it must fit in a token.
const MAX_TEMPORARY_PATH_BYTES: usize = 160;

/// Checks it.
pub(super) fn check_prerequisites(
    plan: &SandboxPlan,
    workspace: &WorkspacePlan,
    identity: SandboxIdentity,
) -> Result<(), StageFailure> {
    let refused = |text: String| Err(StageFailure::other(Stage::NoNamespaces, text));
    if plan.landlock_abi < MIN_LANDLOCK_ABI {
        let text = format!(
            "the kernel offers version {} of Landlock, and signals are kept within a run from version {MIN_LANDLOCK_ABI} on",
            plan.landlock_abi
        );
        return Err(StageFailure::from_errno(Stage::NoNamespaces, Errno::OPNOTSUPP, text));
    }
    if plan.network != NetworkMode::None {
        let text = format!(
            "commands are to have the network {}, and without a namespace of their own they get none",
            plan.network.name()
        );
        return refused(text);
    }
    let mount_path = &workspace.mount_path;
    if *mount_path != Path::new(DEFAULT_MOUNT_PATH) && *mount_path != workspace.path {
        let text = "mount_path asks for another path than the workspace's own, which needs a mount";
        return refused(text.to_owned());
    }
    let required = workspace.protected_paths.first().filter(|_| workspace.requires_protection);
    if let Some(protected) = required {
        let path = &protected.path;
        let text = format!("{path:?} is to be protected within the workspace, which needs a mount");
        return Err(StageFailure::other(Stage::ProtectedPaths, text));
    }
    if workspace.has_persistent_home {
        let text = "the home directory is to be kept, which needs a mount";
        return Err(StageFailure::other(Stage::PersistentHome, text));
    }
    if let Some(bind) = workspace.binds.iter().find(|bind| bind.source != bind.destination) {
        let text = format!(
            "{} is to be bound at {}, which needs a mount",
            bind.source.display(),
            bind.destination.display()
        );
        return refused(text);
    }
    check_workspace_access(&workspace.path, identity)?;
    check_system_directories(identity)?;
    check_temporary_directory(plan)?;
    check_daemon_not_dumpable(plan, identity)
}

/// The commands' user must be able to enter the workspace.
fn check_workspace_access(workspace: &Path, identity: SandboxIdentity) -> Result<(), StageFailure> {
    for above in workspace.ancestors().skip(1) {
        let closed = fs::metadata(above).is_ok_and(|above| {
            let needed = match (above.uid(), above.gid()) {
                (uid, _) if uid == identity.uid => 0o100,
                (_, gid) if gid == identity.gid => 0o010,
                _ => 0o001,
            };
            above.mode() & needed == 0
        });
        if closed {
            let text = format!(
                "{} is closed to user {}, the commands': they cannot enter the workspace below it (chmod o+x lets them)",
                above.display(),
                identity.uid
            );
            return Err(StageFailure::from_errno(Stage::NoNamespaces, Errno::ACCESS, text));
        }
    }
    Ok(())
}

/// The system's directories must not belong to the commands' user: Landlock does not mediate
/// chmod(2).
fn check_system_directories(identity: SandboxIdentity) -> Result<(), StageFailure> {
    for path in SYSTEM_DIRECTORIES.iter().chain(&["/", "/etc"]) {
        let owner = fs::metadata(path).map(|metadata| metadata.uid());
        if owner.is_ok_and(|owner| owner == identity.uid) {
            let text = format!("{path} belongs to user {}, the commands'", identity.uid);
            return Err(StageFailure::other(Stage::NoNamespaces, text));
        }
    }
    Ok(())
}

/// What is made for one run must be out of the reach of the others, of every workspace, and of the
/// tools.
fn check_temporary_directory(plan: &SandboxPlan) -> Result<(), StageFailure> {
    let refused = |text: String| Err(StageFailure::other(Stage::NoNamespaces, text));
    let temporary = &plan.temporary_directory;
    let shown = temporary.display();
    if !temporary.is_dir() || temporary.as_os_str().len() > MAX_TEMPORARY_PATH_BYTES {
        return refused(format!("{shown} is no directory for temporary files"));
    }
    let seen = plan.workspaces.iter().flat_map(|workspace| {
        let binds = workspace.binds.iter().map(|bind| &bind.source);
        binds.chain([&workspace.path]).cloned()
    });
    let system = SYSTEM_DIRECTORIES.iter().map(PathBuf::from);
    if let Some(seen) = seen.chain(system).find(|seen| temporary.starts_with(seen)) {
        return refused(format!(
            "{shown}, for temporary files, lies in {}, which runs see",
            seen.display()
        ));
    }
    Ok(())
}

/// The daemon's processes must not be dumpable: then their files in `/proc` belong to root.
fn check_daemon_not_dumpable(
    plan: &SandboxPlan,
    identity: SandboxIdentity,
) -> Result<(), StageFailure> {
    for process in &plan.daemon_processes {
        let path = format!("/proc/{process}/environ");
        let open = fs::metadata(&path).is_ok_and(|file| file.uid() == identity.uid);
        if open {
            let text = format!("process {process}, the daemon's, is dumpable");
            return Err(StageFailure::other(Stage::NoNamespaces, text));
        }
    }
    Ok(())
}
