//! The `[workspaces_on_demand]` table: workspaces that callers create while the daemon runs.

use std::{
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{duration::parse_age, file, persistent_directories::parse_persistent_directories};
use crate::daemon::sandbox::plan::{BindMount, PersistentDirectories};

const DEFAULT_MAX_ENTRIES: u32 = 1000;
const DEFAULT_MAX_PER_CALLER: u32 = 100;
/// Most workspaces that an operator can allow. Each holds a descriptor.
const MAX_ENTRIES: u32 = 100_000;
/// Files of a workspace that has only a bound of its bytes. The daemon may have to count them.
const DEFAULT_MAX_FILES: u64 = 1_000_000;
/// Least bounds of a workspace: room for an empty directory, and something in it.
const MIN_BYTES: u64 = 65_536;
const MIN_FILES: u64 = 2;
/// Project ids, unless the operator chooses others: twice as many as there can be workspaces.
const DEFAULT_PROJECT_IDS: [u32; 2] = [1_000_000_000, 1_000_199_999];

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
    pub(crate) bounds: FileBounds,
    /// Project ids for workspaces whose bounds the kernel enforces.
    pub(crate) project_ids: RangeInclusive<u32>,
    /// Longest life of a workspace, and the default. `None`: no end.
    pub(crate) ttl: Option<Duration>,
    /// Longest time without a call, and the default. `None`: no end.
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) common: CommonSettings,
}

/// Bounds on the files of a workspace. `None`: no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FileBounds {
    /// Disk space.
    pub(crate) max_bytes: Option<u64>,
    /// Number of files, directories and links.
    pub(crate) max_files: Option<u64>,
}

impl FileBounds {
    /// The lower ones of two. With one on the bytes, there is one on the files.
    pub(crate) fn lower(self, other: Self) -> Self {
        let lower = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        let max_bytes = lower(self.max_bytes, other.max_bytes);
        let max_files = lower(self.max_files, other.max_files);
        Self { max_bytes, max_files: max_files.or(max_bytes.map(|_| DEFAULT_MAX_FILES)) }
    }
}

/// Settings of all workspaces that have none of their own.
#[derive(Debug, Clone)]
pub(crate) struct CommonSettings {
    /// Directories and files that commands see.
    pub(crate) binds: Vec<BindMount>,
    /// Timeout of a run whose call has none. `None`: that of the contract.
    pub(crate) run_timeout: Option<Duration>,
    /// Directories that all runs of a workspace share.
    pub(crate) persistent: PersistentDirectories,
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
    mut common: CommonSettings,
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

    let bounds = FileBounds { max_bytes: table.max_bytes, max_files: table.max_files };
    if bounds.max_bytes.is_some_and(|bytes| bytes < MIN_BYTES)
        || bounds.max_files.is_some_and(|files| files < MIN_FILES)
    {
        problems.push(format!(
            "workspaces_on_demand.max_bytes must be at least {MIN_BYTES}, and max_files at least {MIN_FILES}"
        ));
    }
    common.persistent = parse_persistent_directories(
        [table.home.as_deref(), table.tmp.as_deref()],
        "workspaces_on_demand.",
        common.persistent,
        problems,
    );

    let [first, last] = table.project_ids.unwrap_or(DEFAULT_PROJECT_IDS);
    // 0 is no project, and the highest number is none (projid_t).
    if first == 0 || first > last || last == u32::MAX {
        problems.push(format!(
            "workspaces_on_demand.project_ids is [{first}, {last}]: give the first and the last of a range from 1 to {}", u32::MAX - 1
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
        bounds: bounds.lower(FileBounds::default()),
        project_ids: first..=last,
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
