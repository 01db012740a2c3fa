//! The launcher: process 1 of the namespaces in which all sandboxes live. Its death is the death of
//! all of them.
//!
//! It knows no secrets and serves no requests: it starts templates when the keeper tells it to.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::{
    mount::{MountFlags, mount},
    process::{Signal, WaitOptions, set_parent_process_death_signal, wait},
};

use super::{
    plan::{NetworkMode, SandboxPlan},
    root,
    stage::{Stage, StageFailure, at_stage},
    template,
    wire::{SandboxIdentity, SetupReply, StartTemplateRequest, TemplateSpec, receive, send},
};
use crate::daemon::sys::{
    process::{Fork, SingleThreaded, exit_now, fork, unshare},
    set_process_name,
};

/// Namespaces that a template gets, beside that of the network. Its process namespace makes its end
/// the end of its runs.
const TEMPLATE_NAMESPACES: i32 = libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Namespaces that a process gets which passes the antechamber on its way to be the launcher.
pub(super) const INTERMEDIATE_NAMESPACES: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWPID;

/// Mounts a `/proc` that nothing covers, then makes the user and mount namespace of the launcher,
/// which takes it along: the kernel lets a user namespace mount a fresh `/proc` only where it sees
/// one without masks (mount_namespaces(7)), and the masks that a container runtime has made in the
/// daemon's own user namespace hold nobody back who has CAP_SYS_ADMIN there.
pub(super) fn enter_intermediate_namespaces() -> Result<(), StageFailure> {
    root::make_private()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(c"proc", c"/proc", c"proc", flags, None)
        .map_err(at_stage(Stage::MountTemplateProc, "mounting it over one with masks"))?;
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)
        .map_err(at_stage(Stage::UserNamespace, "unshare"))
}

/// Runs as the launcher, in namespaces whose maps the keeper has written, until the keeper is gone.
pub(super) fn run(
    socket: BorrowedFd<'_>,
    plan: &SandboxPlan,
    identity: SandboxIdentity,
    proof: &SingleThreaded,
) -> ! {
    set_process_name(c"jig-launcher");
    // Changing user ids clears the death signal, so it comes after.
    let ready = template::become_user(identity)
        .and_then(|()| {
            set_parent_process_death_signal(Some(Signal::KILL))
                .map_err(at_stage(Stage::Launcher, "death signal"))
        })
        .and_then(|()| root::make_private());
    let sent = match ready {
        Ok(()) => {
            let answer = SetupReply::Done { workspace: 0, identity };
            send(socket, &answer, &[])
        }
        Err(failure) => send(socket, &SetupReply::Failed(failure), &[]),
    };
    if sent.is_err() {
        exit_now(0);
    }
    loop {
        let Ok(Some((order, fds))) = receive::<StartTemplateRequest>(socket) else {
            exit_now(0);
        };
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let workspace = order.template.workspace;
        let answer = match start_template(order, fds, plan, proof) {
            Ok(identity) => SetupReply::Done { workspace, identity },
            Err(failure) => SetupReply::Failed(failure),
        };
        if send(socket, &answer, &[]).is_err() {
            exit_now(0);
        }
    }
}

fn start_template(
    order: StartTemplateRequest,
    fds: Vec<OwnedFd>,
    plan: &SandboxPlan,
    proof: &SingleThreaded,
) -> Result<SandboxIdentity, StageFailure> {
    let malformed = || StageFailure::other(Stage::Launcher, "malformed order");
    let TemplateSpec { workspace, level } = order.template;
    let workspace = plan.workspaces.get(workspace).ok_or_else(malformed)?;
    let mut fds = fds.into_iter();
    let socket = fds.next().ok_or_else(malformed)?;
    let trees: Vec<OwnedFd> = fds.collect();
    if order.has_trees && trees.len() != 1 + workspace.all_binds().count() {
        return Err(malformed());
    }
    let network = match plan.network {
        NetworkMode::None | NetworkMode::Proxy => libc::CLONE_NEWNET,
        NetworkMode::Host => 0,
    };
    let namespaces = TEMPLATE_NAMESPACES | network;
    match fork(proof, namespaces).map_err(at_stage(Stage::TemplateNamespaces, "clone"))? {
        Fork::Parent { .. } => Ok(order.identity),
        Fork::Child => {
            template::run(socket, plan, workspace, level, order.identity, trees, proof.for_fork())
        }
    }
}
