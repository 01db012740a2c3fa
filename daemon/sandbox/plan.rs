//! What the launcher is to build: the part of the configuration that sandboxes depend on, sent to
//! it once when it starts.

use std::{borrow::Cow, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::limits::RunLimits;

/// Everything that sandboxes are built from. No request can change it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SandboxPlan {
    /// The workspaces; a template is built for each.
    pub(crate) workspaces: Vec<WorkspacePlan>,
    /// Limits of each run.
    pub(crate) limits: RunLimits,
    /// Whether a command may ptrace(2) processes of its own run.
    pub(crate) allow_ptrace: bool,
    /// Network of commands.
    pub(crate) network: NetworkMode,
    /// Version of Landlock that the daemon has seen and tells about; 0 where there is none.
    pub(crate) landlock_abi: u32,
    /// Processes that all runs of one user may have together.
    pub(crate) max_processes_of_all_runs: u64,
    /// Processes of the daemon's own, which commands that can name them must not reach.
    pub(crate) daemon_processes: Vec<u32>,
    /// Where the daemon keeps its state, likewise.
    pub(crate) state_dir: PathBuf,
    /// Where runs without a file system of their own have their temporary files.
    pub(crate) temporary_directory: PathBuf,
}

/// All runs of one user may have one of so many parts of the machine's process ids.
pub(crate) const PROCESS_ID_DIVISOR: u64 = 2;

/// Network that commands have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum NetworkMode {
    /// A loopback interface of their own, and no route.
    #[default]
    None,
    /// The daemon's.
    Host,
    /// As with none, and on their loopback interface a proxy of the daemon's, which connects them to
    /// the hosts that the operator allows.
    Proxy,
}

/// One workspace, as its sandboxes see it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkspacePlan {
    /// Its place in the plan, by which the launcher's processes name it.
    pub(crate) index: usize,
    /// Name, for messages.
    pub(crate) name: String,
    /// User and group id that a daemon with root's rights takes for its sandboxes.
    pub(crate) sandbox_id: u32,
    /// Where the workspace lies.
    pub(crate) path: PathBuf,
    /// Device and inode of the directory that the daemon holds open: what is mounted must be the
    /// same.
    pub(crate) file_identity: (u64, u64),
    /// Where commands see it.
    pub(crate) mount_path: PathBuf,
    /// More directories and files that its commands see.
    pub(crate) binds: Vec<BindMount>,
    /// User that root's files in it are given to when the daemon serves it; none where they were
    /// already, or stay root's.
    pub(crate) chowned_to: Option<u32>,
    /// Paths in it that its commands may not change.
    pub(crate) protected_paths: Vec<ProtectedPath>,
    /// Whether the operator asked for that. Otherwise a level that cannot enforce it is given all
    /// the same.
    pub(crate) requires_protection: bool,
    /// Whether all its runs have one home directory, in place of a fresh one each.
    pub(crate) has_persistent_home: bool,
    /// That directory, bound over the fresh one; none where it is only looked whether commands could
    /// be run, which leaves the state directory alone.
    pub(crate) home_bind: Option<BindMount>,
}

/// A path of a workspace that commands may not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProtectedPath {
    /// Relative to the workspace.
    pub(crate) path: String,
    /// What is made there if nothing exists, so that commands cannot make it.
    pub(crate) placeholder: Placeholder,
}

/// What stands in for a protected path that is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Placeholder {
    /// An empty directory.
    Directory,
    /// A file with this content.
    File(Cow<'static, str>),
}

/// A directory or file of the daemon's file system that commands see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BindMount {
    /// Where it lies.
    pub(crate) source: PathBuf,
    /// Where commands see it.
    pub(crate) destination: PathBuf,
    /// Whether commands may change it.
    pub(crate) writable: bool,
    /// Device and inode of what is there: what is mounted must be the same.
    pub(crate) file_identity: (u64, u64),
}

impl WorkspacePlan {
    /// Everything that is bound: what the configuration lists, and the home directory if it is kept.
    pub(super) fn all_binds(&self) -> impl Iterator<Item = &BindMount> {
        self.binds.iter().chain(&self.home_bind)
    }
}

impl NetworkMode {
    /// Its name in the configuration, in spans and in the contract.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Host => "host",
            Self::Proxy => "proxy",
        }
    }
}

/// Directories of the daemon's root that commands see, read-only. Where one is a symbolic link
/// (`/bin` of a merged `/usr`), so it is for them.
pub(crate) const SYSTEM_DIRECTORIES: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"];

/// Where commands see the workspace, unless its configuration names another path.
pub(crate) const DEFAULT_MOUNT_PATH: &str = "/workspace";
/// Host name that commands see in namespaces of their own.
pub(super) const SANDBOX_HOST_NAME: &str = "jig";
/// Directory that commands have as `HOME`.
pub(crate) const SANDBOX_HOME: &str = "/home/agent";
/// Name of the user that commands run as.
pub(crate) const SANDBOX_USER: &str = "agent";
