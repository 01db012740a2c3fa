//! The supervisor of one run in the daemon's namespaces, in place of the init that a process
//! namespace has, and the process that becomes its command.

use std::{fs, io, mem::ManuallyDrop, os::unix::fs::MetadataExt as _, path::Path};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, set_child_subreaper,
    set_parent_process_death_signal, setrlimit,
};

use super::{
    super::{
        canary::Guarded,
        capabilities, command,
        init::{Blueprint, Broken, PROCESSES_OF_OURS, Scratch, State, check, see_through, tell},
        level::Level,
        stage::{Failure, Stage, at},
        wire::Report,
    },
    ground::Ground,
    rules, scratch,
};
use crate::daemon::sys::{
    Errno,
    bpf::load_filter,
    fd::{KEPT, keep_only},
    memory::{Berth, Cabin},
    name_process,
    process::{exit_now, kill_all},
    signal::{lead, relay_and_end},
};

/// Runs as the supervisor of one run, made by the slot keeper `slot`, until nothing of the run is
/// left.
pub(super) fn run(control: i32, slot: Pid, ground: &Ground<'_>, scratch: &Path) -> ! {
    name_process(c"jig-supervisor");
    if keep_only(control).is_err() {
        exit_now(1);
    }
    let started = prepare(ground, scratch).and_then(|cabin| {
        let command = cabin.start_second();
        let command = command.map_err(at(Stage::CommandProcess, ""))?;
        lead(command);
        if getppid() != Some(slot) {
            // `PARENT_DIED` came before there was a command to kill.
            let _none_left = kill_all(libc::SIGKILL);
        }
        Ok((cabin, command))
    });
    match started {
        Ok((cabin, command)) => see_through(cabin, command),
        Err(failure) => tell(Report::Failed { stage: failure.stage, errno: failure.told_as() }),
    }
    // The client has its answer: nobody waits for this.
    let removed = scratch::remove(scratch);
    exit_now(i32::from(removed.is_err()))
}

fn prepare(ground: &Ground<'_>, scratch: &Path) -> Result<&'static Cabin<State>, Failure> {
    let failed = |what: &'static str| at(Stage::RunNamespaces, what);
    relay_and_end().map_err(failed("signals"))?;
    set_child_subreaper(Some(getpid())).map_err(failed("subreaper"))?;
    let abi = ground.plan.landlock_abi;
    rules::scopes(abi).apply().map_err(at(Stage::Landlock, "scopes"))?;
    // The signal that ends the run, not this process (`PARENT_DIED`): only now does that reach
    // nothing else.
    set_parent_process_death_signal(Some(Signal::USR1)).map_err(failed("death signal"))?;
    let lock = scratch::make(scratch).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        at(Stage::MountScratch, "making a directory")(errno)
    })?;
    // Held until this process ends.
    let _lock = ManuallyDrop::new(lock);
    let processes = processes_of(ground.identity.uid)
        .map_err(|error| Failure::other(Stage::ResourceLimits, error.to_string()))?;
    let blueprint = Blueprint {
        level: Level::L1,
        guarded: Guarded::of(ground.plan, Level::L1)?,
        masked_files: Vec::new(),
        masked_directories: Vec::new(),
        network: ground.plan.network,
        other_processes: u64::from(processes).saturating_add(PROCESSES_OF_OURS),
        limits: ground.plan.limits,
        rules: rules::rules(abi, ground.workspace, scratch)?,
        filter: ground.filter.clone(),
        slot: None,
    };
    let state = State::new(Box::leak(Box::new(blueprint)), Scratch::default(), 0);
    Berth::occupy(state, run_confined).map_err(failed("memory"))
}

/// How many processes and threads a user has: the limit on them counts those too.
fn processes_of(uid: u32) -> io::Result<u32> {
    let mut count = 0_u32;
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let is_process = entry.file_name().to_string_lossy().parse::<u32>().is_ok();
        // One that has ended since is none.
        if is_process && entry.metadata().is_ok_and(|found| found.uid() == uid) {
            // A link for each thread, and two that every directory has: cheaper than reading.
            let threads = fs::metadata(entry.path().join("task"));
            let threads = threads.map_or(0, |threads| threads.nlink().saturating_sub(2));
            count = count.saturating_add(u32::try_from(threads).unwrap_or(u32::MAX));
        }
    }
    Ok(count)
}

// === The command's process ===

/// Runs as the command's process, which shares the supervisor's memory until it executes: nothing
/// here allocates, locks, panics or touches thread-local storage.
fn run_confined(cabin: &'static Cabin<State>) -> ! {
    match confine(cabin.state.blueprint) {
        Ok(()) => command::run(cabin),
        Err(Broken(stage, errno)) => {
            tell(Report::Failed { stage, errno });
            exit_now(1)
        }
    }
}

/// Confines the process for good; seccomp comes last.
fn confine(blueprint: &Blueprint) -> Result<(), Broken> {
    // Not the supervisor's lock, nor anything else of its.
    keep_only(KEPT).map_err(|errno| Broken(Stage::RunNamespaces, errno))?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| Broken(Stage::RunNamespaces, errno))?;
    let limits = blueprint.limits;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(u64::from(limits.open_files)),
            maximum: Some(u64::from(limits.open_files_hard)),
        },
    )
    .map_err(|errno| Broken(Stage::ResourceLimits, errno))?;
    capabilities::give_up_all().map_err(|errno| Broken(Stage::Capabilities, errno))?;
    let rules = blueprint.rules.apply();
    rules.map_err(|errno| match errno {
        Errno::STALE => Broken(Stage::OpenSource, errno),
        _ => Broken(Stage::Landlock, errno),
    })?;
    load_filter(&blueprint.filter).map_err(|errno| Broken(Stage::Seccomp, errno))?;
    check().map_err(|errno| Broken(Stage::SelfCheck, errno))
}
