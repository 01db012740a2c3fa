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
    plan::{Network, Plan},
    root,
    stage::{Failure, Stage, at},
    template,
    wire::{Answer, Identity, Order, StartTemplate, receive, send},
};
use crate::daemon::sys::{
    name_process,
    process::{Fork, SingleThreaded, exit_now, fork, unshare},
};

/// Namespaces that a template gets, beside that of the network. Its process namespace makes its end
/// the end of its runs.
const TEMPLATE_NAMESPACES: i32 = libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Namespaces that a process gets which passes the antechamber on its way to be the launcher.
pub(super) const ANTECHAMBER: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWPID;

/// Mounts a `/proc` that nothing covers, then makes the user and mount namespace of the launcher,
/// which takes it along: the kernel lets a user namespace mount a fresh `/proc` only where it sees
/// one without masks (mount_namespaces(7)), and the masks that a container runtime has made in the
/// daemon's own user namespace hold nobody back who has CAP_SYS_ADMIN there.
pub(super) fn pass_antechamber() -> Result<(), Failure> {
    root::make_private()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(c"proc", c"/proc", c"proc", flags, None)
        .map_err(at(Stage::MountTemplateProc, "mounting it over one with masks"))?;
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS).map_err(at(Stage::UserNamespace, "unshare"))
}

/// Runs as the launcher, in namespaces whose maps the keeper has written, until the keeper is gone.
pub(super) fn run(
    socket: BorrowedFd<'_>,
    plan: &Plan,
    identity: Identity,
    proof: &SingleThreaded,
) -> ! {
    name_process(c"jig-launcher");
    // Changing user ids clears the death signal, so it comes after.
    let ready = template::become_user(identity)
        .and_then(|()| {
            set_parent_process_death_signal(Some(Signal::KILL))
                .map_err(at(Stage::Launcher, "death signal"))
        })
        .and_then(|()| root::make_private());
    let sent = match ready {
        Ok(()) => {
            let answer = Answer::Done { workspace: 0, identity };
            send(socket, &answer, &[])
        }
        Err(failure) => send(socket, &Answer::Failed(failure), &[]),
    };
    if sent.is_err() {
        exit_now(0);
    }
    loop {
        let Ok(Some((order, fds))) = receive::<StartTemplate>(socket) else {
            exit_now(0);
        };
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let workspace = order.order.workspace;
        let answer = match start_template(order, fds, plan, proof) {
            Ok(identity) => Answer::Done { workspace, identity },
            Err(failure) => Answer::Failed(failure),
        };
        if send(socket, &answer, &[]).is_err() {
            exit_now(0);
        }
    }
}

fn start_template(
    order: StartTemplate,
    fds: Vec<OwnedFd>,
    plan: &Plan,
    proof: &SingleThreaded,
) -> Result<Identity, Failure> {
    let malformed = || Failure::other(Stage::Launcher, "malformed order");
    let Order { workspace, level } = order.order;
    let workspace = plan.workspaces.get(workspace).ok_or_else(malformed)?;
    let mut fds = fds.into_iter();
    let socket = fds.next().ok_or_else(malformed)?;
    let trees: Vec<OwnedFd> = fds.collect();
    if order.with_trees && trees.len() != 1 + workspace.all_binds().count() {
        return Err(malformed());
    }
    let network = match plan.network {
        Network::None | Network::Proxy => libc::CLONE_NEWNET,
        Network::Host => 0,
    };
    let namespaces = TEMPLATE_NAMESPACES | network;
    match fork(proof, namespaces).map_err(at(Stage::TemplateNamespaces, "clone"))? {
        Fork::Parent { .. } => Ok(order.identity),
        Fork::Child => {
            template::run(socket, plan, workspace, level, order.identity, trees, proof.in_copy())
        }
    }
}
