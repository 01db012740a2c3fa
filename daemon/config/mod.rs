//! The configuration of a daemon.
//!
//! Flags override environment variables, and environment variables override the file. [`args`] and
//! [`mod@file`] hold what was written; [`Config`] holds the checked values. [`Config::load`]
//! reports every problem, not only the first.

pub(crate) mod agent_sandbox;
pub(crate) mod args;
pub(crate) mod client_certificate;
pub(crate) mod created_workspaces;
mod daemon_limits;
mod duration;
pub(crate) mod exposure;
pub(crate) mod fetch;
mod file;
pub(crate) mod fleet;
pub(crate) mod fleet_postgres;
pub(crate) mod fleet_secret;
pub(crate) mod http;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod lifetimes;
mod limits;
pub(crate) mod listen;
mod loopback;
mod merge;
mod network;
mod parse_or_default;
mod persistent_directories;
pub(crate) mod policy;
pub(crate) mod protection;
pub(crate) mod reload;
mod renamed;
pub(crate) mod requests;
pub(crate) mod sandbox_ids;
pub(crate) mod sessions;
pub(crate) mod telemetry;
pub(crate) mod tls;
pub(crate) mod tools;
mod trusted_path;
mod workspaces;

use std::{collections::BTreeMap, env, path::PathBuf, time::Duration};

use self::{
    created_workspaces::CreatedWorkspacesConfig,
    fleet::FleetConfig,
    jobs::JobsConfig,
    keys::KeyFile,
    lifetimes::{ConnectionAge, ShutdownTimes},
    listen::{ListenAddr, ListenerConfig, RemoteAccess},
    protection::Protection,
    requests::RequestsConfig,
    sessions::SessionsConfig,
    telemetry::TelemetryConfig,
    tls::TlsFiles,
};
use crate::daemon::{
    netpolicy::rules::NetworkRules,
    sandbox::{
        level::IsolationLevel,
        limits::RunLimits,
        plan::{BindMount, NetworkMode, PersistentDirectories},
    },
};

/// Time between SIGTERM and SIGKILL for a command.
const DEFAULT_STOP_GRACE: Duration = Duration::from_secs(2);
/// Bytes that an artifact stores of each output stream.
const DEFAULT_ARTIFACT_BYTES: u64 = 64 << 20;
/// Bytes of output of a started process that the daemon holds in memory for `Attach`.
const DEFAULT_REPLAY_BYTES: usize = 1 << 20;
/// Time that an ended process stays listed. Longer than a client needs to reconnect.
const DEFAULT_PROCESS_RETENTION: Duration = Duration::from_secs(15 * 60);
/// Running calls. Each holds at most its inline output, twice, and 64 KiB in pipes.
const DEFAULT_CONCURRENT_CALLS: usize = 2048;
/// Running sandboxes of one workspace. Each costs the kernel memory of five processes, below 1 MB.
const DEFAULT_CONCURRENT_RUNS: usize = 1024;
/// Running processes of all workspaces that `Start` has started.
const DEFAULT_CONCURRENT_PROCESSES: usize = 512;
/// Running file operations. Each holds some descriptors, and a thread that may block.
const DEFAULT_CONCURRENT_FILE_OPERATIONS: usize = 100;
/// Queued calls of one caller: as many as one connection can carry.
const DEFAULT_QUEUED_CALLS: usize = 1024;
/// Longest time that a call waits in the queue. Longer than most calls take, and short enough for a
/// caller to try another daemon.
const DEFAULT_QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// The checked configuration of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) listeners: Vec<ListenerConfig>,
    /// Address for health checks alone.
    pub(crate) health_listener: Option<ListenAddr>,
    /// Address for metrics alone.
    pub(crate) metrics_listener: Option<ListenAddr>,
    pub(crate) connection_age: ConnectionAge,
    /// TLS of TCP listeners that are not in `listeners`: inherited ones.
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) remote_access: RemoteAccess,
    /// The configuration file, if there is one.
    pub(crate) config_path: Option<PathBuf>,
    /// The settings of the file that need a restart, as TOML. A reload compares them.
    pub(crate) restart_only: String,
    /// One line for each old name in the file.
    pub(crate) renamed_keys: Vec<String>,
    pub(crate) policy: policy::PolicyConfig,
    /// API keys. Without them, only the daemon's own user and root may call.
    pub(crate) keys: Option<KeyFile>,
    /// Whether every caller on the loopback interface is an administrator.
    pub(crate) trust_loopback: bool,
    /// Never empty.
    pub(crate) workspaces: Vec<WorkspaceConfig>,
    /// Where and how callers can create workspaces. `None`: they cannot.
    pub(crate) created_workspaces: Option<CreatedWorkspacesConfig>,
    pub(crate) state_dir: PathBuf,
    /// Isolation level below which no command runs.
    pub(crate) minimum_level: IsolationLevel,
    /// Whether files of root in the workspaces are given to the user that commands run as.
    pub(crate) chown_workspace: bool,
    /// Whether a debugger can trace processes of the same run.
    pub(crate) allow_ptrace: bool,
    /// Whether a run may use the sandbox of an earlier run of the same caller that left nothing.
    pub(crate) recycle_sandboxes: bool,
    /// Whether commands of shells may start in a shell that was executed before.
    pub(crate) warm_shells: bool,
    /// Network of commands.
    pub(crate) network: NetworkMode,
    /// Hosts that commands can connect to, with [`NetworkMode::Proxy`].
    pub(crate) egress: NetworkRules,
    /// Hosts that `fetch_url` can fetch from.
    pub(crate) fetch: NetworkRules,
    /// Custom tools: commands of the `[[tools]]` tables.
    pub(crate) tools: Vec<tools::ToolConfig>,
    /// User and group ids that a root daemon uses for its sandboxes: one for each workspace, and
    /// then those of created workspaces.
    pub(crate) sandbox_ids: Vec<u32>,
    /// Directories before the others in the `PATH` of commands, as commands see them.
    pub(crate) search_path: Vec<String>,
    pub(crate) telemetry: TelemetryConfig,
    pub(crate) http: http::HttpConfig,
    /// Environment variables that the agent-sandbox runtime serves as metadata.
    pub(crate) agent_sandbox_metadata: BTreeMap<String, String>,
    pub(crate) shutdown_times: ShutdownTimes,
    /// Time between SIGTERM and SIGKILL for a command.
    pub(crate) stop_grace: Duration,
    /// Limits of each run.
    pub(crate) limits: RunLimits,
    /// Bytes that an artifact stores of each output stream.
    pub(crate) artifact_bytes: u64,
    /// Bytes of output of a started process that the daemon holds in memory for `Attach`.
    pub(crate) replay_bytes: usize,
    /// Time that an ended process stays listed.
    pub(crate) process_retention: Duration,
    /// Retention of results of calls with a request id.
    pub(crate) requests: RequestsConfig,
    pub(crate) jobs: JobsConfig,
    /// The queues that this daemon shares with others. `None`: it belongs to no fleet.
    pub(crate) fleet: Option<FleetConfig>,
    pub(crate) sessions: SessionsConfig,
    /// Whether a file change is answered only after the disk has written it (fsync).
    pub(crate) sync_files: bool,
    /// Running calls.
    pub(crate) concurrent_calls: usize,
    /// Running processes of all workspaces that `Start` has started.
    pub(crate) concurrent_processes: usize,
    /// Running sandboxes of one workspace.
    pub(crate) concurrent_runs: usize,
    /// Running file operations.
    pub(crate) concurrent_file_operations: usize,
    /// Queued calls of one caller.
    pub(crate) queued_calls: usize,
    /// Longest time that a call waits in the queue.
    pub(crate) queue_timeout: Duration,
}

/// A workspace: a directory that the daemon serves.
#[derive(Debug, Clone)]
pub(crate) struct WorkspaceConfig {
    /// Name by which calls select it.
    pub(crate) name: String,
    /// Its directory, without symbolic links.
    pub(crate) path: PathBuf,
    /// Path at which commands see it.
    pub(crate) mount_path: PathBuf,
    /// Other directories and files that commands see.
    pub(crate) binds: Vec<BindMount>,
    /// Whether file tools follow symbolic links that stay in the workspace.
    pub(crate) follow_links: bool,
    /// Paths that neither file tools nor commands can change.
    pub(crate) protection: Protection,
    /// Directories that all runs of the workspace share.
    pub(crate) persistent: PersistentDirectories,
    /// Timeout of a run whose call has none. `None`: that of the contract.
    pub(crate) run_timeout: Option<Duration>,
}

impl Config {
    /// Returns the timeout of a run in this workspace whose call has none.
    ///
    /// Returns `None` if the default of the contract applies.
    pub(crate) fn run_timeout(&self, workspace: &str) -> Option<Duration> {
        self.workspaces.iter().find(|known| known.name == workspace)?.run_timeout
    }

    pub(crate) fn protection(&self, workspace: &str) -> Option<&Protection> {
        let workspace = self.workspaces.iter().find(|known| known.name == workspace)?;
        Some(&workspace.protection)
    }

    pub(crate) fn workspace_names(&self) -> Vec<&str> {
        self.workspaces.iter().map(|workspace| workspace.name.as_str()).collect()
    }
}

/// The problems of a configuration, one per line.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub(crate) struct ConfigError(pub(crate) Vec<String>);

/// Returns the default state directory: `$XDG_STATE_HOME/jig`, otherwise `~/.local/state/jig` (XDG
/// Base Directory Specification). For root, `/var/lib/jig` replaces the latter.
pub(crate) fn default_state_dir() -> PathBuf {
    let path_of =
        |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);

    if let Some(base) = path_of("XDG_STATE_HOME") {
        return base.join("jig");
    }
    match path_of("HOME") {
        Some(home) if !rustix::process::geteuid().is_root() => home.join(".local/state/jig"),
        _ => PathBuf::from("/var/lib/jig"),
    }
}
