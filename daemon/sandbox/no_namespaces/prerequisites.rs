//! The prerequisites of running commands in the daemon's own namespaces (L1).

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

/// The first Landlock version that confines signals and abstract sockets to a domain.
const MIN_LANDLOCK_ABI: u32 = 6;
/// Longest path of the directory for temporary files: a path below it must fit into
/// `MAX_HANDLE_MESSAGE_BYTES`.
const MAX_TEMPORARY_PATH_BYTES: usize = 160;

pub(super) fn check_prerequisites(
    plan: &SandboxPlan,
    workspace: &WorkspacePlan,
    identity: SandboxIdentity,
) -> Result<(), StageFailure> {
    let refused = |text: String| Err(StageFailure::other(Stage::NoNamespaces, text));
    if plan.landlock_abi < MIN_LANDLOCK_ABI {
        let text = format!(
            "the kernel offers version {} of Landlock, and confining signals to a run needs version {MIN_LANDLOCK_ABI}",
            plan.landlock_abi
        );
        return Err(StageFailure::from_errno(Stage::NoNamespaces, Errno::OPNOTSUPP, text));
    }

    if plan.network != NetworkMode::None {
        let text = format!(
            "the network {} is configured, and commands without a network namespace get none",
            plan.network.name()
        );
        return refused(text);
    }

    check_mounts(workspace)?;
    check_workspace_access(&workspace.path, identity)?;
    check_system_directories(identity)?;
    check_temporary_directory(plan)?;
    check_daemon_not_dumpable(plan, identity)
}

/// The workspace must not need mounts.
fn check_mounts(workspace: &WorkspacePlan) -> Result<(), StageFailure> {
    let refused = |text: String| Err(StageFailure::other(Stage::NoNamespaces, text));
    let mount_path = &workspace.mount_path;
    if *mount_path != Path::new(DEFAULT_MOUNT_PATH) && *mount_path != workspace.path {
        let text = "mount_path is not the workspace's own path, which needs a mount";
        return refused(text.to_owned());
    }

    let required = workspace.protected_paths.first().filter(|_| workspace.requires_protection);
    if let Some(protected) = required {
        let path = &protected.path;
        let text = format!("{path:?} is a protected path of the workspace, which needs a mount");
        return Err(StageFailure::other(Stage::ProtectedPaths, text));
    }

    if let Some(stage) = workspace.persistent.stage() {
        let text = "a persistent directory is configured, which needs a mount";
        return Err(StageFailure::other(stage, text));
    }

    if let Some(bind) = workspace.binds.iter().find(|bind| bind.source != bind.destination) {
        let text = format!(
            "{} is bound at {}, which needs a mount",
            bind.source.display(),
            bind.destination.display()
        );
        return refused(text);
    }
    Ok(())
}

/// The commands' user must be able to enter the workspace.
fn check_workspace_access(workspace: &Path, identity: SandboxIdentity) -> Result<(), StageFailure> {
    for ancestor in workspace.ancestors().skip(1) {
        let is_closed = fs::metadata(ancestor).is_ok_and(|metadata| {
            let needed = match (metadata.uid(), metadata.gid()) {
                (uid, _) if uid == identity.uid => 0o100,
                (_, gid) if gid == identity.gid => 0o010,
                _ => 0o001,
            };
            metadata.mode() & needed == 0
        });
        if is_closed {
            let text = format!(
                "{} is closed to user {} of commands: they cannot enter the workspace below it (chmod o+x permits it)",
                ancestor.display(),
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
            let text = format!("{path} belongs to user {} of commands", identity.uid);
            return Err(StageFailure::other(Stage::NoNamespaces, text));
        }
    }
    Ok(())
}

/// Directories for temporary files must be out of reach of other runs, of every workspace, and of
/// the tools.
fn check_temporary_directory(plan: &SandboxPlan) -> Result<(), StageFailure> {
    let refused = |text: String| Err(StageFailure::other(Stage::NoNamespaces, text));
    let temporary = &plan.temporary_directory;
    if !temporary.is_dir() || temporary.as_os_str().len() > MAX_TEMPORARY_PATH_BYTES {
        return refused(format!(
            "TMPDIR is {}: it must be a directory with a path of at most {MAX_TEMPORARY_PATH_BYTES} bytes",
            temporary.display()
        ));
    }

    let created = plan.created_workspaces.iter().map(|created| &created.model);
    let visible = plan.workspaces.iter().chain(created).flat_map(|workspace| {
        let binds = workspace.binds.iter().map(|bind| &bind.source);
        binds.chain([&workspace.path]).cloned()
    });
    let system = SYSTEM_DIRECTORIES.iter().map(PathBuf::from);
    if let Some(parent) = visible.chain(system).find(|path| temporary.starts_with(path)) {
        return refused(format!(
            "the directory for temporary files, {}, lies in {}, which commands see",
            temporary.display(),
            parent.display()
        ));
    }
    Ok(())
}

/// The daemon's processes must not be dumpable, so that their files in `/proc` belong to root.
fn check_daemon_not_dumpable(
    plan: &SandboxPlan,
    identity: SandboxIdentity,
) -> Result<(), StageFailure> {
    for process in &plan.daemon_processes {
        let path = format!("/proc/{process}/environ");
        let is_readable = fs::metadata(&path).is_ok_and(|file| file.uid() == identity.uid);
        if is_readable {
            let text = format!("process {process} of the daemon is dumpable");
            return Err(StageFailure::other(Stage::NoNamespaces, text));
        }
    }
    Ok(())
}
