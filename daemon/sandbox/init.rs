//! The init of a sandbox: process 1 of its namespaces. It builds the sandbox, waits for the command,
//! and kills what the command left behind.
//!
//! ```text
//! init (process 1)                      command's process (process 2)
//!   builds the sandbox
//!   starts process 2 ───────────────▶   reports Ready
//!   waits                               receives the request
//!                                       stdio → cwd → limits → execve
//!   process 2 ended ◀────────────────   … runs …
//!   kills and reaps all others
//!   reports Ended
//!   exits, or starts another process
//! ```
//!
//! Another process can be a copy of a shell that waits ([`super::warm_shell`]).
//!
//! The init starts another process only if the run left nothing in the sandbox
//! ([`super::clean_check`]). That one may become another command of the same caller.
//!
//! A run could also exchange descriptors over a socket with a run that lives on, for example one of
//! a directory in `/tmp`. The last filter therefore reports each call of sendmsg(2), recvmsg(2) and
//! a few others to the init, which lets it continue and then exits after the run. Most are reported
//! whatever their arguments: what memory holds could change after the decision. The call with which
//! the command's process receives its request has a secret mark, and is not reported
//! ([`crate::daemon::sys::marked_receive`]).
//!
//! Both processes share the memory of the slot keeper until the command is executed: nothing here
//! allocates, locks, panics or touches thread-local storage. The init completes every step that does
//! not need the request before the request arrives, so that a call waits less.

use std::{
    ffi::CStr,
    os::fd::{AsFd as _, OwnedFd},
    sync::atomic::Ordering,
};

use rustix::{
    mount::{MountFlags, mount, mount_bind},
    process::{Pid, Resource, Rlimit, setpgid, setrlimit},
    thread::{SecureComputingMode, secure_computing_mode},
};

use super::{
    blueprint::{Blueprint, SandboxState, ScratchOptions},
    capabilities,
    clean_check::CleanCheck,
    level::IsolationLevel,
    limits::RunLimits,
    plan::{SANDBOX_HOME, SANDBOX_TMP},
    root::EMPTY_DIRECTORY,
    stage::Stage,
    warm_shell::WarmShell,
    wire::{SandboxReport, send_bytes},
};
use crate::daemon::sys::{
    Errno,
    bpf::{load_filter, load_reporting_filter},
    call_watch::let_call_continue,
    denied_syscalls::unshare_user_namespace,
    fd::{close_all_except, inherited_fd},
    process::{
        ResourceUsage, cpu_time_with_children_us, die_with_parent, exit_now, kill_all, reap_ended,
        wait_any,
    },
    process_arena::SharedArea,
    set_process_name,
    signal::{enable_child_interrupts, install_signal_relay, wait_for_child_or_input},
};

/// A failed step. Unlike [`super::stage::StageFailure`], it needs no allocation.
pub(super) struct StageError(pub(super) Stage, pub(super) Errno);

pub(super) fn run_init(area: &'static SharedArea<SandboxState>) -> ! {
    set_process_name(c"jig-init");
    let state = &area.state;
    let mut recycling = build_sandbox(state).unwrap_or_else(|StageError(stage, errno)| {
        send_report(SandboxReport::Failed { stage, errno });
        exit_now(1)
    });

    loop {
        let copy = match &mut recycling {
            // The template or the copy can still report to the daemon.
            Some(recycling) => recycling.warm_shell.copy(area).unwrap_or_else(|_| exit_now(0)),
            None => None,
        };
        let mut end = match copy {
            Some(copy) => wait_for_command_end(area, copy, recycling.as_mut()),
            None => RunEnd::OtherProcessNeeded,
        };
        if end == RunEnd::OtherProcessNeeded {
            let template_count = recycling.as_ref().map(|it| it.warm_shell.process_count());
            state.template_count.store(template_count.unwrap_or_default(), Ordering::Release);
            let command = area.start_second().unwrap_or_else(|errno| {
                send_report(SandboxReport::Failed { stage: Stage::CommandProcess, errno });
                exit_now(1)
            });
            end = wait_for_command_end(area, command, recycling.as_mut());
        }

        if end != RunEnd::Reported
            || recycling.as_ref().is_none_or(|recycling| !recycling.is_clean())
        {
            exit_now(0);
        }
        state.past_cpu_us.store(cpu_time_with_children_us(), Ordering::Release);
    }
}

/// How the wait for a command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunEnd {
    /// There was a command. The daemon knows how it ended.
    Reported,
    /// The daemon has a command for which the waiting shell is no use.
    OtherProcessNeeded,
    /// The daemon has dropped the sandbox.
    Dropped,
}

/// What the init needs to know whether another run may use the sandbox.
pub(super) struct Recycling {
    /// Where the filter reports calls.
    call_reports: OwnedFd,
    /// Whether there was such a call.
    was_call_reported: bool,
    /// An error if the state of the new sandbox is not known.
    clean_check: Result<CleanCheck, Errno>,
    warm_shell: WarmShell,
}

impl Recycling {
    /// Whether the sandbox is as it was when it was built.
    fn is_clean(&self) -> bool {
        !self.was_call_reported && self.clean_check.as_ref().is_ok_and(CleanCheck::is_clean)
    }

    /// Waits until a child has ended. Lets reported calls continue.
    fn wait(&mut self) -> Result<(), Errno> {
        if wait_for_child_or_input(self.call_reports.as_fd())? {
            self.was_call_reported = true;
            let_call_continue(self.call_reports.as_fd())?;
        }
        Ok(())
    }
}

/// Waits until the command has ended, kills everything that it left behind, and reports the end. Does
/// neither if there was no command.
pub(super) fn wait_for_command_end(
    area: &'static SharedArea<SandboxState>,
    command: Pid,
    mut recycling: Option<&mut Recycling>,
) -> RunEnd {
    let state = &area.state;
    let mut usage = ResourceUsage::default();
    let status = wait_for_exit(command, &mut usage, recycling.as_deref_mut());
    let mut warm_shell = recycling.map(|recycling| &mut recycling.warm_shell);
    if let Some(warm_shell) = &mut warm_shell {
        warm_shell.note_end_of_copy(state);
    }
    let errno = state.errno.swap(0, Ordering::AcqRel);
    let Some(stage) = Stage::from_number(state.stage.swap(0, Ordering::AcqRel)) else {
        return if errno == 0 { RunEnd::Dropped } else { RunEnd::OtherProcessNeeded };
    };

    if !warm_shell.as_ref().is_some_and(|warm_shell| is_run_gone(warm_shell, &mut usage)) {
        // With namespaces, this reaches everything in the process namespace except the init. At L1
        // it reaches everything in the Landlock domain except the L1 init.
        let _none_left = kill_all(libc::SIGKILL);
        let template = warm_shell.and_then(WarmShell::take_template);
        while let Ok(ended) = wait_any() {
            if Some(ended.pid) != template {
                usage.add(ended.usage);
            }
        }
    }
    area.unmap_image();

    send_report(match errno {
        0 => SandboxReport::Ended { status, usage },
        errno => SandboxReport::NotStarted { stage, errno: Errno::from_raw_os_error(errno) },
    });
    RunEnd::Reported
}

/// Whether the ended command has left no process in the namespaces of this init. Reaps those that
/// have ended, and adds their usage.
///
/// All processes there are descendants of the init, so that none is left if it has no children. To
/// kill them all, the kernel visits each process of the machine.
fn is_run_gone(warm_shell: &WarmShell, usage: &mut ResourceUsage) -> bool {
    if warm_shell.process_count() > 0 {
        return warm_shell.is_alone();
    }
    loop {
        match reap_ended() {
            Ok(Some(ended)) => usage.add(ended.usage),
            Ok(None) => return false,
            Err(errno) => return errno == Errno::CHILD,
        }
    }
}

/// Waits until `command` has ended, and returns its wait status. Reaps all other children too, and
/// adds the usage of all.
fn wait_for_exit(
    command: Pid,
    usage: &mut ResourceUsage,
    mut recycling: Option<&mut Recycling>,
) -> i32 {
    loop {
        let ended = match &mut recycling {
            None => wait_any().map(Some),
            Some(recycling) => match reap_ended() {
                Ok(None) => recycling.wait().map(|()| None),
                ended => ended,
            },
        };
        match ended {
            Ok(None) => {}
            Ok(Some(ended)) => {
                let warm_shell =
                    recycling.as_deref_mut().map(|recycling| &mut recycling.warm_shell);
                if warm_shell.is_some_and(|warm_shell| warm_shell.has_lost_template(ended.pid)) {
                    continue;
                }
                usage.add(ended.usage);
                if ended.pid == command {
                    return ended.status;
                }
            }
            // Impossible: the command is an unreaped child. The daemon kills a sandbox that ends
            // without a report.
            Err(_) => exit_now(1),
        }
    }
}

/// Builds the sandbox.
///
/// The order matters: mounts need capabilities and must precede Landlock, which forbids mounts.
/// Seccomp comes last.
///
/// Returns what the init needs to recycle the sandbox, or `None` if it serves one run.
fn build_sandbox(state: &SandboxState) -> Result<Option<Recycling>, StageError> {
    let blueprint = state.blueprint;
    if let Some(slot) = &blueprint.slot_pidfd {
        die_with_parent(slot.as_fd()).map_err(|errno| StageError(Stage::RunNamespaces, errno))?;
    }
    close_all_except(state.control).map_err(|errno| StageError(Stage::RunNamespaces, errno))?;
    set_open_files_limit(&blueprint.limits)?;
    // The session is that of the template.
    setpgid(None, None).map_err(|errno| StageError(Stage::Session, errno))?;

    mount_proc(blueprint)?;
    mount_scratch(&state.scratch)?;

    capabilities::drop_all().map_err(|errno| StageError(Stage::Capabilities, errno))?;
    blueprint.rules.apply().map_err(|errno| StageError(Stage::Landlock, errno))?;
    install_signal_relay().map_err(|errno| StageError(Stage::Seccomp, errno))?;
    let call_reports =
        load_last_filter(blueprint).map_err(|errno| StageError(Stage::Seccomp, errno))?;
    verify_restrictions().map_err(|errno| StageError(Stage::SelfCheck, errno))?;

    let Some(call_reports) = call_reports else {
        return Ok(None);
    };
    enable_child_interrupts().map_err(|errno| StageError(Stage::Seccomp, errno))?;
    let scratch = &state.scratch;
    let tmp = (!scratch.is_tmp_persistent).then_some(TMP_PATH);
    let home = scratch.home_options.as_ref().map(|_| HOME_PATH);
    let clean_check = CleanCheck::begin(blueprint.network, [tmp, home]);
    let warm_shell = WarmShell::default();
    Ok(Some(Recycling { call_reports, was_call_reported: false, clean_check, warm_shell }))
}

/// Loads the last part of the filter. Returns where it reports calls, or `None` if it reports none.
fn load_last_filter(blueprint: &Blueprint) -> Result<Option<OwnedFd>, Errno> {
    if let Some(filter) = &blueprint.reporting_filter {
        match load_reporting_filter(filter) {
            // The daemon runs below a filter that reports, such as that of some container engines.
            // The kernel permits one.
            Err(Errno::BUSY) => {}
            call_reports => return call_reports.map(Some),
        }
    }
    load_filter(&blueprint.filter).map(|()| None)
}

/// Sets RLIMIT_NOFILE, soft and hard.
pub(super) fn set_open_files_limit(limits: &RunLimits) -> Result<(), StageError> {
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(u64::from(limits.open_files)),
            maximum: Some(u64::from(limits.open_files_hard)),
        },
    )
    .map_err(|errno| StageError(Stage::ResourceLimits, errno))
}

/// Mounts the run's `/proc`, and masks parts of it.
fn mount_proc(blueprint: &Blueprint) -> Result<(), StageError> {
    // At L2 the template's /proc is the only one. The slot keeper has made it read-only.
    if blueprint.level == IsolationLevel::L3 {
        let proc_flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount(c"proc", c"/proc", c"proc", proc_flags, None)
            .map_err(|errno| StageError(Stage::MountProc, errno))?;
    }

    for file in &blueprint.masked_files {
        mount_bind(c"/dev/null", *file).map_err(|errno| StageError(Stage::MaskProc, errno))?;
    }
    for directory in &blueprint.masked_directories {
        mount_bind(EMPTY_DIRECTORY, *directory)
            .map_err(|errno| StageError(Stage::MaskProc, errno))?;
    }
    Ok(())
}

/// Mounts the run's own file systems and terminals.
fn mount_scratch(scratch: &ScratchOptions) -> Result<(), StageError> {
    for (target, options) in [
        (TMP_PATH, (!scratch.is_tmp_persistent).then_some(&scratch.shared_options)),
        (c"/dev/shm", Some(&scratch.shared_options)),
        (HOME_PATH, scratch.home_options.as_ref()),
    ] {
        let Some(options) = options else {
            continue;
        };
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount(c"tmpfs", target, c"tmpfs", flags, options.as_c_str())
            .map_err(|errno| StageError(Stage::MountScratch, errno))?;
    }

    mount(
        c"devpts",
        c"/dev/pts",
        c"devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        DEVPTS_OPTIONS,
    )
    .map_err(|errno| StageError(Stage::MountTerminals, errno))
}

/// The run gets its own terminals, fewer than the machine's total (filesystems/devpts.rst of the
/// kernel documentation).
const DEVPTS_OPTIONS: &CStr = c"newinstance,ptmxmode=0666,mode=0620,max=64";
const HOME_PATH: &CStr = c"/home/agent";
const TMP_PATH: &CStr = c"/tmp";
const _: () = assert!(
    HOME_PATH.to_bytes().len() == SANDBOX_HOME.len()
        && TMP_PATH.to_bytes().len() == SANDBOX_TMP.len(),
    "the two spellings of each directory are one path"
);

/// Verifies the restrictions that every sandbox must have. The probe of [`super::probe`] checks
/// more, once at startup.
pub(super) fn verify_restrictions() -> Result<(), Errno> {
    capabilities::check_dropped()?;
    if secure_computing_mode()? != SecureComputingMode::Filter {
        return Err(Errno::PERM);
    }
    match unshare_user_namespace() {
        Errno::PERM => Ok(()),
        _ => Err(Errno::PERM),
    }
}

pub(super) fn send_report(report: SandboxReport) {
    // A daemon that is gone needs no report: this process dies with it.
    let _sent = send_bytes(inherited_fd(), &report.encode(), &[]);
}
