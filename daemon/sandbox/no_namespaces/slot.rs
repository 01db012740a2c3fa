//! The keeper of a slot whose runs stay in the daemon's namespaces: makes a supervisor for each, and
//! ends what a supervisor leaves behind that was killed.

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
        run_meter::RunMeter,
        slot::{SANDBOX_TOKEN, set_limits},
        stage::{Stage, StageFailure, at_stage},
        template::report_failure_and_exit,
        wire::{
            SLOT_COMMAND_BYTES, SandboxReport, SetupReply, SlotCommand, receive_bytes, send,
            send_bytes,
        },
    },
    landlock_rules, scratch_directory, supervisor,
    template_context::TemplateContext,
};
use crate::daemon::sys::{
    Errno,
    process::{Fork, SingleThreaded, exit_now, fork, kill_all, wait_any},
    set_process_name, signal,
};

/// A supervisor that has not been waited for.
struct SupervisorProcess {
    process: Pid,
    pidfd: OwnedFd,
    scratch: PathBuf,
}

/// Runs as a slot keeper, until the daemon closes the socket.
pub(super) fn run(
    socket: BorrowedFd<'_>,
    context: &TemplateContext<'_>,
    proof: &SingleThreaded,
) -> ! {
    set_process_name(c"jig-slot");
    if let Err(failure) = prepare_slot(context) {
        report_failure_and_exit(socket, failure);
    }
    let ready = SetupReply::Done { workspace: context.workspace.index, identity: context.identity };
    if send(socket, &ready, &[]).is_err() {
        exit_now(0);
    }
    let mut supervised = Vec::new();
    let mut latest = None;
    loop {
        let Some((order, control)) = receive_command(socket, &mut supervised) else {
            exit_now(0);
        };
        let sent = match (order, control) {
            // Its directories have no limited size.
            (SlotCommand::MakeSandbox { .. }, Some(control)) => {
                let made = make_sandbox(context, proof, &control);
                latest = made.as_ref().ok().map(|run| RunMeter::new(run.process));
                send_sandbox(socket, made, &mut supervised)
            }
            (SlotCommand::Measure(bounds), None) => {
                let measure = latest.as_mut().map(|meter| meter.measure(&bounds, &[]));
                let report = SandboxReport::Measured(measure.unwrap_or_default());
                send_bytes(socket, &report.encode(), &[])
            }
            _ => exit_now(1),
        };
        if sent.is_err() {
            exit_now(0);
        }
    }
}

/// Sends a sandbox to the daemon, or why there is none.
fn send_sandbox(
    socket: BorrowedFd<'_>,
    made: Result<SupervisorProcess, StageFailure>,
    supervised: &mut Vec<SupervisorProcess>,
) -> Result<(), Errno> {
    let failed = |stage, errno| {
        let report = SandboxReport::Failed { stage, errno };
        send_bytes(socket, &report.encode(), &[])
    };
    match made {
        Ok(run) => {
            let token = [SANDBOX_TOKEN, run.scratch.as_os_str().as_bytes()].concat();
            // Commands can make this fail, see `send_answer`. Without descriptors it cannot.
            let sent = send_bytes(socket, &token, &[run.pidfd.as_fd()])
                .or_else(|errno| failed(Stage::RunNamespaces, errno));
            supervised.push(run);
            sent
        }
        Err(failure) => failed(failure.stage, failure.wire_errno()),
    }
}

fn prepare_slot(context: &TemplateContext<'_>) -> Result<(), StageFailure> {
    let failed = |what: &'static str| at_stage(Stage::SlotNamespace, what);
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("death signal"))?;
    set_child_subreaper(Some(getpid())).map_err(failed("subreaper"))?;
    signal::disable_auto_reap().map_err(failed("children"))?;
    set_limits(context.plan.limits).map_err(at_stage(Stage::ResourceLimits, "slot"))?;
    landlock_rules::scope_rules(context.plan.landlock_abi)
        .apply()
        .map_err(at_stage(Stage::Landlock, "scopes"))
}

/// Waits until the daemon asks for something, seeing to supervisors that end meanwhile; with the
/// socket that comes with it. Answers nothing when it has closed its own.
fn receive_command(
    socket: BorrowedFd<'_>,
    supervised: &mut Vec<SupervisorProcess>,
) -> Option<(SlotCommand, Option<OwnedFd>)> {
    loop {
        let ends = supervised.iter().map(|run| run.pidfd.as_fd());
        let mut watched: Vec<PollFd<'_>> = std::iter::once(socket)
            .chain(ends)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        let ordered = watched.first().is_some_and(|socket| !socket.revents().is_empty());
        drop(watched);
        reap_supervisors(supervised);
        if ordered {
            let (mut order, mut control) = ([0; SLOT_COMMAND_BYTES], None);
            let received = receive_bytes(socket, &mut order, |fd| control = Some(fd)).ok()?;
            let order = SlotCommand::decode(order.get(..received.length)?)?;
            return Some((order, control));
        }
    }
}

/// Waits for the supervisors that have ended. One that was killed has left its run behind, which is
/// a child of this process now, and is ended here.
fn reap_supervisors(supervised: &mut Vec<SupervisorProcess>) {
    let mut killed = false;
    supervised.retain(|run| {
        let Ok(Some((_, status))) = waitpid(Some(run.process), WaitOptions::NOHANG) else {
            return true;
        };
        let by_itself = status.exit_status().is_some();
        killed |= !by_itself;
        !by_itself
    });
    if !killed {
        return;
    }
    // Landlock keeps the signal within this slot.
    let _none_left = kill_all(libc::SIGKILL);
    while wait_any().is_ok() {}
    for run in supervised.drain(..) {
        let _best_effort = scratch_directory::remove_scratch(&run.scratch);
    }
}

/// Makes a supervisor, with its end of the socket to the daemon.
fn make_sandbox(
    context: &TemplateContext<'_>,
    proof: &SingleThreaded,
    control: &OwnedFd,
) -> Result<SupervisorProcess, StageFailure> {
    let failed = |what: &'static str| at_stage(Stage::RunNamespaces, what);
    let scratch =
        scratch_directory::new_path(&context.plan.temporary_directory).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            failed("a name for temporary files")(errno)
        })?;
    let slot = getpid();
    match fork(proof, 0).map_err(failed("clone"))? {
        Fork::Parent { child, pidfd } => Ok(SupervisorProcess { process: child, pidfd, scratch }),
        Fork::Child => supervisor::run(control.as_raw_fd(), slot, context, &scratch),
    }
}
