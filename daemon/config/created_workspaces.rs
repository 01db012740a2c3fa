//! The `[workspaces_on_demand]` table: workspaces that callers create while the daemon runs.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{duration::parse_age, file};
use crate::daemon::sandbox::plan::BindMount;

const DEFAULT_MAX_ENTRIES: u32 = 1000;
const DEFAULT_MAX_PER_CALLER: u32 = 100;
/// Most workspaces that an operator can allow. Each holds a descriptor.
const MAX_ENTRIES: u32 = 100_000;

/// Most ids of sandboxes for created workspaces. More workspaces share them.
const MAX_SANDBOX_IDS: usize = 1024;

/// The checked table.
#[derive(Debug, Clone)]
pub(crate) struct CreatedWorkspacesConfig {
    /// The directory that holds them, without symbolic links.
    pub(crate) directory: PathBuf,
    /// Number of created workspaces at one time.
    pub(crate) max_entries: usize,
    /// Number of those of one caller.
    pub(crate) max_per_caller: usize,
    /// Longest life of a workspace, and the default. `None`: no end.
    pub(crate) ttl: Option<Duration>,
    /// Longest time without a call, and the default. `None`: no end.
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) common: CommonSettings,
}

/// Settings of all workspaces that have none of their own.
#[derive(Debug, Clone)]
pub(crate) struct CommonSettings {
    /// Directories and files that commands see.
    pub(crate) binds: Vec<BindMount>,
    /// Timeout of a run whose call has none. `None`: that of the contract.
    pub(crate) run_timeout: Option<Duration>,
}

/// Directories that must not overlap with that of created workspaces.
pub(super) struct OtherDirectories<'a> {
    /// The workspaces, what else commands see, and the state directory.
    pub(super) paths: Vec<&'a Path>,
    /// Whether a workspace at a path would show the host to commands.
    pub(super) exposes_host: fn(&Path) -> bool,
}

/// Checks the table. `None` if it has no directory.
pub(super) fn parse_created_workspaces(
    table: file::CreatedWorkspacesTable,
    common: CommonSettings,
    others: OtherDirectories<'_>,
    problems: &mut Vec<String>,
) -> Option<CreatedWorkspacesConfig> {
    let mut duration = |text: Option<String>, key: &str| {
        let text = text?;
        let parsed = parse_age(&text).filter(|age| !age.is_zero());
        if parsed.is_none() {
            problems.push(format!("workspaces_on_demand.{key} is {text:?}: give a time of at most 3650d, such as 30m, 12h or 7d"));
        }
        parsed
    };
    let (ttl, idle_timeout) =
        (duration(table.ttl, "ttl"), duration(table.idle_timeout, "idle_timeout"));
    let max_entries = table.max_entries.unwrap_or(DEFAULT_MAX_ENTRIES);
    let max_per_caller = table.max_per_caller.unwrap_or(DEFAULT_MAX_PER_CALLER);
    if !(1..=MAX_ENTRIES).contains(&max_entries) || max_per_caller == 0 {
        problems.push(format!(
            "workspaces_on_demand.max_entries must be from 1 to {MAX_ENTRIES}, and max_per_caller at least 1"
        ));
    }

    let directory = match resolve(&table.directory?, &others) {
        Ok(directory) => directory,
        Err(problem) => {
            problems.push(format!("workspaces_on_demand.directory {problem}"));
            return None;
        }
    };
    Some(CreatedWorkspacesConfig {
        directory,
        max_entries: usize::try_from(max_entries).unwrap_or(usize::MAX),
        max_per_caller: usize::try_from(max_per_caller).unwrap_or(usize::MAX),
        ttl,
        idle_timeout,
        common,
    })
}

/// Number of user ids for the sandboxes of created workspaces.
pub(super) fn sandbox_id_count(config: &CreatedWorkspacesConfig) -> usize {
    config.max_entries.min(MAX_SANDBOX_IDS)
}

/// Returns the directory without symbolic links, if it can hold workspaces: no command of another
/// workspace may reach it.
fn resolve(given: &Path, others: &OtherDirectories<'_>) -> Result<PathBuf, String> {
    let shown = given.display();
    let path = fs::canonicalize(given).map_err(|error| {
        format!("{shown}: {error}: create a directory that this user can write")
    })?;
    if !path.is_dir() {
        return Err(format!("{shown} is not a directory"));
    }
    if path == Path::new("/") || (others.exposes_host)(&path) {
        return Err(format!(
            "{shown} would show the host to commands; give a directory of its own"
        ));
    }
    let overlaps = |other: &Path| {
        let other = fs::canonicalize(other).unwrap_or_else(|_| other.to_owned());
        path.starts_with(&other) || other.starts_with(&path)
    };
    match others.paths.iter().find(|other| overlaps(other)) {
        Some(other) => {
            Err(format!("{shown} overlaps {}: give a directory of its own", other.display()))
        }
        None => Ok(path),
    }
}
