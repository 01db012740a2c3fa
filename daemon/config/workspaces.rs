//! Workspaces of the configuration: flags and `[[workspaces]]` tables, merged and checked.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    WorkspaceConfig, default_state_dir,
    exposure::{
        binds_below_writable, binds_without_destination, check_destination, exposes_host,
        parse_binds,
    },
    file::WorkspaceTable,
    limits::parse_timeout,
    persistent_directories::parse_persistent_directories,
    protection::Protection,
};
use crate::daemon::sandbox::plan::{BindMount, DEFAULT_MOUNT_PATH, PersistentDirectories};

const MAX_WORKSPACE_NAME_BYTES: usize = 120;

/// Settings of workspaces that do not have their own.
pub(super) struct WorkspaceDefaults<'a> {
    /// Binds of all workspaces. Those of a workspace are added.
    pub(super) binds: &'a [BindMount],
    /// Protected paths. `None`: those of [`Protection::resolve`].
    pub(super) protected: Option<&'a Vec<String>>,
    pub(super) persistent: PersistentDirectories,
    pub(super) run_timeout: Option<Duration>,
}

/// Checks the workspaces of the flags or, without such flags, those of the file.
///
/// Without both, the current directory is the workspace.
pub(super) fn parse_workspaces(
    flags: &[String],
    tables: Vec<WorkspaceTable>,
    defaults: &WorkspaceDefaults<'_>,
    problems: &mut Vec<String>,
) -> Vec<WorkspaceConfig> {
    let tables = if !flags.is_empty() {
        flags.iter().map(|text| table_of_flag(text)).collect()
    } else if tables.is_empty() {
        problems.extend(check_implied_workspace());
        vec![table_of_flag(".")]
    } else {
        tables
    };

    let mut names = HashSet::new();
    let mut workspaces = Vec::new();
    for table in tables {
        match resolve_directory(&table.path) {
            Ok(path) => {
                workspaces.push(parse_workspace(table, path, &mut names, defaults, problems));
            }
            Err(problem) => problems.push(problem),
        }
    }
    workspaces
}

/// Reads `[NAME=]PATH`.
fn table_of_flag(text: &str) -> WorkspaceTable {
    let (name, path) = match text.split_once('=') {
        Some((name, path)) if !name.contains('/') => (Some(name.to_owned()), path),
        _ => (None, text),
    };
    WorkspaceTable {
        name,
        path: PathBuf::from(path),
        mount_path: None,
        bind: Vec::new(),
        bind_ro: Vec::new(),
        symlinks: None,
        protected: None,
        home: None,
        tmp: None,
        run_timeout: None,
    }
}

/// Returns the directory at `path` without symbolic links, if it can be a workspace.
fn resolve_directory(path: &Path) -> Result<PathBuf, String> {
    let given = path.display();
    match fs::canonicalize(path) {
        Ok(path) if path == Path::new("/") => Err("--workspace /: the root directory cannot be a workspace; give the directory of the project".to_owned()),
        Ok(path) if exposes_host(&path) => Err(format!(
            "--workspace {given} would show the host to commands; give the directory of the project"
        )),
        Ok(path) if path.is_dir() => Ok(path),
        Ok(_) => Err(format!("--workspace {given} is not a directory")),
        Err(error) => Err(format!(
            "--workspace {given}: {error}: give a directory that this user can enter"
        )),
    }
}

/// Checks the table of the workspace at `path`. `names` are those of the workspaces before it.
fn parse_workspace(
    table: WorkspaceTable,
    path: PathBuf,
    names: &mut HashSet<String>,
    defaults: &WorkspaceDefaults<'_>,
    problems: &mut Vec<String>,
) -> WorkspaceConfig {
    let given = table.path.display();
    let name = table.name.unwrap_or_else(|| {
        path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    });
    if !is_workspace_name(&name) {
        problems.push(format!("--workspace {given}: {name:?} is not a valid workspace name; give one with NAME=PATH, of 1 to {MAX_WORKSPACE_NAME_BYTES} visible ASCII characters without slashes"));
    }
    if !names.insert(name.clone()) {
        problems.push(format!("--workspace {given}: two workspaces are named {name}; give them different names with NAME=PATH"));
    }

    let mount_path = table.mount_path.unwrap_or_else(|| PathBuf::from(DEFAULT_MOUNT_PATH));
    if let Err(problem) = check_destination(&mount_path) {
        problems.push(format!("workspace {name}: mount_path {problem}"));
    }
    let own_binds = [
        parse_binds(&table.bind, "workspaces.bind", true, problems),
        parse_binds(&table.bind_ro, "workspaces.bind_ro", false, problems),
    ];
    let binds = [defaults.binds, &own_binds.concat()].concat();
    check_binds(&name, &mount_path, &binds, problems);

    let protected = table.protected.as_ref().or(defaults.protected);
    let protection = Protection::resolve(protected.map(Vec::as_slice), &path);
    let protection = protection.unwrap_or_else(|problem| {
        problems.push(format!("workspace {name}: protected: {problem}"));
        Protection::default()
    });

    WorkspaceConfig {
        path,
        mount_path,
        binds,
        follow_links: parse_symlink_mode(table.symlinks.as_deref(), &name, problems),
        protection,
        persistent: parse_persistent_directories(
            [table.home.as_deref(), table.tmp.as_deref()],
            &format!("workspace {name}: "),
            defaults.persistent,
            problems,
        ),
        run_timeout: match table.run_timeout.as_deref() {
            None => defaults.run_timeout,
            text => {
                let key = format!("workspace {name}: run_timeout");
                parse_timeout(text, &key, "that of [limits]", problems)
            }
        },
        name,
    }
}

fn is_workspace_name(name: &str) -> bool {
    let visible = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    (1..=MAX_WORKSPACE_NAME_BYTES).contains(&name.len()) && name.bytes().all(visible)
}

fn check_binds(
    workspace: &str,
    mount_path: &Path,
    binds: &[BindMount],
    problems: &mut Vec<String>,
) {
    for BindMount { destination, .. } in binds {
        if destination.starts_with(mount_path) || mount_path.starts_with(destination) {
            problems.push(format!(
                "workspace {workspace}: {} cannot be bound into or over the workspace at {}",
                destination.display(),
                mount_path.display()
            ));
        }
    }
    for (outer, inner) in binds_below_writable(binds) {
        problems.push(format!(
            "workspace {workspace}: {} cannot be bound below {}, which commands can change",
            inner.display(),
            outer.display()
        ));
    }
    for (path, outer) in binds_without_destination(binds) {
        problems.push(format!(
            "workspace {workspace}: nothing can be bound at {}, which does not exist: {} is read-only. Create it there, or choose a destination elsewhere, such as /toolchain",
            path.display(),
            outer.display()
        ));
    }
}

/// Reads whether file tools follow symbolic links that stay in the workspace.
fn parse_symlink_mode(text: Option<&str>, workspace: &str, problems: &mut Vec<String>) -> bool {
    match text {
        None | Some("refuse") => false,
        Some("within") => true,
        Some(other) => {
            problems.push(format!("workspace {workspace}: symlinks = {other:?}: give \"refuse\", or \"within\" to follow links that stay in the workspace"));
            false
        }
    }
}

/// Returns a problem if the current directory contains the home directory.
///
/// Such a directory can be a workspace only if the operator names it.
fn check_implied_workspace() -> Option<String> {
    let home = fs::canonicalize(std::env::home_dir()?).ok()?;
    let here = std::env::current_dir().ok()?;
    let contains_home = here != Path::new("/") && home.starts_with(&here);
    if !contains_home {
        return None;
    }

    // The state directory must not be readable by commands.
    let state_dir_hint = if default_state_dir().starts_with(&here) {
        " --state-dir DIRECTORY, with a directory outside of it"
    } else {
        ""
    };
    Some(format!(
        "the current directory {} contains your home directory: commands could read and change all of it; start jigd in the directory of the project, or confirm with --workspace {0}{state_dir_hint}",
        here.display()
    ))
}
