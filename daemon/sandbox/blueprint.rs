//! What a sandbox is built from, and the state that its first two processes share.

use std::{
    ffi::CStr,
    os::fd::OwnedFd,
    sync::atomic::{AtomicI32, AtomicU32, AtomicU64},
};

use super::{
    landlock::LandlockRules, level::IsolationLevel, limits::RunLimits, plan::NetworkMode,
    probe::GuardedTargets,
};
use crate::daemon::sys::{bpf::Instruction, marked_receive::ReceiveMark};

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
    /// The same filter, which also reports calls that could leave what the init cannot see. `None` if
    /// each sandbox serves one run.
    pub(super) reporting_filter: Option<Vec<Instruction>>,
    /// With which a command's process receives its request, so that the filter does not report it.
    pub(super) receive_mark: ReceiveMark,
    /// The network of the run.
    pub(super) network: NetworkMode,
    /// Pidfd of the slot keeper, with which the init ends. `None` at L1, where a signal ends it.
    pub(super) slot_pidfd: Option<OwnedFd>,
}

/// Mount options of a run's own file systems (tmpfs(5)). Empty at L1.
#[derive(Debug, Default)]
pub(super) struct ScratchOptions {
    /// For `/dev/shm`, and `/tmp` unless it is persistent.
    pub(super) shared_options: MountOptions,
    pub(super) is_tmp_persistent: bool,
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

    pub(super) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// State that the two processes share.
#[derive(Debug)]
pub(super) struct SandboxState {
    pub(super) blueprint: &'static Blueprint,
    pub(super) scratch: ScratchOptions,
    /// Descriptor number of the control socket, as the init inherits it.
    pub(super) control: i32,
    /// The current step of the command's process; 0 until it has a request.
    pub(super) stage: AtomicU32,
    /// Error number of that step; 0 unless it failed.
    pub(super) errno: AtomicI32,
    /// CPU time of the runs that have ended and of the init, in microseconds. Grows with each run.
    pub(super) past_cpu_us: AtomicU64,
    /// Number of the shell that was executed last, if the next command may start in a warm one
    /// ([`super::warm_shell`]), or 0.
    pub(super) last_shell: AtomicU32,
    /// What the second process becomes: the template of the shell with this number, with these
    /// descriptors, or a command with 0.
    pub(super) template_shell: AtomicU32,
    pub(super) template_fds: [AtomicI32; 3],
    /// Number of templates that live beside the command: 0 or 1.
    pub(super) template_count: AtomicU64,
}

/// Processes in the slot's user namespace besides the command's: the slot keeper and the init.
pub(super) const OWN_PROCESS_COUNT: u64 = 2;

impl SandboxState {
    pub(super) fn new(
        blueprint: &'static Blueprint,
        scratch: ScratchOptions,
        control: i32,
    ) -> Self {
        Self {
            blueprint,
            scratch,
            control,
            stage: AtomicU32::new(0),
            errno: AtomicI32::new(0),
            past_cpu_us: AtomicU64::new(0),
            last_shell: AtomicU32::new(0),
            template_shell: AtomicU32::new(0),
            template_fds: Default::default(),
            template_count: AtomicU64::new(0),
        }
    }
}
