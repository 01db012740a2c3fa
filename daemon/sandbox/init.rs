//! The init of a sandbox: process 1 of a run. It builds the sandbox, waits for the command, and
//! kills what the command left behind.
//!
//! ```text
//! init (process 1)                      command's process (process 2)
//!   builds the sandbox
//!   starts process 2 ───────────────▶   starts a session, reports Ready
//!   waits                               receives the request
//!                                       stdio → cwd → limits → execve
//!   process 2 ended ◀────────────────   … runs …
//!   kills and reaps all others
//!   reports Ended, and exits
//! ```
//!
//! Both processes share the memory of the slot keeper until the command is executed: nothing here
//! allocates, locks, panics or touches thread-local storage. The init completes every step that does
//! not need the request before the request arrives, so that a call waits less.

use std::{
    ffi::CStr,
    os::fd::{AsFd as _, OwnedFd},
    sync::atomic::{AtomicI32, AtomicU32, Ordering},
};

use rustix::{
    mount::{MountFlags, mount, mount_bind},
    process::{Pid, Resource, Rlimit, setrlimit},
    thread::{SecureComputingMode, secure_computing_mode},
};

use super::{
    capabilities,
    landlock::LandlockRules,
    level::IsolationLevel,
    limits::RunLimits,
    plan::{NetworkMode, SANDBOX_HOME},
    probe::GuardedTargets,
    root::EMPTY_DIRECTORY,
    stage::Stage,
    wire::{SandboxReport, send_bytes},
};
use crate::daemon::sys::{
    Errno,
    bpf::{Instruction, load_filter},
    denied_syscalls::unshare_user_namespace,
    fd::{close_all_except, inherited_fd},
    process::{children_usage, die_with_parent, exit_now, kill_all, wait_any},
    process_arena::SharedArea,
    set_process_name,
    signal::install_signal_relay,
};

/// What a sandbox is built from, prepared by its slot keeper (at L1, by its init).
#[derive(Debug)]
pub(super) struct Blueprint {
    pub(super) level: IsolationLevel,
    /// Files and processes that commands can name but must not reach.
    pub(super) guarded_targets: GuardedTargets,
    /// Files of `/proc` to cover with `/dev/null`.
    pub(super) masked_files: Vec<&'static CStr>,
    /// Directories of `/proc` to cover with an empty one.
    pub(super) masked_directories: Vec<&'static CStr>,
    /// Processes outside the run that RLIMIT_NPROC counts too.
    pub(super) other_process_count: u64,
    /// Limits of the run. A request can lower them.
    pub(super) limits: RunLimits,
    pub(super) rules: LandlockRules,
    /// The last part of the seccomp filter: it refuses the calls that building a sandbox needs.
    pub(super) filter: Vec<Instruction>,
    /// The network of the run, for the probe.
    pub(super) network: NetworkMode,
    /// Pidfd of the slot keeper, with which the init ends. `None` at L1, where a signal ends it.
    pub(super) slot_pidfd: Option<OwnedFd>,
}

/// Mount options of a run's own file systems (tmpfs(5)). Empty at L1.
#[derive(Debug, Default)]
pub(super) struct ScratchOptions {
    /// For `/tmp` and `/dev/shm`.
    pub(super) shared_options: MountOptions,
    /// For the home directory; `None` if it is persistent.
    pub(super) home_options: Option<MountOptions>,
}

/// A string for mount(2), stored inline: a sandbox's memory is never freed, only overwritten, so a
/// heap allocation would leak.
#[derive(Debug)]
pub(super) struct MountOptions([u8; 128]);

impl Default for MountOptions {
    fn default() -> Self {
        Self([0; 128])
    }
}

impl MountOptions {
    /// Returns `None` if `text` is too long or contains a NUL.
    pub(super) fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; 128];
        let (start, rest) = bytes.split_at_mut_checked(text.len())?;
        start.copy_from_slice(text.as_bytes());
        (!rest.is_empty() && !text.contains('\0')).then_some(Self(bytes))
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// State that the two processes share.
#[derive(Debug)]
pub(super) struct SandboxState {
    pub(super) blueprint: &'static Blueprint,
    scratch: ScratchOptions,
    /// Descriptor number of the control socket, as the init inherits it.
    pub(super) control: i32,
    /// The current step of the command's process; 0 until it has a request.
    pub(super) stage: AtomicU32,
    /// Error number of that step; 0 unless it failed.
    pub(super) errno: AtomicI32,
}

/// Processes in the slot's user namespace besides the command's: the slot keeper and the init.
pub(super) const OWN_PROCESS_COUNT: u64 = 2;

/// A failed step. Unlike [`super::stage::StageFailure`], it needs no allocation.
pub(super) struct StageError(pub(super) Stage, pub(super) Errno);

impl SandboxState {
    pub(super) fn new(
        blueprint: &'static Blueprint,
        scratch: ScratchOptions,
        control: i32,
    ) -> Self {
        Self { blueprint, scratch, control, stage: AtomicU32::new(0), errno: AtomicI32::new(0) }
    }
}

pub(super) fn run_init(area: &'static SharedArea<SandboxState>) -> ! {
    set_process_name(c"jig-init");
    let state = &area.state;
    if let Err(StageError(stage, errno)) = build_sandbox(state) {
        send_report(SandboxReport::Failed { stage, errno });
        exit_now(1);
    }

    let command = match area.start_second() {
        Ok(command) => command,
        Err(errno) => {
            send_report(SandboxReport::Failed { stage: Stage::CommandProcess, errno });
            exit_now(1);
        }
    };

    wait_for_command_end(area, command);
    exit_now(0)
}

/// Waits until the command has ended, kills everything that it left behind, and reports the end.
pub(super) fn wait_for_command_end(area: &'static SharedArea<SandboxState>, command: Pid) {
    let state = &area.state;
    let status = wait_for_exit(command);
    let Some(stage) = Stage::from_number(state.stage.load(Ordering::Acquire)) else {
        return; // the daemon dropped the sandbox without a request
    };

    // With namespaces, this reaches everything in the process namespace except the init. At L1 it
    // reaches everything in the Landlock domain except the L1 init.
    let _none_left = kill_all(libc::SIGKILL);
    while wait_any().is_ok() {}
    area.unmap_image();

    send_report(match state.errno.load(Ordering::Acquire) {
        0 => SandboxReport::Ended { status, usage: children_usage() },
        errno => SandboxReport::NotStarted { stage, errno: Errno::from_raw_os_error(errno) },
    });
}

/// Waits until `command` has ended, and returns its wait status. Reaps all other children too.
fn wait_for_exit(command: Pid) -> i32 {
    loop {
        match wait_any() {
            Ok((ended, status)) if ended == command => return status,
            Ok(_) => {}
            Err(_) => return libc::SIGKILL, // impossible: the command is an unreaped child
        }
    }
}

/// Builds the sandbox.
///
/// The order matters: mounts need capabilities and must precede Landlock, which forbids mounts.
/// Seccomp comes last.
fn build_sandbox(state: &SandboxState) -> Result<(), StageError> {
    let blueprint = state.blueprint;
    if let Some(slot) = &blueprint.slot_pidfd {
        die_with_parent(slot.as_fd()).map_err(|errno| StageError(Stage::RunNamespaces, errno))?;
    }
    close_all_except(state.control).map_err(|errno| StageError(Stage::RunNamespaces, errno))?;
    set_open_files_limit(&blueprint.limits)?;

    mount_proc(blueprint)?;
    mount_scratch(&state.scratch)?;

    capabilities::drop_all().map_err(|errno| StageError(Stage::Capabilities, errno))?;
    blueprint.rules.apply().map_err(|errno| StageError(Stage::Landlock, errno))?;
    install_signal_relay().map_err(|errno| StageError(Stage::Seccomp, errno))?;
    load_filter(&blueprint.filter).map_err(|errno| StageError(Stage::Seccomp, errno))?;
    verify_restrictions().map_err(|errno| StageError(Stage::SelfCheck, errno))
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
        (c"/tmp", Some(&scratch.shared_options)),
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
const _: () = assert!(
    HOME_PATH.to_bytes().len() == SANDBOX_HOME.len(),
    "the two spellings of the home directory are one path"
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
