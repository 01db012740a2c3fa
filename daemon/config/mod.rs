//! The configuration: file < environment < flags, checked once, passed down as types that cannot
//! hold what is wrong.
//!
//! [`args`] and [`mod@file`] hold what was written; [`Config`] holds what it means. Every problem
//! is reported, not only the first.

pub(crate) mod args;
mod duration;
pub(crate) mod exposure;
pub(crate) mod fetch;
mod file;
pub(crate) mod jobs;
pub(crate) mod keys;
mod limits;
pub(crate) mod listen;
mod merge;
mod network;
pub(crate) mod policy;
pub(crate) mod protection;
pub(crate) mod reload;
pub(crate) mod requests;
pub(crate) mod sandbox_ids;
pub(crate) mod sessions;
pub(crate) mod tools;
mod workspaces;

use std::{env, path::PathBuf, time::Duration};

use self::{
    jobs::JobsConfig, keys::KeyFile, listen::ListenAddr, protection::Protection,
    requests::RequestsConfig, sessions::SessionsConfig,
};
use crate::daemon::{
    netpolicy::rules::NetworkRules,
    sandbox::{
        level::IsolationLevel,
        limits::RunLimits,
        plan::{BindMount, NetworkMode},
    },
    telemetry::logs::LogFormat,
};

/// Where the daemon listens unless told otherwise.
const DEFAULT_LISTEN_ADDR: &str = "127.0.0.1:50051";
/// Time for running calls when the daemon is told to end: below the 30 seconds that Kubernetes
/// gives a pod.
const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(25);
/// Time between SIGTERM and SIGKILL.
const DEFAULT_STOP_GRACE: Duration = Duration::from_secs(2);
/// Bytes that an artifact keeps of a stream.
const DEFAULT_ARTIFACT_BYTES: u64 = 64 << 20;
/// Bytes that are kept in memory of what a started command wrote.
const DEFAULT_REPLAY_BYTES: usize = 1 << 20;
/// How long a started command is kept when it has ended: longer than a client needs to come back.
const DEFAULT_PROCESS_RETENTION: Duration = Duration::from_secs(15 * 60);
/// Calls at one time: each holds at most its inline output, twice, and 64 KiB in pipes.
const DEFAULT_CONCURRENT_CALLS: usize = 2048;
/// Runs at one time in one workspace: each costs five processes' worth of kernel memory, below a
/// megabyte.
const DEFAULT_CONCURRENT_RUNS: usize = 1024;
/// Processes at one time that were started and are not waited for, in all workspaces.
const DEFAULT_CONCURRENT_PROCESSES: usize = 512;
/// Work with files at one time: each holds some descriptors, and a thread that may block.
const DEFAULT_CONCURRENT_FILE_OPERATIONS: usize = 100;
/// Calls of one caller that wait: as many as one connection can carry.
const DEFAULT_QUEUED_CALLS: usize = 1024;
/// How long a call waits until it may begin: longer than most calls last, and not so long that who
/// waits would rather have gone elsewhere.
const DEFAULT_QUEUE_WAIT: Duration = Duration::from_secs(10);

/// The configuration of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Where it listens.
    pub(crate) listen: Vec<ListenAddr>,
    /// The file that it was read from, if any.
    pub(crate) config_path: Option<PathBuf>,
    /// What of the file can only be changed by a restart, as text.
    pub(crate) restart_only: String,
    /// What becomes of calls.
    pub(crate) policy: policy::PolicyConfig,
    /// Who may call; without, the daemon's own user and root.
    pub(crate) keys: Option<KeyFile>,
    /// Whether everybody who reaches the loopback interface may call.
    pub(crate) trust_loopback: bool,
    /// What it serves; never empty.
    pub(crate) workspaces: Vec<WorkspaceConfig>,
    /// Where it keeps its state.
    pub(crate) state_dir: PathBuf,
    /// Isolation below which no command is run.
    pub(crate) minimum_level: IsolationLevel,
    /// Whether root's files in the workspaces are given to the user that commands run as.
    pub(crate) chown_workspace: bool,
    /// Whether debuggers work inside a run.
    pub(crate) allow_ptrace: bool,
    /// Network of commands.
    pub(crate) network: NetworkMode,
    /// Where they may connect to, if the network is the proxy's.
    pub(crate) egress: NetworkRules,
    /// Where `fetch_url` may fetch from.
    pub(crate) fetch: NetworkRules,
    /// Tools that commands are.
    pub(crate) tools: Vec<tools::ToolConfig>,
    /// User and group ids that a root daemon takes for its sandboxes, one for each workspace.
    pub(crate) sandbox_ids: Vec<u32>,
    /// Directories, as commands see them, in which programs are looked up before the usual ones.
    pub(crate) search_path: Vec<String>,
    /// How logs are written.
    pub(crate) log_format: LogFormat,
    /// Most detailed level of its own logs.
    pub(crate) log_level: tracing::Level,
    /// Whether each call has a line.
    pub(crate) log_calls: bool,
    /// Time for running calls when the daemon is told to end.
    pub(crate) drain_timeout: Duration,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) stop_grace: Duration,
    /// Limits of each run.
    pub(crate) limits: RunLimits,
    /// Bytes that an artifact keeps of a stream.
    pub(crate) artifact_bytes: u64,
    /// Bytes that are kept in memory of what a started command wrote.
    pub(crate) replay_bytes: usize,
    /// How long a started command is kept when it has ended.
    pub(crate) process_retention: Duration,
    /// What is kept of calls with a request id.
    pub(crate) requests: RequestsConfig,
    /// How jobs are done and kept.
    pub(crate) jobs: JobsConfig,
    /// What is kept of sessions.
    pub(crate) sessions: SessionsConfig,
    /// Whether a change of a file is answered only when the disk has written it down.
    pub(crate) sync_files: bool,
    /// Calls at one time.
    pub(crate) concurrent_calls: usize,
    /// Processes at one time that were started and are not waited for.
    pub(crate) concurrent_processes: usize,
    /// Runs at one time in one workspace.
    pub(crate) concurrent_runs: usize,
    /// Work with files at one time.
    pub(crate) concurrent_file_operations: usize,
    /// Calls of one caller that wait.
    pub(crate) queued_calls: usize,
    /// How long a call waits.
    pub(crate) queue_wait: Duration,
}

/// A workspace to serve.
#[derive(Debug, Clone)]
pub(crate) struct WorkspaceConfig {
    /// Name by which calls choose it.
    pub(crate) name: String,
    /// Where it lies, without symbolic links.
    pub(crate) path: PathBuf,
    /// Where commands see it.
    pub(crate) mount_path: PathBuf,
    /// What else commands see.
    pub(crate) binds: Vec<BindMount>,
    /// Whether file tools follow symbolic links that stay in the workspace.
    pub(crate) follow_links: bool,
    /// Paths in it that neither file tools nor commands may change.
    pub(crate) protection: Protection,
    /// Whether its commands find in their home directory what those before them left there.
    pub(crate) persistent_home: bool,
    /// Time that a command has where its call does not say.
    pub(crate) run_timeout: Option<Duration>,
}

impl Config {
    /// Time that a command of this workspace has where its call does not say, and the contract's is not meant.
    pub(crate) fn run_timeout(&self, workspace: &str) -> Option<Duration> {
        let mut workspaces = self.workspaces.iter();
        workspaces.find(|known| known.name == workspace)?.run_timeout
    }

    /// What is protected in this workspace.
    pub(crate) fn protection(&self, workspace: &str) -> Option<&Protection> {
        let mut workspaces = self.workspaces.iter();
        let found = workspaces.find(|known| known.name == workspace)?;
        Some(&found.protection)
    }

    /// Names of the workspaces.
    pub(crate) fn workspace_names(&self) -> Vec<&str> {
        let workspaces = self.workspaces.iter();
        workspaces.map(|workspace| workspace.name.as_str()).collect()
    }
}

/// What is wrong with a configuration: every problem, a line each.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub(crate) struct ConfigError(pub(crate) Vec<String>);

/// The state directory of who names none: that of the XDG specification, `/var/lib/jig` for root.
pub(crate) fn default_state_dir() -> PathBuf {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(base) = set("XDG_STATE_HOME") {
        return base.join("jig");
    }
    match set("HOME") {
        Some(home) if !rustix::process::geteuid().is_root() => home.join(".local/state/jig"),
        _ => PathBuf::from("/var/lib/jig"),
    }
}
