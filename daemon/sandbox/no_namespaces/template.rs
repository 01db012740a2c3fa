//! The template of a workspace at L1: it changes to the commands' user for good, and makes slots.

use std::{
    fs,
    mem::ManuallyDrop,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use caps::{CapSet, Capability};
use rustix::{
    fs::Mode,
    process::{
        DumpableBehavior, Signal, geteuid, getpid, set_child_subreaper, set_dumpable_behavior,
        set_parent_process_death_signal, umask,
    },
    thread::set_no_new_privs,
};

use super::{
    super::{
        capabilities,
        plan::{SandboxPlan, WorkspacePlan},
        seccomp,
        stage::{Stage, StageFailure, at_stage},
        template::{become_user, replace_standard_streams, report_failure_and_exit, serve_slots},
        wire::{SandboxIdentity, seqpacket_pair},
    },
    prerequisites::check_prerequisites,
    scratch_directory, slot,
    template_context::TemplateContext,
};
use crate::daemon::sys::{
    fd::close_all_except,
    process::{Fork, SingleThreaded, exit_now, fork},
    set_process_name, signal,
};

/// Runs as a template: reports to the daemon that it is ready, then makes a slot for each request,
/// until the daemon closes the socket.
pub(in super::super) fn run(
    socket: OwnedFd,
    plan: &SandboxPlan,
    workspace: &WorkspacePlan,
    identity: SandboxIdentity,
    single_threaded: &SingleThreaded,
) -> ! {
    set_process_name(c"jig-template");
    // From here on, only `close_all_except` closes it.
    let number = socket.as_raw_fd();
    let socket = ManuallyDrop::new(socket);
    if let Err(failure) = become_command_user(plan, workspace, identity) {
        report_failure_and_exit(socket.as_fd(), failure);
    }

    let socket = match close_all_except(number) {
        Ok(socket) => socket,
        Err(errno) => report_failure_and_exit(
            socket.as_fd(),
            StageFailure::from_errno(Stage::NoNamespaces, errno, "closing inherited descriptors"),
        ),
    };

    // Leftovers do no harm if this fails.
    let _best_effort = scratch_directory::remove_leftovers(&plan.temporary_directory);
    let context = TemplateContext {
        plan,
        workspace,
        identity,
        filter: seccomp::no_namespaces::assemble_filter(),
    };

    serve_slots(socket, workspace, identity, || make_slot(&context, single_threaded))
}

fn make_slot(
    context: &TemplateContext<'_>,
    single_threaded: &SingleThreaded,
) -> Result<OwnedFd, StageFailure> {
    let (daemon, keeper) =
        seqpacket_pair().map_err(at_stage(Stage::SlotNamespace, "creating a socket pair"))?;
    match fork(single_threaded, 0)
        .map_err(at_stage(Stage::SlotNamespace, "cloning the slot keeper"))?
    {
        Fork::Parent { .. } => Ok(daemon),
        Fork::Child => match close_all_except(keeper.as_raw_fd()) {
            Ok(socket) => slot::run(socket, context, &single_threaded.for_fork()),
            Err(_) => exit_now(1),
        },
    }
}

/// Changes to the commands' user, with no way to gain privileges.
fn become_command_user(
    plan: &SandboxPlan,
    workspace: &WorkspacePlan,
    identity: SandboxIdentity,
) -> Result<(), StageFailure> {
    let failed = |what: &'static str| at_stage(Stage::NoNamespaces, what);
    check_prerequisites(plan, workspace, identity)?;

    let may_drop = caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)
        .map_err(|error| StageFailure::other(Stage::NoNamespaces, error.to_string()))?;
    if may_drop {
        capabilities::forbid_privilege_gain()
            .map_err(at_stage(Stage::Capabilities, "bounding set"))?;
    }

    if geteuid().as_raw() != identity.uid {
        become_user(identity)?;
    }
    capabilities::drop_all().map_err(at_stage(Stage::Capabilities, ""))?;
    // Set after the user ids: changing them clears the death signal.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(failed("setting the death signal"))?;
    signal::reset_all()
        .and_then(|()| signal::ignore_termination_signals())
        .map_err(failed("resetting signals"))?;
    umask(Mode::from_raw_mode(0o022));

    // When memory runs out, the kernel must kill runs first: see the template of the higher levels.
    set_dumpable_behavior(DumpableBehavior::Dumpable)
        .map_err(failed("setting the dumpable flag"))?;
    let _best_effort = fs::write("/proc/self/oom_score_adj", "1000");
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(failed("setting the dumpable flag"))?;

    set_no_new_privs(true).map_err(at_stage(Stage::NoNewPrivileges, ""))?;
    // Reaps slot keepers, and L1 inits whose slot has ended. Otherwise these would become
    // children of the container's first process, which may be the daemon.
    set_child_subreaper(Some(getpid())).map_err(failed("becoming a subreaper"))?;
    signal::enable_auto_reap().map_err(failed("enabling automatic reaping"))?;
    replace_standard_streams()
}
