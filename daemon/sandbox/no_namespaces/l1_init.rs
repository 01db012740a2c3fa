//! The init of one L1 run, in place of the init of a process namespace, and the process that
//! becomes the run's command.

use std::{fs, io, mem::ManuallyDrop, os::unix::fs::MetadataExt as _, path::Path};

use rustix::process::{
    Pid, Signal, getpid, getppid, set_child_subreaper, set_parent_process_death_signal,
};

use super::{
    super::{
        blueprint::{Blueprint, OWN_PROCESS_COUNT, SandboxState, ScratchOptions},
        capabilities, command_process,
        init::{
            StageError, send_report, set_open_files_limit, verify_restrictions,
            wait_for_command_end,
        },
        level::IsolationLevel,
        probe::GuardedTargets,
        stage::{Stage, StageFailure, at_stage},
        wire::SandboxReport,
    },
    landlock_rules, scratch_directory,
    template_context::TemplateContext,
};
use crate::daemon::sys::{
    Errno,
    bpf::load_filter,
    fd::{INHERITED_FD_NUMBER, close_all_except},
    marked_receive::ReceiveMark,
    process::{exit_now, kill_all},
    process_arena::{ProcessArena, SharedArea},
    set_process_name,
    signal::install_signal_relay_and_kill,
};

/// Runs as the L1 init of one run until no process of the run is left. `slot` is the slot
/// keeper, its parent.
pub(super) fn run(control: i32, slot: Pid, context: &TemplateContext<'_>, scratch: &Path) -> ! {
    set_process_name(c"jig-l1-init");
    if close_all_except(control).is_err() {
        exit_now(1);
    }

    let started = prepare_init(context, scratch).and_then(|area| {
        let command = area.start_second().map_err(at_stage(Stage::CommandProcess, ""))?;
        if getppid() != Some(slot) {
            // `PARENT_DEATH_SIGNAL` came before there was a command to kill.
            let _none_left = kill_all(libc::SIGKILL);
        }
        Ok((area, command))
    });
    match started {
        Ok((area, command)) => {
            let _end = wait_for_command_end(area, command, None);
        }
        Err(failure) => {
            send_report(SandboxReport::Failed { stage: failure.stage, errno: failure.wire_errno() })
        }
    }

    // Done last: the client has its response and does not wait for this.
    let removed = scratch_directory::remove_scratch(scratch);
    exit_now(i32::from(removed.is_err()))
}

/// Prepares this process and the memory that it shares with the command's process.
fn prepare_init(
    context: &TemplateContext<'_>,
    scratch: &Path,
) -> Result<&'static SharedArea<SandboxState>, StageFailure> {
    let failed = |what: &'static str| at_stage(Stage::RunNamespaces, what);
    install_signal_relay_and_kill().map_err(failed("installing signal handlers"))?;
    set_child_subreaper(Some(getpid())).map_err(failed("becoming a subreaper"))?;
    let abi = context.plan.landlock_abi;
    landlock_rules::scope_rules(abi)
        .apply()
        .map_err(at_stage(Stage::Landlock, "applying the scope rules"))?;

    // `PARENT_DEATH_SIGNAL` ends the run, not this process. It is set only now that this process
    // can signal nothing else.
    set_parent_process_death_signal(Some(Signal::USR1))
        .map_err(failed("setting the death signal"))?;

    let lock = scratch_directory::create_scratch(scratch).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        at_stage(Stage::MountScratch, "making a directory")(errno)
    })?;
    // Held until this process ends.
    let _lock = ManuallyDrop::new(lock);

    let processes = count_processes_of(context.identity.uid)
        .map_err(|error| StageFailure::other(Stage::ResourceLimits, error.to_string()))?;
    let blueprint = Blueprint {
        level: IsolationLevel::L1,
        guarded_targets: GuardedTargets::collect(context.plan, IsolationLevel::L1)?,
        masked_files: Vec::new(),
        masked_directories: Vec::new(),
        network: context.plan.network,
        other_process_count: u64::from(processes).saturating_add(OWN_PROCESS_COUNT),
        limits: context.plan.limits,
        rules: landlock_rules::command_rules(abi, context.workspace, scratch)?,
        filter: context.filter.clone(),
        reporting_filter: None,
        receive_mark: ReceiveMark::default(),
        slot_pidfd: None,
    };
    let state = SandboxState::new(Box::leak(Box::new(blueprint)), ScratchOptions::default(), 0);
    ProcessArena::become_first_process(state, run_confined)
        .map_err(failed("allocating shared memory"))
}

/// Number of processes and threads of a user, which RLIMIT_NPROC counts too.
fn count_processes_of(uid: u32) -> io::Result<u32> {
    let mut count = 0_u32;
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let is_process = entry.file_name().to_string_lossy().parse::<u32>().is_ok();
        // A process may have ended by now.
        if is_process && entry.metadata().is_ok_and(|metadata| metadata.uid() == uid) {
            // The directory has two links, plus one for each thread. Its metadata is cheaper to
            // read than its entries.
            let threads = fs::metadata(entry.path().join("task"));
            let threads = threads.map_or(0, |threads| threads.nlink().saturating_sub(2));
            count = count.saturating_add(u32::try_from(threads).unwrap_or(u32::MAX));
        }
    }
    Ok(count)
}

// === The command's process ===

/// Runs as the command's process. It shares the L1 init's memory until it executes: nothing here
/// allocates, locks, panics or touches thread-local storage.
fn run_confined(area: &'static SharedArea<SandboxState>) -> ! {
    match confine(area.state.blueprint) {
        Ok(()) => command_process::run(area),
        Err(StageError(stage, errno)) => {
            send_report(SandboxReport::Failed { stage, errno });
            exit_now(1)
        }
    }
}

/// Confines the process for good. Seccomp comes last.
fn confine(blueprint: &Blueprint) -> Result<(), StageError> {
    // Closes the L1 init's lock and all its other descriptors.
    close_all_except(INHERITED_FD_NUMBER)
        .map_err(|errno| StageError(Stage::RunNamespaces, errno))?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| StageError(Stage::RunNamespaces, errno))?;
    set_open_files_limit(&blueprint.limits)?;

    capabilities::drop_all().map_err(|errno| StageError(Stage::Capabilities, errno))?;
    blueprint.rules.apply().map_err(|errno| match errno {
        Errno::STALE => StageError(Stage::OpenSource, errno),
        _ => StageError(Stage::Landlock, errno),
    })?;
    load_filter(&blueprint.filter).map_err(|errno| StageError(Stage::Seccomp, errno))?;
    verify_restrictions().map_err(|errno| StageError(Stage::SelfCheck, errno))
}
