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
    canary::Guarded,
    capabilities,
    landlock::Rules,
    level::Level,
    limits::Limits,
    plan::{HOME, Network},
    root::EMPTY,
    stage::Stage,
    wire::{Report, send_bytes},
};
use crate::daemon::sys::{
    Errno,
    bpf::{Instruction, load_filter},
    fd::{keep_only, kept},
    memory::Cabin,
    name_process,
    process::{end_with, exit_now, kill_all, unshare, usage_of_children, wait_any},
    signal::install_relay,
};

/// What a sandbox is built from, prepared by its slot keeper.
#[derive(Debug)]
pub(super) struct Blueprint {
    /// The level of isolation that it gives.
    pub(super) level: Level,
    /// What commands must not reach although they see its name.
    pub(super) guarded: Guarded,
    /// Files of `/proc` that `/dev/null` covers.
    pub(super) masked_files: Vec<&'static CStr>,
    /// Directories of `/proc` that an empty one covers.
    pub(super) masked_directories: Vec<&'static CStr>,
    /// Processes that count beside the run's own.
    pub(super) other_processes: u64,
    /// Limits of the run, as far as its request does not lower them.
    pub(super) limits: Limits,
    /// Landlock rules.
    pub(super) rules: Rules,
    /// The part of the seccomp filter that closes what building needs.
    pub(super) filter: Vec<Instruction>,
    /// Network of the run, for the probe.
    pub(super) network: Network,
    /// Stands for the slot's keeper, with whom the init ends; none at L1, where it has no init.
    pub(super) slot: Option<OwnedFd>,
}

/// Options of the file systems that a run gets for itself (tmpfs(5)); none at L1.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Those of `/tmp` and `/dev/shm`.
    pub(super) shared: MountOptions,
    /// Those of the home directory; none where the workspace's is kept.
    pub(super) home: Option<MountOptions>,
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
pub(super) struct State {
    /// What to build.
    pub(super) blueprint: &'static Blueprint,
    /// Its own file systems.
    scratch: Scratch,
    /// Number of the socket to the daemon, as the init inherits it.
    pub(super) control: i32,
    /// The step that the command's process is at; 0 until it has a request.
    pub(super) stage: AtomicU32,
    /// Why that step failed; 0 while it has not.
    pub(super) errno: AtomicI32,
}

/// Processes that count in the slot's user namespace beside the command's: the slot's keeper and the
/// init.
pub(super) const PROCESSES_OF_OURS: u64 = 2;

/// A step that failed.
pub(super) struct Broken(pub(super) Stage, pub(super) Errno);

impl State {
    /// The state of a sandbox that is about to be built.
    pub(super) fn new(blueprint: &'static Blueprint, scratch: Scratch, control: i32) -> Self {
        Self { blueprint, scratch, control, stage: AtomicU32::new(0), errno: AtomicI32::new(0) }
    }
}

/// Runs as process 1.
pub(super) fn run_init(cabin: &'static Cabin<State>) -> ! {
    name_process(c"jig-init");
    let state = &cabin.state;
    if let Err(Broken(stage, errno)) = build(state) {
        tell(Report::Failed { stage, errno });
        exit_now(1);
    }
    let command = match cabin.start_second() {
        Ok(command) => command,
        Err(errno) => {
            tell(Report::Failed { stage: Stage::CommandProcess, errno });
            exit_now(1);
        }
    };
    see_through(cabin, command);
    exit_now(0)
}

/// Waits until the command has ended, ends whatever it left behind, and tells.
pub(super) fn see_through(cabin: &'static Cabin<State>, command: Pid) {
    let state = &cabin.state;
    let status = wait_for(command);
    let Some(stage) = Stage::from_number(state.stage.load(Ordering::Acquire)) else {
        return; // the daemon dropped the sandbox without a request
    };
    // Kill reaches everything in this process namespace but its init; at L1, everything in this
    // Landlock domain but the supervisor.
    let _none_left = kill_all(libc::SIGKILL);
    while wait_any().is_ok() {}
    cabin.unmap_image();
    tell(match state.errno.load(Ordering::Acquire) {
        0 => Report::Ended { status, usage: usage_of_children() },
        errno => Report::NotStarted { stage, errno: Errno::from_raw_os_error(errno) },
    });
}

/// Waits until `command` has ended, reaping everybody else who ends meanwhile.
fn wait_for(command: Pid) -> i32 {
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
fn build(state: &State) -> Result<(), Broken> {
    let blueprint = state.blueprint;
    if let Some(slot) = &blueprint.slot {
        end_with(slot.as_fd()).map_err(|errno| Broken(Stage::RunNamespaces, errno))?;
    }
    keep_only(state.control).map_err(|errno| Broken(Stage::RunNamespaces, errno))?;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(u64::from(blueprint.limits.open_files)),
            maximum: Some(u64::from(blueprint.limits.open_files_hard)),
        },
    )
    .map_err(|errno| Broken(Stage::ResourceLimits, errno))?;

    // At L2, the template's is the only one, and was made read-only by the slot's keeper.
    if blueprint.level == Level::L3 {
        let proc_flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount(c"proc", c"/proc", c"proc", proc_flags, None)
            .map_err(|errno| Broken(Stage::MountProc, errno))?;
    }
    for file in &blueprint.masked_files {
        mount_bind(c"/dev/null", *file).map_err(|errno| Broken(Stage::MaskProc, errno))?;
    }
    for directory in &blueprint.masked_directories {
        mount_bind(EMPTY, *directory).map_err(|errno| Broken(Stage::MaskProc, errno))?;
    }
    for (target, options) in [
        (c"/tmp", Some(&state.scratch.shared)),
        (c"/dev/shm", Some(&state.scratch.shared)),
        (HOME_PATH, state.scratch.home.as_ref()),
    ] {
        let Some(options) = options else {
            continue;
        };
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount(c"tmpfs", target, c"tmpfs", flags, options.as_c_str())
            .map_err(|errno| Broken(Stage::MountScratch, errno))?;
    }

    mount(
        c"devpts",
        c"/dev/pts",
        c"devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        TERMINAL_OPTIONS,
    )
    .map_err(|errno| Broken(Stage::MountTerminals, errno))?;

    capabilities::give_up_all().map_err(|errno| Broken(Stage::Capabilities, errno))?;
    blueprint.rules.apply().map_err(|errno| Broken(Stage::Landlock, errno))?;
    install_relay().map_err(|errno| Broken(Stage::Seccomp, errno))?;
    load_filter(&blueprint.filter).map_err(|errno| Broken(Stage::Seccomp, errno))?;
    check().map_err(|errno| Broken(Stage::SelfCheck, errno))
}

/// Terminals of the run alone, fewer than the machine has for all (devpts, kernel documentation
/// filesystems/devpts.rst).
const TERMINAL_OPTIONS: &CStr = c"newinstance,ptmxmode=0666,mode=0620,max=64";
const HOME_PATH: &CStr = c"/home/agent";
const _: () = assert!(
    HOME_PATH.to_bytes().len() == HOME.len(),
    "the two spellings of the home directory are one path"
);

/// Reads back what must be in force in every sandbox; the probe of [`super::canary`] looks further, once.
pub(super) fn check() -> Result<(), Errno> {
    capabilities::check_given_up()?;
    if secure_computing_mode()? != SecureComputingMode::Filter {
        return Err(Errno::PERM);
    }
    match unshare(libc::CLONE_NEWUSER) {
        Err(Errno::PERM) => Ok(()),
        _ => Err(Errno::PERM),
    }
}

pub(super) fn tell(report: Report) {
    // A daemon that is gone needs no answer: this process dies with it.
    let _sent = send_bytes(kept(), &report.encode(), &[]);
}
