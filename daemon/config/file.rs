//! The configuration file as it is written (TOML), before its values are checked.
//!
//! Unknown keys are errors, so that a misspelled limit is not silently ignored. Old names of keys
//! are accepted ([`super::renamed`]).

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};

use super::renamed;

/// Top-level keys that a running daemon reloads at SIGHUP.
const RELOADABLE_KEYS: [&str; 3] = ["policy", "approvals", "keys"];
/// Upper bound of the counts in `[limits]` and `[jobs]`. Guards against typing errors.
pub(super) const MAX_CONFIGURED_LIMIT: u32 = 1 << 20;

/// A configuration file that was read as `T`.
#[derive(Debug, Default)]
pub(super) struct ParsedFile<T> {
    pub(super) content: T,
    /// The settings that need a restart, as TOML. A reload compares them with those of the start.
    pub(super) restart_only: String,
    /// One line for each old name in the file.
    pub(super) renamed_keys: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ConfigFile {
    pub(super) listen: Vec<String>,
    pub(super) listeners: Vec<ListenerTable>,
    pub(super) health_listen: Option<String>,
    pub(super) metrics_listen: Option<String>,
    pub(super) tls_cert: Option<PathBuf>,
    pub(super) tls_key: Option<PathBuf>,
    pub(super) tls_client_ca: Option<PathBuf>,
    pub(super) allow_plaintext: Option<bool>,
    pub(super) keys: Option<PathBuf>,
    pub(super) trust_loopback: Option<bool>,
    pub(super) state_dir: Option<PathBuf>,
    pub(super) log: Option<String>,
    pub(super) log_level: Option<String>,
    pub(super) log_calls: Option<bool>,
    pub(super) trust_remote_context: Option<String>,
    pub(super) capture_content: Option<String>,
    pub(super) max_connection_age: Option<String>,
    pub(super) max_connection_age_grace: Option<String>,
    pub(super) shutdown_delay: Option<String>,
    pub(super) drain_timeout: Option<String>,
    pub(super) workspaces: Vec<WorkspaceTable>,
    pub(super) workspaces_on_demand: CreatedWorkspacesTable,
    pub(super) http: HttpTable,
    pub(super) agent_sandbox: Option<AgentSandboxTable>,
    pub(super) files: FilesTable,
    pub(super) sandbox: SandboxTable,
    pub(super) limits: LimitsTable,
    pub(super) requests: RequestsTable,
    pub(super) jobs: JobsTable,
    pub(super) fleet: Option<FleetTable>,
    pub(super) sessions: SessionsTable,
    pub(super) audit: AuditTable,
    pub(super) proxy: Option<ProxyTable>,
    pub(super) fetch: FetchTable,
    pub(super) tools: Vec<CustomToolTable>,
    pub(super) policy: PolicyTable,
    pub(super) approvals: ApprovalsTable,
}

/// The part of the file that a running daemon reloads.
///
/// The values of the other keys are ignored, so that a mistake there does not prevent a reload. The
/// keys themselves must exist: one of them could be a misspelled `policy`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ReloadableConfigFile {
    listen: IgnoredAny,
    listeners: IgnoredAny,
    health_listen: IgnoredAny,
    metrics_listen: IgnoredAny,
    tls_cert: IgnoredAny,
    tls_key: IgnoredAny,
    tls_client_ca: IgnoredAny,
    allow_plaintext: IgnoredAny,
    pub(super) keys: Option<PathBuf>,
    trust_loopback: IgnoredAny,
    state_dir: IgnoredAny,
    log: IgnoredAny,
    log_level: IgnoredAny,
    log_calls: IgnoredAny,
    trust_remote_context: IgnoredAny,
    capture_content: IgnoredAny,
    max_connection_age: IgnoredAny,
    max_connection_age_grace: IgnoredAny,
    shutdown_delay: IgnoredAny,
    drain_timeout: IgnoredAny,
    workspaces: IgnoredAny,
    workspaces_on_demand: IgnoredAny,
    http: IgnoredAny,
    agent_sandbox: IgnoredAny,
    files: IgnoredAny,
    sandbox: IgnoredAny,
    limits: IgnoredAny,
    requests: IgnoredAny,
    jobs: IgnoredAny,
    fleet: IgnoredAny,
    sessions: IgnoredAny,
    audit: IgnoredAny,
    proxy: IgnoredAny,
    fetch: IgnoredAny,
    tools: IgnoredAny,
    pub(super) policy: PolicyTable,
    pub(super) approvals: ApprovalsTable,
}

/// One `[[listeners]]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListenerTable {
    pub(super) address: String,
    pub(super) tls_cert: Option<PathBuf>,
    pub(super) tls_key: Option<PathBuf>,
    pub(super) tls_client_ca: Option<PathBuf>,
}

/// One `[[workspaces]]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkspaceTable {
    pub(super) name: Option<String>,
    pub(super) path: PathBuf,
    pub(super) mount_path: Option<PathBuf>,
    #[serde(default)]
    pub(super) bind: Vec<String>,
    #[serde(default)]
    pub(super) bind_ro: Vec<String>,
    pub(super) symlinks: Option<String>,
    pub(super) protected: Option<Vec<String>>,
    pub(super) home: Option<String>,
    pub(super) tmp: Option<String>,
    pub(super) run_timeout: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HttpTable {
    pub(super) allowed_hosts: Vec<String>,
    pub(super) allowed_origins: Vec<String>,
}

/// The `[agent_sandbox]` table. Its presence is the request to serve the runtime.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AgentSandboxTable {
    pub(super) grpc_listen: Option<String>,
    pub(super) rest_listen: Option<String>,
    pub(super) tls_cert: Option<PathBuf>,
    pub(super) tls_key: Option<PathBuf>,
    pub(super) tls_client_ca: Option<PathBuf>,
    pub(super) metadata: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FilesTable {
    pub(super) fsync: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SandboxTable {
    pub(super) minimum_level: Option<String>,
    pub(super) chown_workspace: Option<bool>,
    pub(super) network: Option<String>,
    pub(super) allow_ptrace: Option<bool>,
    pub(super) recycle: Option<bool>,
    pub(super) warm_shells: Option<bool>,
    pub(super) uid: Option<u32>,
    pub(super) path: Vec<String>,
    pub(super) bind: Vec<String>,
    pub(super) bind_ro: Vec<String>,
    pub(super) stop_grace: Option<String>,
    pub(super) home: Option<String>,
    pub(super) tmp: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ProxyTable {
    pub(super) allow_hosts: Vec<String>,
    pub(super) allow_addresses: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FetchTable {
    pub(super) hosts: Vec<String>,
    pub(super) ports: Option<Vec<u16>>,
    pub(super) allow_addresses: Vec<String>,
}

/// One `[[tools]]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CustomToolTable {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) argv: Vec<String>,
    #[serde(default)]
    pub(super) schema: toml::Table,
    #[serde(default)]
    pub(super) allow_options: bool,
    pub(super) risk: Option<String>,
    pub(super) timeout: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitsTable {
    pub(super) cpu_sec: Option<u32>,
    pub(super) cpus: Option<f64>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) output_bytes: Option<u64>,
    pub(super) wall_clock: Option<String>,
    pub(super) run_timeout: Option<String>,
    pub(super) processes: Option<u32>,
    pub(super) open_files: Option<u32>,
    pub(super) open_files_hard: Option<u32>,
    pub(super) open_files_total: Option<u32>,
    pub(super) epoll_watches: Option<u64>,
    pub(super) file_size_bytes: Option<u64>,
    pub(super) tmp_bytes: Option<u64>,
    pub(super) tmp_inodes: Option<u32>,
    pub(super) artifact_bytes: Option<u64>,
    pub(super) replay_bytes: Option<usize>,
    pub(super) process_retention: Option<String>,
    pub(super) concurrent_calls: Option<usize>,
    pub(super) concurrent_runs: Option<usize>,
    pub(super) concurrent_processes: Option<usize>,
    pub(super) concurrent_file_operations: Option<usize>,
    pub(super) queued_calls: Option<usize>,
    pub(super) queue_timeout: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RequestsTable {
    pub(super) retention: Option<String>,
    pub(super) max_entries: Option<u32>,
    pub(super) max_bytes: Option<u64>,
    pub(super) detached_timeout: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct JobsTable {
    pub(super) retention: Option<String>,
    pub(super) max_entries: Option<u32>,
    pub(super) max_bytes: Option<u64>,
    pub(super) max_queued: Option<u32>,
    pub(super) max_queued_bytes: Option<u64>,
    pub(super) concurrency: Option<u32>,
    pub(super) queue_concurrency: Option<u32>,
    pub(super) queues: BTreeMap<String, u32>,
}

/// The `[fleet]` table. Its presence is the request to join the fleet.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FleetTable {
    pub(super) nats: Vec<String>,
    pub(super) postgres: Option<String>,
    pub(super) password_file: Option<PathBuf>,
    pub(super) credentials_file: Option<PathBuf>,
    pub(super) nkey_file: Option<PathBuf>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) stream: Option<String>,
    pub(super) replicas: Option<usize>,
    pub(super) signing_key_file: Option<PathBuf>,
    pub(super) daemon_id: Option<String>,
    pub(super) ack_wait: Option<String>,
    pub(super) lost_after: Option<String>,
    pub(super) max_deliver: Option<u32>,
    pub(super) result_retention: Option<String>,
    pub(super) queues: Vec<FleetQueueTable>,
}

/// One `[[fleet.queues]]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FleetQueueTable {
    pub(super) name: String,
    pub(super) key: Option<String>,
    #[serde(default)]
    pub(super) workspaces: Vec<String>,
    pub(super) places: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PolicyTable {
    pub(super) allow_tools: Option<Vec<String>>,
    pub(super) deny_tools: Vec<String>,
    pub(super) read_only: Option<String>,
    pub(super) safe_write: Option<String>,
    pub(super) dangerous: Option<String>,
    pub(super) rules: Vec<PolicyRuleTable>,
}

/// One `[[policy.rules]]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyRuleTable {
    pub(super) name: String,
    pub(super) tool: String,
    pub(super) pattern: Option<String>,
    pub(super) action: String,
    pub(super) workspaces: Option<Vec<String>>,
    pub(super) created_workspaces: Option<Vec<String>>,
    pub(super) expires: Option<String>,
    pub(super) enabled: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ApprovalsTable {
    pub(super) timeout: Option<String>,
    pub(super) max_pending: Option<usize>,
    pub(super) retention: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CreatedWorkspacesTable {
    pub(super) directory: Option<PathBuf>,
    pub(super) max_entries: Option<u32>,
    pub(super) max_per_caller: Option<u32>,
    pub(super) max_bytes: Option<u64>,
    pub(super) max_files: Option<u64>,
    pub(super) project_ids: Option<[u32; 2]>,
    pub(super) ttl: Option<String>,
    pub(super) idle_timeout: Option<String>,
    pub(super) home: Option<String>,
    pub(super) tmp: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SessionsTable {
    pub(super) retention: Option<String>,
    pub(super) max_entries: Option<u32>,
    pub(super) max_bytes: Option<u64>,
    pub(super) max_record_bytes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AuditTable {
    pub(super) path: Option<PathBuf>,
    pub(super) max_bytes: Option<u64>,
    pub(super) max_files: Option<u32>,
    pub(super) fsync: bool,
}

/// Reads the file at `path`.
pub(super) fn read_file<T: DeserializeOwned>(path: &Path) -> Result<ParsedFile<T>, String> {
    let explain = |error: &dyn std::fmt::Display| format!("--config {}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(|error| explain(&error))?;
    let mut table: toml::Table = toml::from_str(&text).map_err(|error| explain(&error))?;
    let renamed_keys = renamed::upgrade(&mut table).map_err(|problem| explain(&problem))?;

    let content = if renamed_keys.is_empty() {
        // From the text, so that errors name the line and the column.
        toml::from_str(&text)
    } else {
        table.clone().try_into()
    };
    let content = content.map_err(|error| explain(&error))?;

    for key in RELOADABLE_KEYS {
        table.remove(key);
    }
    Ok(ParsedFile { content, restart_only: table.to_string(), renamed_keys })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_knows_the_same_keys_as_a_start() {
        fn error_for_unknown_key<T: DeserializeOwned + std::fmt::Debug>() -> String {
            toml::from_str::<T>("polcy = 1").unwrap_err().to_string()
        }
        // The error lists all known keys.
        assert!(error_for_unknown_key::<ConfigFile>().contains("`policy`"));
        assert_eq!(
            error_for_unknown_key::<ConfigFile>(),
            error_for_unknown_key::<ReloadableConfigFile>()
        );
    }

    #[test]
    fn a_file_with_old_names_is_read_with_warnings() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jig.toml");
        fs::write(&path, "[requests]\nlinger = \"5s\"\n[approvals]\nwait = \"1m\"").unwrap();

        let file = read_file::<ConfigFile>(&path).unwrap();
        assert_eq!(file.content.requests.detached_timeout.as_deref(), Some("5s"));
        assert_eq!(file.content.approvals.timeout.as_deref(), Some("1m"));
        assert_eq!(file.renamed_keys.len(), 2, "{:?}", file.renamed_keys);

        let new = directory.path().join("new.toml");
        fs::write(&new, "[requests]\ndetached_timeout = \"5s\"").unwrap();
        let new = read_file::<ConfigFile>(&new).unwrap();
        assert_eq!((new.restart_only, new.renamed_keys.len()), (file.restart_only, 0));
    }
}
