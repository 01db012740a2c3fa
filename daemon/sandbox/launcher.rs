//! The launcher: process 1 of the namespaces in which all sandboxes live. When it dies, all of them
//! die.
//!
//! It holds no secrets and serves no callers: it starts templates when the keeper requests them.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use nix::sched::{CloneFlags, unshare};
use rustix::{
    mount::{MountFlags, mount},
    process::{Signal, set_parent_process_death_signal},
};

use super::{
    plan::{NetworkMode, SandboxPlan},
    root,
    stage::{Stage, StageFailure, at_stage},
    template,
    wire::{SandboxIdentity, SetupReply, StartTemplateRequest, receive, send},
};
use crate::daemon::sys::{
    from_nix,
    process::{Fork, SingleThreaded, exit_now, fork},
    set_process_name,
};

/// Namespaces of a template, besides the network namespace. When the template ends, its process
/// namespace ends its runs.
const TEMPLATE_NAMESPACES: i32 = libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Namespaces that a process passes through before it becomes the launcher, if `/proc` is masked.
pub(super) const INTERMEDIATE_NAMESPACES: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWPID;

/// Mounts an unmasked `/proc`, then makes the launcher's user and mount namespace, which inherits
/// it.
///
/// The kernel lets a user namespace mount a fresh `/proc` only if it sees one without masks
/// (mount_namespaces(7)). A container runtime's masks in the daemon's own user namespace do not
/// restrict a process with CAP_SYS_ADMIN there.
pub(super) fn enter_intermediate_namespaces() -> Result<(), StageFailure> {
    root::make_private()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(c"proc", c"/proc", c"proc", flags, None)
        .map_err(at_stage(Stage::MountTemplateProc, "mounting an unmasked /proc"))?;
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
        .map_err(from_nix)
        .map_err(at_stage(Stage::UserNamespace, "unsharing the user and mount namespace"))
}

/// Runs as the launcher until the keeper is gone. The keeper has written the id maps of its
/// namespaces.
pub(super) fn run(
    socket: BorrowedFd<'_>,
    plan: &SandboxPlan,
    identity: SandboxIdentity,
    single_threaded: &SingleThreaded,
) -> ! {
    set_process_name(c"jig-launcher");
    // Set after the user ids: changing them clears the death signal.
    let ready = template::become_user(identity)
        .and_then(|()| {
            set_parent_process_death_signal(Some(Signal::KILL))
                .map_err(at_stage(Stage::Launcher, "setting the death signal"))
        })
        .and_then(|()| root::make_private());
    let sent = match ready {
        Ok(()) => {
            let reply = SetupReply::Done { workspace: 0, identity };
            send(socket, &reply, &[])
        }
        Err(failure) => send(socket, &SetupReply::Failed(failure), &[]),
    };
    if sent.is_err() {
        exit_now(0);
    }

    loop {
        let Ok(Some((request, fds))) = receive::<StartTemplateRequest>(socket) else {
            exit_now(0);
        };
        let workspace = request.workspace.index;
        let sent = match start_template(request, fds, plan, single_threaded) {
            Ok((identity, template)) => {
                send(socket, &SetupReply::Done { workspace, identity }, &[template.as_fd()])
            }
            Err(failure) => send(socket, &SetupReply::Failed(failure), &[]),
        };
        if sent.is_err() {
            exit_now(0);
        }
    }
}

/// Returns the user of the template's sandboxes, and the template's pidfd.
fn start_template(
    request: StartTemplateRequest,
    fds: Vec<OwnedFd>,
    plan: &SandboxPlan,
    single_threaded: &SingleThreaded,
) -> Result<(SandboxIdentity, OwnedFd), StageFailure> {
    let malformed = || StageFailure::other(Stage::Launcher, "malformed request");
    let StartTemplateRequest { workspace, level, identity, has_trees } = request;
    let mut fds = fds.into_iter();
    let socket = fds.next().ok_or_else(malformed)?;
    let trees: Vec<OwnedFd> = fds.collect();
    if has_trees && trees.len() != 1 + workspace.all_binds().count() {
        return Err(malformed());
    }

    let network = match plan.network {
        NetworkMode::None | NetworkMode::Proxy => libc::CLONE_NEWNET,
        NetworkMode::Host => 0,
    };
    let forked = fork(single_threaded, TEMPLATE_NAMESPACES | network)
        .map_err(at_stage(Stage::TemplateNamespaces, "cloning the template"))?;
    match forked {
        Fork::Parent { pidfd, .. } => Ok((identity, pidfd)),
        Fork::Child => template::run(
            socket,
            plan,
            &workspace,
            level,
            identity,
            trees,
            single_threaded.for_fork(),
        ),
    }
}
