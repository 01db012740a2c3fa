//! The slot keeper at L1: makes an L1 init for each run, and kills what a killed L1 init
//! leaves behind.

use std::{
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::PathBuf,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{
        Pid, Signal, WaitOptions, getpid, set_child_subreaper, set_parent_process_death_signal,
        waitpid,
    },
};

use super::{
    super::{
        loopback_connection::send_refusal,
        run_meter::RunMeter,
        slot::{SANDBOX_HANDLE_MESSAGE, set_limits},
        stage::{Stage, StageFailure, at_stage},
        template::report_failure_and_exit,
        wire::{
            SLOT_KEEPER_REQUEST_BYTES, SandboxReport, SetupReply, SlotKeeperRequest, receive_bytes,
            send, send_bytes,
        },
    },
    l1_init, landlock_rules, scratch_directory,
    template_context::TemplateContext,
};
use crate::daemon::sys::{
    Errno, from_nix,
    process::{Fork, SingleThreaded, exit_now, fork, kill_all, wait_any},
    set_process_name, signal,
};

/// An L1 init that has not been reaped.
struct InitProcess {
    process: Pid,
    pidfd: OwnedFd,
    scratch: PathBuf,
}

/// Runs as a slot keeper until the daemon closes the socket.
pub(super) fn run(
    socket: BorrowedFd<'_>,
    context: &TemplateContext<'_>,
    single_threaded: &SingleThreaded,
) -> ! {
    set_process_name(c"jig-slot");
    if let Err(failure) = prepare_slot(context) {
        report_failure_and_exit(socket, failure);
    }

    let ready = SetupReply::Done { workspace: context.workspace.index, identity: context.identity };
    if send(socket, &ready, &[]).is_err() {
        exit_now(0);
    }

    let mut inits = Vec::new();
    let mut newest_meter: Option<RunMeter> = None;
    loop {
        let Some((request, control)) = receive_request(socket, &mut inits) else {
            exit_now(0);
        };
        let sent = match (request, control) {
            // The sizes are ignored: scratch directories have no size limit.
            (SlotKeeperRequest::BuildSandbox { .. }, Some(control)) => {
                let init = build_sandbox(context, single_threaded, &control);
                newest_meter = init.as_ref().ok().map(|run| RunMeter::new(run.process));
                send_sandbox(socket, init, &mut inits)
            }
            (SlotKeeperRequest::Measure(bounds), None) => {
                let meter = newest_meter.as_mut();
                let measurement = meter.map(|meter| meter.measure(&bounds, &[]));
                let report = SandboxReport::Measured(measurement.unwrap_or_default());
                send_bytes(socket, &report.encode(), &[])
            }
            // It would reach the host's servers.
            (SlotKeeperRequest::Connect(_), None) => send_refusal(socket, Errno::OPNOTSUPP),
            _ => exit_now(1),
        };
        if sent.is_err() {
            exit_now(0);
        }
    }
}

/// Sends a sandbox's pidfd and path to the daemon, or why there is none.
fn send_sandbox(
    socket: BorrowedFd<'_>,
    init: Result<InitProcess, StageFailure>,
    inits: &mut Vec<InitProcess>,
) -> Result<(), Errno> {
    let send_failure = |stage, errno| {
        let report = SandboxReport::Failed { stage, errno };
        send_bytes(socket, &report.encode(), &[])
    };
    match init {
        Ok(init) => {
            let message = [SANDBOX_HANDLE_MESSAGE, init.scratch.as_os_str().as_bytes()].concat();
            // Commands can make this fail, see `send_reply`. A message without descriptors cannot
            // fail so.
            let sent = send_bytes(socket, &message, &[init.pidfd.as_fd()])
                .or_else(|errno| send_failure(Stage::RunNamespaces, errno));
            inits.push(init);
            sent
        }
        Err(failure) => send_failure(failure.stage, failure.wire_errno()),
    }
}

fn prepare_slot(context: &TemplateContext<'_>) -> Result<(), StageFailure> {
    let failed = |what: &'static str| at_stage(Stage::SlotNamespace, what);
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(failed("setting the death signal"))?;
    set_child_subreaper(Some(getpid())).map_err(failed("becoming a subreaper"))?;
    signal::disable_auto_reap().map_err(failed("disabling automatic reaping"))?;
    set_limits(context.plan.limits)
        .map_err(from_nix)
        .map_err(at_stage(Stage::ResourceLimits, "setting the limits of the slot"))?;
    landlock_rules::scope_rules(context.plan.landlock_abi)
        .apply()
        .map_err(at_stage(Stage::Landlock, "applying the scope rules"))
}

/// Waits for a request of the daemon, with the socket that comes with it. Reaps L1 inits that
/// end in between. Returns `None` when the daemon has closed its end.
fn receive_request(
    socket: BorrowedFd<'_>,
    inits: &mut Vec<InitProcess>,
) -> Option<(SlotKeeperRequest, Option<OwnedFd>)> {
    loop {
        let pidfds = inits.iter().map(|init| init.pidfd.as_fd());
        let mut watched: Vec<PollFd<'_>> = std::iter::once(socket)
            .chain(pidfds)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        let is_socket_ready = watched.first().is_some_and(|socket| !socket.revents().is_empty());
        drop(watched);

        reap_inits(inits);
        if is_socket_ready {
            let (mut bytes, mut control) = ([0; SLOT_KEEPER_REQUEST_BYTES], None);
            let received = receive_bytes(socket, &mut bytes, |fd| control = Some(fd)).ok()?;
            let request = SlotKeeperRequest::decode(bytes.get(..received.length)?)?;
            return Some((request, control));
        }
    }
}

/// Reaps the L1 inits that have ended. If one was killed, its run's processes are children of
/// this process now, and are killed here.
fn reap_inits(inits: &mut Vec<InitProcess>) {
    let mut was_one_killed = false;
    inits.retain(|init| {
        let Ok(Some((_, status))) = waitpid(Some(init.process), WaitOptions::NOHANG) else {
            return true;
        };
        let has_exited = status.exit_status().is_some();
        was_one_killed |= !has_exited;
        !has_exited
    });
    if !was_one_killed {
        return;
    }

    // Landlock confines the signal to this slot.
    let _none_left = kill_all(libc::SIGKILL);
    while wait_any().is_ok() {}
    for init in inits.drain(..) {
        let _best_effort = scratch_directory::remove_scratch(&init.scratch);
    }
}

/// Starts an L1 init. `control` is its end of the control socket.
fn build_sandbox(
    context: &TemplateContext<'_>,
    single_threaded: &SingleThreaded,
    control: &OwnedFd,
) -> Result<InitProcess, StageFailure> {
    let failed = |what: &'static str| at_stage(Stage::RunNamespaces, what);
    let scratch =
        scratch_directory::new_path(&context.plan.temporary_directory).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            failed("choosing a name for temporary files")(errno)
        })?;

    let slot = getpid();
    match fork(single_threaded, 0).map_err(failed("cloning the init"))? {
        Fork::Parent { child, pidfd } => Ok(InitProcess { process: child, pidfd, scratch }),
        Fork::Child => l1_init::run(control.as_raw_fd(), slot, context, &scratch),
    }
}
