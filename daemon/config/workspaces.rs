//! The workspaces of a configuration.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    WorkspaceConfig, default_state_dir,
    exposure::{binds_below_writable, check_destination, exposes_host, parse_binds},
    file,
    limits::parse_timeout,
    protection::Protection,
};
use crate::daemon::sandbox::plan::{BindMount, DEFAULT_MOUNT_PATH};

/// Puts the flags and the file's tables together and checks them. Flags name all workspaces, or none.
pub(super) fn parse_workspaces(
    flags: &[String],
    tables: Vec<file::WorkspaceTable>,
    common: &[BindMount],
    home: Option<&str>,
    protect: &[String],
    run_timeout: Option<Duration>,
    problems: &mut Vec<String>,
) -> Vec<WorkspaceConfig> {
    let plain = |text: &str| {
        let (name, path) = match text.split_once('=') {
            Some((name, path)) if !name.contains('/') => (Some(name.to_owned()), path),
            _ => (None, text),
        };
        file::WorkspaceTable {
            name,
            path: PathBuf::from(path),
            mount_path: None,
            bind: Vec::new(),
            bind_ro: Vec::new(),
            symlinks: None,
            protected: None,
            home: None,
            run_timeout: None,
        }
    };
    let written: Vec<file::WorkspaceTable> = match (flags, tables) {
        ([], tables) if tables.is_empty() => {
            problems.extend(check_implied_workspace());
            vec![plain(".")]
        }
        ([], tables) => tables,
        (flags, _) => flags.iter().map(|text| plain(text)).collect(),
    };
    let keeps_homes = parse_home_mode(home, "sandbox.home", problems);
    let mut names = HashSet::new();
    let mut checked = Vec::new();
    for workspace in written {
        let shown = workspace.path.display().to_string();
        let path = match fs::canonicalize(&workspace.path) {
            Ok(path) if path == Path::new("/") => {
                problems.push("--workspace /: the root directory cannot be a workspace; give the directory of the project".to_owned());
                continue;
            }
            Ok(path) if exposes_host(&path) => {
                problems.push(format!(
                    "--workspace {shown} would show the host to commands; give the directory of the project"
                ));
                continue;
            }
            Ok(path) if path.is_dir() => path,
            Ok(_) => {
                problems.push(format!("--workspace {shown} is not a directory"));
                continue;
            }
            Err(error) => {
                problems.push(format!(
                    "--workspace {shown}: {error}: give a directory that this user can enter"
                ));
                continue;
            }
        };
        let name = workspace.name.unwrap_or_else(|| {
            path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
        });
        let visible = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
        if name.is_empty() || !name.bytes().all(visible) || name.len() > 120 {
            problems.push(format!("--workspace {shown}: {name:?} is no name for it; give one with NAME=PATH, of visible ASCII characters without slashes"));
        }
        if !names.insert(name.clone()) {
            problems.push(format!("--workspace {shown}: two workspaces are named {name}; give them names with NAME=PATH"));
        }
        let mount_path = workspace.mount_path.unwrap_or_else(|| PathBuf::from(DEFAULT_MOUNT_PATH));
        if let Err(problem) = check_destination(&mount_path) {
            problems.push(format!("workspace {name}: mount_path {problem}"));
        }
        let own = [
            parse_binds(&workspace.bind, "workspaces.bind", true, problems),
            parse_binds(&workspace.bind_ro, "workspaces.bind_ro", false, problems),
        ];
        let binds: Vec<BindMount> = common.iter().cloned().chain(own.concat()).collect();
        for bind in binds.iter().filter(|bind| {
            bind.destination.starts_with(&mount_path) || mount_path.starts_with(&bind.destination)
        }) {
            let destination = bind.destination.display();
            problems.push(format!(
                "workspace {name}: {destination} cannot be bound into or over the workspace at {}",
                mount_path.display()
            ));
        }
        for (outer, inner) in binds_below_writable(&binds) {
            problems.push(format!(
                "workspace {name}: {} cannot be bound below {}, which commands may change",
                inner.display(),
                outer.display()
            ));
        }
        let follow_links = match workspace.symlinks.as_deref() {
            None | Some("refuse") => false,
            Some("beneath") => true,
            Some(other) => {
                problems.push(format!("workspace {name}: symlinks = {other:?}: give \"refuse\", or \"beneath\" to follow those that stay in the workspace"));
                false
            }
        };
        let protect = (!protect.is_empty()).then_some(protect);
        let written = workspace.protected.as_deref().or(protect);
        let protection = Protection::resolve(written, &path).unwrap_or_else(|problem| {
            problems.push(format!("workspace {name}: protected: {problem}"));
            Protection::default()
        });
        let keeps_home = match workspace.home.as_deref() {
            None => keeps_homes,
            home => parse_home_mode(home, &format!("workspace {name}: home"), problems),
        };
        checked.push(WorkspaceConfig {
            path,
            mount_path,
            binds,
            follow_links,
            protection,
            persistent_home: keeps_home,
            run_timeout: match workspace.run_timeout.as_deref() {
                None => run_timeout,
                text => {
                    let key = format!("workspace {name}: run_timeout");
                    parse_timeout(text, &key, "that of [limits]", problems)
                }
            },
            name,
        });
    }
    checked
}

/// Reads whether a home directory is kept; `key` is where that is written.
fn parse_home_mode(written: Option<&str>, key: &str, problems: &mut Vec<String>) -> bool {
    match written {
        None | Some("fresh") => false,
        Some("keep") => true,
        Some(other) => {
            problems.push(format!("{key} = {other:?}: give \"fresh\" for an empty home directory at each run, or \"keep\" for one that all runs of a workspace share"));
            false
        }
    }
}

/// Why the current directory is served only if it is named: it holds the home directory.
fn check_implied_workspace() -> Option<String> {
    let home = fs::canonicalize(std::env::home_dir()?).ok()?;
    let here = std::env::current_dir().ok()?;
    let holds_home = here != Path::new("/") && home.starts_with(&here);
    holds_home.then(|| {
        // What commands can read cannot be the state directory, too.
        let state_dir = match default_state_dir().starts_with(&here) {
            true => " --state-dir DIRECTORY, with a directory outside of it",
            false => "",
        };
        format!(
            "the current directory {} holds your home directory: commands could read and change all of it; start jigd in the directory of the project, or insist with --workspace {0}{state_dir}",
            here.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::parse_home_mode;

    #[test]
    fn a_home_is_kept_only_where_that_is_asked_for() {
        for (written, keeps, wrong) in [
            (None, false, false),
            (Some("fresh"), false, false),
            (Some("keep"), true, false),
            (Some("Keep"), false, true),
            (Some(""), false, true),
        ] {
            let mut problems = Vec::new();
            assert_eq!(parse_home_mode(written, "home", &mut problems), keeps, "{written:?}");
            assert_eq!(!problems.is_empty(), wrong, "{written:?}");
        }
    }
}
