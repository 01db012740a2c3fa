//! The configuration file, as it was written. Unknown keys are errors: a misspelt limit must not be
//! silently none.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};

/// What a daemon that runs takes over.
const RELOADABLE_KEYS: [&str; 3] = ["policy", "approvals", "keys"];

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ConfigFile {
    pub(super) listen: Vec<String>,
    pub(super) keys: Option<PathBuf>,
    pub(super) trust_loopback: Option<bool>,
    pub(super) state_dir: Option<PathBuf>,
    pub(super) log: Option<String>,
    pub(super) log_level: Option<String>,
    pub(super) log_calls: Option<bool>,
    pub(super) drain_timeout: Option<String>,
    pub(super) workspaces: Vec<WorkspaceTable>,
    pub(super) files: FilesTable,
    pub(super) sandbox: SandboxTable,
    pub(super) limits: LimitsTable,
    pub(super) requests: RequestsTable,
    pub(super) jobs: JobsTable,
    pub(super) sessions: SessionsTable,
    pub(super) proxy: Option<ProxyTable>,
    pub(super) fetch: FetchTable,
    pub(super) tools: Vec<CustomToolTable>,
    pub(super) policy: PolicyTable,
    pub(super) approvals: ApprovalsTable,
}

/// What of the file a daemon that runs takes over. Of the rest, it does not matter what it says, but it must
/// not be a policy whose name was misspelt.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ReloadableConfigFile {
    listen: IgnoredAny,
    pub(super) keys: Option<PathBuf>,
    trust_loopback: IgnoredAny,
    state_dir: IgnoredAny,
    log: IgnoredAny,
    log_level: IgnoredAny,
    log_calls: IgnoredAny,
    drain_timeout: IgnoredAny,
    workspaces: IgnoredAny,
    files: IgnoredAny,
    sandbox: IgnoredAny,
    limits: IgnoredAny,
    requests: IgnoredAny,
    jobs: IgnoredAny,
    sessions: IgnoredAny,
    proxy: IgnoredAny,
    fetch: IgnoredAny,
    tools: IgnoredAny,
    pub(super) policy: PolicyTable,
    pub(super) approvals: ApprovalsTable,
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
    pub(super) run_timeout: Option<String>,
}

/// The `[files]` table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FilesTable {
    pub(super) fsync: bool,
}

/// The `[sandbox]` table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SandboxTable {
    pub(super) minimum_level: Option<String>,
    pub(super) chown_workspace: Option<bool>,
    pub(super) network: Option<String>,
    pub(super) allow_ptrace: Option<bool>,
    pub(super) uid: Option<u32>,
    pub(super) path: Vec<String>,
    pub(super) bind: Vec<String>,
    pub(super) bind_ro: Vec<String>,
    pub(super) grace: Option<String>,
    pub(super) home: Option<String>,
}

/// The `[proxy]` table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ProxyTable {
    pub(super) allow_hosts: Vec<String>,
    pub(super) allow_addresses: Vec<String>,
}

/// The `[fetch]` table.
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

/// The `[limits]` table.
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
    pub(super) queue_wait: Option<String>,
}

/// The `[requests]` table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RequestsTable {
    pub(super) retention: Option<String>,
    pub(super) kept: Option<u32>,
    pub(super) kept_bytes: Option<u64>,
    pub(super) linger: Option<String>,
}

/// The `[jobs]` table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct JobsTable {
    pub(super) retention: Option<String>,
    pub(super) kept: Option<u32>,
    pub(super) kept_bytes: Option<u64>,
    pub(super) queued: Option<u32>,
    pub(super) queued_bytes: Option<u64>,
    pub(super) concurrent: Option<u32>,
    pub(super) queue_concurrency: Option<u32>,
    pub(super) queues: BTreeMap<String, u32>,
}

/// The `[policy]` table.
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
    pub(super) expires: Option<String>,
    pub(super) enabled: Option<bool>,
}

/// The `[approvals]` table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ApprovalsTable {
    pub(super) wait: Option<String>,
    pub(super) pending: Option<usize>,
    pub(super) retention: Option<String>,
}

/// The `[sessions]` table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SessionsTable {
    pub(super) retention: Option<String>,
    pub(super) kept: Option<u32>,
    pub(super) kept_bytes: Option<u64>,
    pub(super) record_bytes: Option<u64>,
}

/// Reads the file at `path`. Answers beside it what of it can only be changed by a restart, as text.
pub(super) fn read_file<T: DeserializeOwned>(path: &Path) -> Result<(T, String), String> {
    let shown = |error: &dyn std::fmt::Display| format!("--config {}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(|error| shown(&error))?;
    let file = toml::from_str(&text).map_err(|error| shown(&error))?;
    let mut rest: toml::Table = toml::from_str(&text).map_err(|error| shown(&error))?;
    for renewed in RELOADABLE_KEYS {
        rest.remove(renewed);
    }
    Ok((file, rest.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_the_file_may_have_is_known_when_it_is_read_again() {
        fn refused<T: DeserializeOwned + std::fmt::Debug>() -> String {
            toml::from_str::<T>("polcy = 1").unwrap_err().to_string()
        }
        // It tells all there are.
        assert!(refused::<ConfigFile>().contains("`policy`"));
        assert_eq!(refused::<ConfigFile>(), refused::<ReloadableConfigFile>());
    }
}
