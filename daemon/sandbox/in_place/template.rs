//! The template of a workspace whose commands stay in the daemon's namespaces: it becomes their user
//! for good, and makes slots.

use std::{
    fs,
    mem::ManuallyDrop,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use rustix::{
    fs::Mode,
    process::{
        DumpableBehavior, Signal, geteuid, getpid, set_child_subreaper, set_dumpable_behavior,
        set_parent_process_death_signal, umask,
    },
    thread::{CapabilitySet, capabilities as held_capabilities, set_no_new_privs},
};

use super::{
    super::{
        capabilities,
        plan::{Plan, WorkspacePlan},
        seccomp,
        stage::{Failure, Stage, at},
        template::{become_user, give_up, replace_standard_streams},
        wire::{Answer, Identity, MakeSlot, pair, receive, send, send_answer},
    },
    ground::Ground,
    require::require,
    scratch, slot,
};
use crate::daemon::sys::{
    fd::keep_only,
    name_process,
    process::{Fork, SingleThreaded, exit_now, fork},
    signal,
};

/// Runs as a template. Tells the daemon whether it is ready, then makes a slot each time it is
/// asked, until the daemon closes the socket.
pub(in super::super) fn run(
    socket: OwnedFd,
    plan: &Plan,
    workspace: &WorkspacePlan,
    identity: Identity,
    proof: &SingleThreaded,
) -> ! {
    name_process(c"jig-template");
    // From here on it is closed by `keep_only` only.
    let number = socket.as_raw_fd();
    let socket = ManuallyDrop::new(socket);
    if let Err(failure) = build(plan, workspace, identity) {
        give_up(socket.as_fd(), failure);
    }
    let socket = match keep_only(number) {
        Ok(socket) => socket,
        Err(errno) => {
            give_up(socket.as_fd(), Failure::kernel(Stage::InPlace, errno, "descriptors"))
        }
    };
    // What stays is in nobody's way.
    let _best_effort = scratch::sweep(&plan.temporary);
    let ground = Ground { plan, workspace, identity, filter: seccomp::in_place::filter() };
    let done = Answer::Done { workspace: workspace.index, identity };
    if send(socket, &done, &[]).is_err() {
        exit_now(0);
    }
    loop {
        match receive::<MakeSlot>(socket) {
            Ok(Some(_)) => {}
            _ => exit_now(0),
        }
        let sent = match make_slot(&ground, proof) {
            Ok(slot) => send_answer(socket, &done, &[slot.as_fd()], Stage::SlotNamespace),
            Err(failure) => send(socket, &Answer::Failed(failure), &[]),
        };
        if sent.is_err() {
            exit_now(0);
        }
    }
}

fn make_slot(ground: &Ground<'_>, proof: &SingleThreaded) -> Result<OwnedFd, Failure> {
    let (daemon, keeper) = pair().map_err(at(Stage::SlotNamespace, "socket"))?;
    match fork(proof, 0).map_err(at(Stage::SlotNamespace, "clone"))? {
        Fork::Parent { .. } => Ok(daemon),
        Fork::Child => match keep_only(keeper.as_raw_fd()) {
            Ok(socket) => slot::run(socket, ground, &proof.in_copy()),
            Err(_) => exit_now(1),
        },
    }
}

/// Becomes the commands' user, with nothing to gain.
fn build(plan: &Plan, workspace: &WorkspacePlan, identity: Identity) -> Result<(), Failure> {
    let failed = |what: &'static str| at(Stage::InPlace, what);
    require(plan, workspace, identity)?;
    let held = held_capabilities(None).map_err(failed("capabilities"))?;
    if held.effective.contains(CapabilitySet::SETPCAP) {
        capabilities::forbid_gaining().map_err(at(Stage::Capabilities, "bounding set"))?;
    }
    if geteuid().as_raw() != identity.uid {
        become_user(identity)?;
    }
    capabilities::give_up_all().map_err(at(Stage::Capabilities, ""))?;
    // Changing user ids clears the death signal, so it comes after.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("death signal"))?;
    signal::reset_all()
        .and_then(|()| signal::outlive_the_daemons_signals())
        .map_err(failed("signals"))?;
    umask(Mode::from_raw_mode(0o022));
    // The kernel ends runs before it ends anything else when memory runs out: see the template of
    // the higher levels.
    set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(failed("dumpable"))?;
    let _best_effort = fs::write("/proc/self/oom_score_adj", "1000");
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("dumpable"))?;
    set_no_new_privs(true).map_err(at(Stage::NoNewPrivileges, ""))?;
    // Slots that end, and supervisors whose slot has ended: without this those go to the first process
    // of the container, which may be the daemon.
    set_child_subreaper(Some(getpid())).map_err(failed("subreaper"))?;
    signal::leave_no_zombies().map_err(failed("children"))?;
    replace_standard_streams()
}
