//! The init of a sandbox, which builds it and ends it.
//!
//! ```text
//! init (process 1)                      command's process (process 2)
//!   builds the sandbox
//!   starts process 2 ───────────────▶   leads a session, says Ready
//!   waits                               receives the request
//!                                       stdio → cwd → limits → execve
//!   process 2 ended ◀────────────────   … runs …
//!   kills and reaps all others
//!   says Ended, and is gone
//! ```
//!
//! Both share the memory of the slot keeper that made them until the command is executed: nothing
//! here allocates, locks, panics or touches thread-local storage. Everything that does not depend
//! on the request is done before it comes.

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
    canary::GuardedTargets,
    capabilities,
    landlock::LandlockRules,
    level::IsolationLevel,
    limits::RunLimits,
    plan::{NetworkMode, SANDBOX_HOME},
    root::EMPTY_DIRECTORY,
    stage::Stage,
    wire::{SandboxReport, send_bytes},
};
use crate::daemon::sys::{
    Errno,
    bpf::{Instruction, load_filter},
    fd::{close_all_except, kept_fd},
    process::{children_usage, die_with_parent, exit_now, kill_all, unshare, wait_any},
    process_arena::SharedArea,
    set_process_name,
    signal::install_signal_relay,
};

/// What a sandbox is built from, prepared by its slot keeper.
#[derive(Debug)]
pub(super) struct Blueprint {
    /// The level of isolation that it gives.
    pub(super) level: IsolationLevel,
    /// What commands must not reach although they see its name.
    pub(super) guarded_targets: GuardedTargets,
    /// Files of `/proc` that `/dev/null` covers.
    pub(super) masked_files: Vec<&'static CStr>,
    /// Directories of `/proc` that an empty one covers.
    pub(super) masked_directories: Vec<&'static CStr>,
    /// Processes that count beside the run's own.
    pub(super) other_process_count: u64,
    /// Limits of the run, as far as its request does not lower them.
    pub(super) limits: RunLimits,
    /// Landlock rules.
    pub(super) rules: LandlockRules,
    /// The part of the seccomp filter that closes what building needs.
    pub(super) filter: Vec<Instruction>,
    /// Network of the run, for the probe.
    pub(super) network: NetworkMode,
    /// Stands for the slot's keeper, with whom the init ends; none at L1, where it has no init.
    pub(super) slot_pidfd: Option<OwnedFd>,
}

/// Options of the file systems that a run gets for itself (tmpfs(5)); none at L1.
#[derive(Debug, Default)]
pub(super) struct ScratchOptions {
    /// Those of `/tmp` and `/dev/shm`.
    pub(super) shared_options: MountOptions,
    /// Those of the home directory; none where the workspace's is kept.
    pub(super) home_options: Option<MountOptions>,
}

/// Text for mount(2) that needs no memory of its own: what a sandbox's memory holds is never freed,
/// only overwritten.
#[derive(Debug)]
pub(super) struct MountOptions([u8; 128]);

impl Default for MountOptions {
    fn default() -> Self {
        Self([0; 128])
    }
}

impl MountOptions {
    /// Answers nothing for a text that is too long.
    pub(super) fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; 128];
        let (place, end) = bytes.split_at_mut_checked(text.len())?;
        place.copy_from_slice(text.as_bytes());
        (!end.is_empty() && !text.contains('\0')).then_some(Self(bytes))
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// What the two processes tell one another.
#[derive(Debug)]
pub(super) struct SandboxState {
    /// What to build.
    pub(super) blueprint: &'static Blueprint,
    /// Its own file systems.
    scratch: ScratchOptions,
    /// Number of the socket to the daemon, as the init inherits it.
    pub(super) control: i32,
    /// The step that the command's process is at; 0 until it has a request.
    pub(super) stage: AtomicU32,
    /// Why that step failed; 0 while it has not.
    pub(super) errno: AtomicI32,
}

/// Processes that count in the slot's user namespace beside the command's: the slot's keeper and the
/// init.
pub(super) const OWN_PROCESS_COUNT: u64 = 2;

/// A step that failed.
pub(super) struct StageError(pub(super) Stage, pub(super) Errno);

impl SandboxState {
    /// The state of a sandbox that is about to be built.
    pub(super) fn new(
        blueprint: &'static Blueprint,
        scratch: ScratchOptions,
        control: i32,
    ) -> Self {
        Self { blueprint, scratch, control, stage: AtomicU32::new(0), errno: AtomicI32::new(0) }
    }
}

/// Runs as process 1.
pub(super) fn run_init(cabin: &'static SharedArea<SandboxState>) -> ! {
    set_process_name(c"jig-init");
    let state = &cabin.state;
    if let Err(StageError(stage, errno)) = build_sandbox(state) {
        send_report(SandboxReport::Failed { stage, errno });
        exit_now(1);
    }
    let command = match cabin.start_second() {
        Ok(command) => command,
        Err(errno) => {
            send_report(SandboxReport::Failed { stage: Stage::CommandProcess, errno });
            exit_now(1);
        }
    };
    wait_for_command_end(cabin, command);
    exit_now(0)
}

/// Waits until the command has ended, ends whatever it left behind, and tells.
pub(super) fn wait_for_command_end(cabin: &'static SharedArea<SandboxState>, command: Pid) {
    let state = &cabin.state;
    let status = wait_for_exit(command);
    let Some(stage) = Stage::from_number(state.stage.load(Ordering::Acquire)) else {
        return; // the daemon dropped the sandbox without a request
    };
    // Kill reaches everything in this process namespace but its init; at L1, everything in this
    // Landlock domain but the supervisor.
    let _none_left = kill_all(libc::SIGKILL);
    while wait_any().is_ok() {}
    cabin.unmap_image();
    send_report(match state.errno.load(Ordering::Acquire) {
        0 => SandboxReport::Ended { status, usage: children_usage() },
        errno => SandboxReport::NotStarted { stage, errno: Errno::from_raw_os_error(errno) },
    });
}

/// Waits until `command` has ended, reaping everybody else who ends meanwhile.
fn wait_for_exit(command: Pid) -> i32 {
    loop {
        match wait_any() {
            Ok((ended, status)) if ended == command => return status,
            Ok(_) => {}
            Err(_) => return libc::SIGKILL, // cannot be: the command is our child and was not waited for
        }
    }
}

/// Builds the sandbox. The order matters: mounts need capabilities and come before Landlock, which
/// forbids them; seccomp comes last.
fn build_sandbox(state: &SandboxState) -> Result<(), StageError> {
    let blueprint = state.blueprint;
    if let Some(slot) = &blueprint.slot_pidfd {
        die_with_parent(slot.as_fd()).map_err(|errno| StageError(Stage::RunNamespaces, errno))?;
    }
    close_all_except(state.control).map_err(|errno| StageError(Stage::RunNamespaces, errno))?;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(u64::from(blueprint.limits.open_files)),
            maximum: Some(u64::from(blueprint.limits.open_files_hard)),
        },
    )
    .map_err(|errno| StageError(Stage::ResourceLimits, errno))?;

    // At L2, the template's is the only one, and was made read-only by the slot's keeper.
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
    for (target, options) in [
        (c"/tmp", Some(&state.scratch.shared_options)),
        (c"/dev/shm", Some(&state.scratch.shared_options)),
        (HOME_PATH, state.scratch.home_options.as_ref()),
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
    .map_err(|errno| StageError(Stage::MountTerminals, errno))?;

    capabilities::drop_all().map_err(|errno| StageError(Stage::Capabilities, errno))?;
    blueprint.rules.apply().map_err(|errno| StageError(Stage::Landlock, errno))?;
    install_signal_relay().map_err(|errno| StageError(Stage::Seccomp, errno))?;
    load_filter(&blueprint.filter).map_err(|errno| StageError(Stage::Seccomp, errno))?;
    verify_restrictions().map_err(|errno| StageError(Stage::SelfCheck, errno))
}

/// Terminals of the run alone, fewer than the machine has for all (devpts, kernel documentation
/// filesystems/devpts.rst).
const DEVPTS_OPTIONS: &CStr = c"newinstance,ptmxmode=0666,mode=0620,max=64";
const HOME_PATH: &CStr = c"/home/agent";
const _: () = assert!(
    HOME_PATH.to_bytes().len() == SANDBOX_HOME.len(),
    "the two spellings of the home directory are one path"
);

/// Reads back what must be in force in every sandbox; the probe of [`super::canary`] looks further, once.
pub(super) fn verify_restrictions() -> Result<(), Errno> {
    capabilities::check_dropped()?;
    if secure_computing_mode()? != SecureComputingMode::Filter {
        return Err(Errno::PERM);
    }
    match unshare(libc::CLONE_NEWUSER) {
        Err(Errno::PERM) => Ok(()),
        _ => Err(Errno::PERM),
    }
}

pub(super) fn send_report(report: SandboxReport) {
    // A daemon that is gone needs no answer: this process dies with it.
    let _sent = send_bytes(kept_fd(), &report.encode(), &[]);
}
