//! What the keeper builds sandboxes from: the part of the configuration that they depend on, sent
//! to the keeper once at startup.

use std::{
    borrow::Cow,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{limits::RunLimits, stage::Stage};

/// Everything that sandboxes are built from. Requests cannot change it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SandboxPlan {
    /// The workspaces of the configuration. Each has its own template.
    pub(crate) workspaces: Vec<WorkspacePlan>,
    /// `None` if no workspace can be created while the daemon runs.
    pub(crate) created_workspaces: Option<CreatedWorkspacesPlan>,
    pub(crate) limits: RunLimits,
    /// Whether commands may ptrace(2) processes of their own run.
    pub(crate) allow_ptrace: bool,
    /// Whether consecutive runs of one caller may use one sandbox.
    pub(crate) recycle_sandboxes: bool,
    pub(crate) network: NetworkMode,
    /// Landlock ABI version that the daemon detected and reports; 0 without Landlock.
    pub(crate) landlock_abi: u32,
    /// Processes that all runs of one user may have together.
    pub(crate) max_processes_of_all_runs: u64,
    /// Ids of the daemon's own processes. Commands must not reach them, even where they can name
    /// them.
    pub(crate) daemon_processes: Vec<u32>,
    /// The daemon's state directory. Commands must not reach it either.
    pub(crate) state_dir: PathBuf,
    /// Where L1 runs, which have no file systems of their own, get directories for temporary files.
    pub(crate) temporary_directory: PathBuf,
}

/// All runs of one user together may have this fraction (1/n) of the machine's process ids.
pub(crate) const PROCESS_ID_DIVISOR: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum NetworkMode {
    /// A loopback interface of the run, and no route.
    #[default]
    None,
    Host,
    /// As `None`, with the daemon's proxy on the loopback interface. The proxy connects to the
    /// hosts that the operator allows.
    Proxy,
}

/// What the workspaces that are created while the daemon runs have in common.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CreatedWorkspacesPlan {
    /// The plan of each, except that `path` is the directory that holds them all.
    pub(crate) model: WorkspacePlan,
    /// User and group ids of sandboxes if the daemon has root's rights. Many workspaces share them.
    pub(crate) sandbox_ids: Vec<u32>,
    /// Project ids that the daemon may limit.
    pub(crate) project_ids: RangeInclusive<u32>,
}

/// A workspace that was created while the daemon runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CreatedWorkspace {
    /// Name of the workspace, for people.
    pub(crate) name: String,
    /// Name of its directory in [`CreatedWorkspacesPlan::model`]'s path.
    pub(crate) directory: String,
    /// Device and inode of the directory that the daemon holds open.
    pub(crate) file_identity: (u64, u64),
    /// Its directories in [`persistent_directory_name`].
    pub(crate) persistent: PersistentIdentities,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkspacePlan {
    /// Identifies the workspace in messages: its index in the plan, or a greater number.
    pub(crate) index: usize,
    /// Name of the workspace, for people.
    pub(crate) name: String,
    /// User and group id of sandboxes if the daemon has root's rights.
    pub(crate) sandbox_id: u32,
    /// Path of the workspace on the host.
    pub(crate) path: PathBuf,
    /// Device and inode of the directory that the daemon holds open. The mounted directory must be
    /// the same.
    pub(crate) file_identity: (u64, u64),
    /// Path at which commands see the workspace.
    pub(crate) mount_path: PathBuf,
    /// Further directories and files that commands see.
    pub(crate) binds: Vec<BindMount>,
    /// User that receives root's files in the workspace when the daemon serves it. `None` if they
    /// were given before, or stay root's.
    pub(crate) chowned_to: Option<u32>,
    /// Paths in the workspace that commands cannot change.
    pub(crate) protected_paths: Vec<ProtectedPath>,
    /// Whether the operator requires the protection. Otherwise a level that cannot enforce it is
    /// accepted.
    pub(crate) requires_protection: bool,
    /// The directories that all runs share, as configured.
    pub(crate) persistent: PersistentDirectories,
    /// The persistent directories, bound over the fresh ones. Empty also when the daemon only checks
    /// whether commands can run: the check leaves the state directory alone.
    pub(crate) persistent_binds: Vec<BindMount>,
}

/// Which of these directories all runs of a workspace share, instead of fresh ones each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct PersistentDirectories {
    /// [`SANDBOX_HOME`].
    pub(crate) home: bool,
    /// [`SANDBOX_TMP`].
    pub(crate) tmp: bool,
}

/// The persistent directories of a created workspace: device and inode of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct PersistentIdentities {
    pub(crate) home: Option<(u64, u64)>,
    pub(crate) tmp: Option<(u64, u64)>,
}

/// A path of a workspace that commands cannot change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProtectedPath {
    pub(crate) path: String,
    /// Created if the path does not exist, so that commands cannot create it.
    pub(crate) placeholder: Placeholder,
}

/// What stands in for a missing protected path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Placeholder {
    Directory,
    File(Cow<'static, str>),
}

/// A directory or file of the daemon's file system that commands see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BindMount {
    pub(crate) source: PathBuf,
    /// Path at which commands see it.
    pub(crate) destination: PathBuf,
    pub(crate) writable: bool,
    /// Device and inode at startup. The mounted file must be the same.
    pub(crate) file_identity: (u64, u64),
}

impl CreatedWorkspacesPlan {
    /// The plan of a workspace. `index` identifies it in messages.
    pub(super) fn plan_of(&self, index: usize, created: &CreatedWorkspace) -> WorkspacePlan {
        let id = self.sandbox_ids.get(index % self.sandbox_ids.len().max(1));
        WorkspacePlan {
            index,
            name: created.name.clone(),
            path: self.model.path.join(&created.directory),
            file_identity: created.file_identity,
            sandbox_id: id.copied().unwrap_or(self.model.sandbox_id),
            persistent_binds: self.persistent_binds(created),
            ..self.model.clone()
        }
    }

    /// The paths are derived here, so that the daemon cannot have the keeper mount anything else.
    fn persistent_binds(&self, created: &CreatedWorkspace) -> Vec<BindMount> {
        let parent = self.model.path.join(persistent_directory_name(&created.directory));
        let PersistentIdentities { home, tmp } = created.persistent;
        let bind = |identity: Option<(u64, u64)>, name: &str, destination: &str| {
            Some(BindMount {
                source: parent.join(name),
                destination: destination.into(),
                writable: true,
                file_identity: identity?,
            })
        };
        let home = bind(home, PERSISTENT_HOME_NAME, SANDBOX_HOME);
        home.into_iter().chain(bind(tmp, PERSISTENT_TMP_NAME, SANDBOX_TMP)).collect()
    }
}

/// Name of the directory with the persistent directories of a created workspace whose directory is
/// `directory`. Both are in the directory that holds all of them.
pub(crate) fn persistent_directory_name(directory: &str) -> String {
    format!("{directory}.persistent")
}

impl BindMount {
    /// The stage that fails if this persistent directory cannot be mounted. `None` for other binds.
    pub(super) fn persistent_stage(&self, workspace: &WorkspacePlan) -> Option<Stage> {
        let is_home = self.destination == Path::new(SANDBOX_HOME);
        let stage = if is_home { Stage::PersistentHome } else { Stage::PersistentTmp };
        workspace.persistent_binds.contains(self).then_some(stage)
    }
}

impl PersistentDirectories {
    /// The stage that fails if they cannot be mounted. `None` if there are none.
    pub(super) fn stage(self) -> Option<Stage> {
        match self {
            Self { home: true, .. } => Some(Stage::PersistentHome),
            Self { tmp: true, .. } => Some(Stage::PersistentTmp),
            Self { home: false, tmp: false } => None,
        }
    }
}

impl WorkspacePlan {
    /// All binds: those of the configuration, and the persistent directories.
    pub(super) fn all_binds(&self) -> impl Iterator<Item = &BindMount> {
        self.binds.iter().chain(&self.persistent_binds)
    }

    /// The directories that are mounted as persistent ones.
    pub(super) fn mounted_persistent(&self) -> PersistentDirectories {
        let is_mounted = |path: &str| {
            self.persistent_binds.iter().any(|bind| bind.destination == Path::new(path))
        };
        PersistentDirectories { home: is_mounted(SANDBOX_HOME), tmp: is_mounted(SANDBOX_TMP) }
    }
}

impl NetworkMode {
    /// Name in the configuration, in spans and in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Host => "host",
            Self::Proxy => "proxy",
        }
    }
}

/// Directories of the host that commands see read-only. A symbolic link (`/bin` on a merged `/usr`)
/// stays a symbolic link for commands.
pub(crate) const SYSTEM_DIRECTORIES: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"];

/// Default path at which commands see the workspace.
pub(crate) const DEFAULT_MOUNT_PATH: &str = "/workspace";
/// Host name of commands in namespaces of their own.
pub(super) const SANDBOX_HOST_NAME: &str = "jig";
/// Home directory (`HOME`) of commands.
pub(crate) const SANDBOX_HOME: &str = "/home/agent";
/// Directory for temporary files of commands.
pub(crate) const SANDBOX_TMP: &str = "/tmp";
/// Names of the persistent directories of a created workspace.
pub(crate) const PERSISTENT_HOME_NAME: &str = "home";
pub(crate) const PERSISTENT_TMP_NAME: &str = "tmp";
pub(crate) const SANDBOX_USER: &str = "agent";
