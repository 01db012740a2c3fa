//! The steps of building a sandbox, and what an operator can do when one fails.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::daemon::sys::Errno;

/// A step of building a sandbox or starting a command in it.
///
/// A sandbox's init reports the step by its number: it can only write a few bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub(crate) enum Stage {
    /// Starting the launcher, or communicating with it.
    Launcher = 1,
    /// Choosing the user that sandboxes run as.
    Identity,
    /// Making the launcher's user, mount and process namespaces.
    UserNamespace,
    /// Writing the launcher's user and group maps.
    IdMap,
    SetUser,
    Propagation,
    /// Mapping the owner of a workspace or a writable bind to the sandboxes' user.
    MapOwner,
    /// Opening a directory or file that commands will see.
    OpenSource,
    TemplateNamespaces,
    BuildRoot,
    MountTemplateProc,
    /// Mounting the daemon's own `/proc` in the sandbox (L2).
    BindProc,
    PivotRoot,
    Capabilities,
    NoNewPrivileges,
    Seccomp,
    NetworkNamespace,
    SlotNamespace,
    RunNamespaces,
    MountProc,
    MaskProc,
    /// Mounting the run's `/tmp`, `/dev/shm` and home directory.
    MountScratch,
    MountTerminals,
    Cgroup,
    ResourceLimits,
    Landlock,
    /// Checking that all restrictions are in force.
    SelfCheck,
    CommandProcess,
    ReceiveRequest,
    Session,
    Terminal,
    StandardStreams,
    ChangeDirectory,
    Execute,
    /// Checking the prerequisites of isolation without namespaces (L1), and preparing it.
    NoNamespaces,
    /// Mounting the workspace's persistent home directory.
    PersistentHome,
    /// Mounting the workspace's persistent `/tmp`.
    PersistentTmp,
    /// Protecting paths of the workspace from commands.
    ProtectedPaths,
    /// Refusing a workspace that belongs to root, because commands could not write its files.
    WorkspaceOwner,
    /// Running the probe that verifies the isolation.
    Probe,
}

/// A failed step, with its cause.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StageFailure {
    pub(crate) stage: Stage,
    /// The kernel's error number; 0 if the failure did not come from the kernel.
    pub(crate) errno: i32,
    /// What was being done, for people: a path, or the failed checks of the probe. May be empty.
    pub(crate) detail: String,
}

const LAST_STAGE: Stage = Stage::Probe;

// === impl Stage ===

impl Stage {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        ALL_STAGES.iter().copied().find(|stage| *stage as u32 == number)
    }

    /// Name of the step in errors and `GetInfo`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Launcher => "launcher",
            Self::Identity => "identity",
            Self::UserNamespace => "user_namespace",
            Self::IdMap => "id_map",
            Self::SetUser => "set_user",
            Self::Propagation => "mount_propagation",
            Self::MapOwner => "map_owner",
            Self::OpenSource => "open_source",
            Self::TemplateNamespaces => "template_namespaces",
            Self::BuildRoot => "build_root",
            Self::MountTemplateProc => "mount_template_proc",
            Self::BindProc => "bind_proc",
            Self::PivotRoot => "pivot_root",
            Self::Capabilities => "capabilities",
            Self::NoNewPrivileges => "no_new_privs",
            Self::Seccomp => "seccomp",
            Self::NetworkNamespace => "network_namespace",
            Self::SlotNamespace => "slot_namespace",
            Self::RunNamespaces => "run_namespaces",
            Self::MountProc => "mount_proc",
            Self::MaskProc => "mask_proc",
            Self::MountScratch => "mount_scratch",
            Self::MountTerminals => "mount_terminals",
            Self::Cgroup => "cgroup",
            Self::ResourceLimits => "resource_limits",
            Self::Landlock => "landlock",
            Self::SelfCheck => "self_check",
            Self::CommandProcess => "command_process",
            Self::ReceiveRequest => "receive_request",
            Self::Session => "session",
            Self::Terminal => "terminal",
            Self::StandardStreams => "standard_streams",
            Self::ChangeDirectory => "change_directory",
            Self::Execute => "execute",
            Self::NoNamespaces => "no_namespaces",
            Self::PersistentHome => "persistent_home",
            Self::PersistentTmp => "persistent_tmp",
            Self::ProtectedPaths => "protected_paths",
            Self::WorkspaceOwner => "workspace_owner",
            Self::Probe => "probe",
        }
    }

    /// What an operator can do when this step fails.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::UserNamespace | Self::SlotNamespace => {
                "allow user namespaces: raise the sysctls user.max_user_namespaces, user.max_pid_namespaces and user.max_mnt_namespaces; on Ubuntu, give the binary an AppArmor profile with `userns`; in a \
                 container, use a seccomp profile that allows clone and unshare with namespace flags"
            }
            Self::IdMap => {
                "in a container that runs as root, add CAP_SETUID, CAP_SETGID and CAP_SETFCAP, or run as a user that is not root"
            }
            Self::Identity | Self::SetUser => {
                "run the daemon as root with CAP_SETUID, CAP_SETGID and CAP_SYS_ADMIN, or as an ordinary user that owns its workspace"
            }
            Self::Propagation
            | Self::BuildRoot
            | Self::BindProc
            | Self::MountScratch
            | Self::MountTerminals => {
                "allow mounts in the daemon's user namespace: containerd's default AppArmor profile denies them (use a Localhost profile), and so do \
                 seccomp profiles without mount, move_mount, open_tree and mount_setattr"
            }
            Self::MapOwner => {
                "start the daemon with --chown-workspace, which gives root's files in the workspace to the user that commands run as; or keep the \
                 workspace on a file system with id-mapped mounts (ext4, xfs, btrfs, tmpfs since Linux 6.3; in a container, a volume); or run the \
                 daemon as the user that owns it"
            }
            Self::WorkspaceOwner => {
                "start the daemon with --chown-workspace, which gives root's files in the workspace to the user that commands run as; or run the \
                 daemon as the user that owns the workspace"
            }
            Self::OpenSource => {
                "check that the path exists and that its mounts hold no proc, sysfs or cgroup file system"
            }
            Self::MountTemplateProc | Self::MountProc | Self::MaskProc => {
                "the container runtime masks /proc: in Kubernetes set hostUsers: false and procMount: Unmasked, elsewhere unmask it for this container"
            }
            Self::NoNamespaces => {
                "meet the requirements of L2 or L3, or those of L1: Linux 6.12 with landlock in the boot parameter lsm=, in a container a \
                 seccomp profile that allows the landlock_* calls, the workspace and binds at their own paths, no protected paths, system files that do not belong to the commands' user, and a directory for temporary files (TMPDIR) \
                 outside the workspace"
            }
            Self::PersistentHome => {
                "give each run an empty home directory (home = \"ephemeral\"), or meet the requirements of a persistent one: mounts (L2 or L3); for a root daemon, \
                 CAP_SYS_ADMIN or a workspace that belongs to its own user; and a home that belongs to the commands' user"
            }
            Self::PersistentTmp => {
                "give each run an empty /tmp (tmp = \"ephemeral\"), or meet the requirements of a persistent one: mounts (L2 or L3); for a root daemon, \
                 CAP_SYS_ADMIN or a workspace that belongs to its own user; and a directory that belongs to the commands' user"
            }
            Self::ProtectedPaths => {
                "meet the requirements of L2; or leave out --protect (protected = [...]): commands then run at L1 and can change these paths, and only \
                 file tools refuse to"
            }
            Self::PivotRoot => {
                "use a seccomp profile that allows pivot_root, or at least mount and chroot"
            }
            Self::NetworkNamespace => {
                "allow network namespaces: raise sysctl user.max_net_namespaces, or use a seccomp profile that allows unshare and setns"
            }
            Self::TemplateNamespaces | Self::RunNamespaces => {
                "raise the sysctls user.max_*_namespaces and kernel.pid_max, or use a seccomp profile that allows clone with namespace flags"
            }
            Self::Seccomp => {
                "use a kernel with CONFIG_SECCOMP_FILTER; in a container, a seccomp profile that allows the call seccomp"
            }
            Self::Landlock => {
                "the kernel offers Landlock but refused a call: check the boot parameter lsm= and the container's seccomp profile"
            }
            Self::Cgroup => {
                "reserve the daemon's cgroup for the daemon: nothing else may remove or limit cgroups in it (systemd: Delegate=yes)"
            }
            Self::ResourceLimits => {
                "runs cannot exceed the daemon's own hard limits: lower limits.processes, limits.open_files_hard or limits.file_size_bytes, or raise \
                 the daemon's limits (ulimit -Hu, -Hn, -Hf)"
            }
            Self::Launcher
            | Self::Capabilities
            | Self::NoNewPrivileges
            | Self::SelfCheck
            | Self::CommandProcess
            | Self::ReceiveRequest
            | Self::Session
            | Self::Terminal
            | Self::StandardStreams
            | Self::ChangeDirectory
            | Self::Execute
            | Self::Probe => {
                "see the daemon's log; if the host does not explain the failure, report it as a bug of jigd, with the log"
            }
        }
    }
}

const ALL_STAGES: [Stage; LAST_STAGE as usize] = [
    Stage::Launcher,
    Stage::Identity,
    Stage::UserNamespace,
    Stage::IdMap,
    Stage::SetUser,
    Stage::Propagation,
    Stage::MapOwner,
    Stage::OpenSource,
    Stage::TemplateNamespaces,
    Stage::BuildRoot,
    Stage::MountTemplateProc,
    Stage::BindProc,
    Stage::PivotRoot,
    Stage::Capabilities,
    Stage::NoNewPrivileges,
    Stage::Seccomp,
    Stage::NetworkNamespace,
    Stage::SlotNamespace,
    Stage::RunNamespaces,
    Stage::MountProc,
    Stage::MaskProc,
    Stage::MountScratch,
    Stage::MountTerminals,
    Stage::Cgroup,
    Stage::ResourceLimits,
    Stage::Landlock,
    Stage::SelfCheck,
    Stage::CommandProcess,
    Stage::ReceiveRequest,
    Stage::Session,
    Stage::Terminal,
    Stage::StandardStreams,
    Stage::ChangeDirectory,
    Stage::Execute,
    Stage::NoNamespaces,
    Stage::PersistentHome,
    Stage::PersistentTmp,
    Stage::ProtectedPaths,
    Stage::WorkspaceOwner,
    Stage::Probe,
];

// === impl StageFailure ===

impl StageFailure {
    /// A failure with an error number of the kernel.
    pub(crate) fn from_errno(stage: Stage, errno: Errno, detail: impl Into<String>) -> Self {
        Self { stage, errno: errno.raw_os_error(), detail: detail.into() }
    }

    /// The kernel's error as an I/O error.
    pub(crate) fn to_io_error(&self) -> std::io::Error {
        std::io::Error::from_raw_os_error(self.errno)
    }

    /// A failure that did not come from the kernel.
    pub(crate) fn other(stage: Stage, detail: impl Into<String>) -> Self {
        Self { stage, errno: 0, detail: detail.into() }
    }

    /// The error number for a [`super::wire::SandboxReport`]: the kernel's, or EIO for other
    /// failures.
    pub(super) fn wire_errno(&self) -> Errno {
        match self.errno {
            0 => Errno::IO,
            number => Errno::from_raw_os_error(number),
        }
    }

    /// Whether the peer process is gone.
    pub(crate) fn is_disconnection(&self) -> bool {
        [Errno::PIPE, Errno::CONNRESET, Errno::NOTCONN]
            .iter()
            .any(|errno| errno.raw_os_error() == self.errno)
    }

    /// The failure when a socket of an earlier run still exists in a slot's network namespace.
    pub(super) fn netns_in_use() -> Self {
        Self::from_errno(
            Stage::NetworkNamespace,
            Errno::ADDRINUSE,
            "a socket of an earlier run still exists",
        )
    }

    pub(super) fn is_netns_in_use(&self) -> bool {
        self.stage == Stage::NetworkNamespace && self.errno == Errno::ADDRINUSE.raw_os_error()
    }

    /// Name of the kernel's error, such as `EPERM`; empty without one.
    pub(crate) fn errno_name(&self) -> String {
        match self.errno {
            0 => String::new(),
            number => errno_name(number),
        }
    }
}

impl fmt::Display for StageFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} failed", self.stage.name())?;
        if self.errno != 0 {
            let text = std::io::Error::from_raw_os_error(self.errno).to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            write!(f, " with {} ({text})", self.errno_name())?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for StageFailure {}

/// Converts an error number to a failure of `stage`, for `map_err`.
pub(crate) fn at_stage(stage: Stage, detail: &str) -> impl FnOnce(Errno) -> StageFailure {
    move |errno| StageFailure::from_errno(stage, errno, detail)
}

fn errno_name(number: i32) -> String {
    let errno = nix::errno::Errno::from_raw(number);
    if errno == nix::errno::Errno::UnknownErrno {
        return format!("errno {number}");
    }
    format!("{errno:?}")
}
