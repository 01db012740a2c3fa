//! Protected paths of a workspace, which neither file tools nor commands can change.
//!
//! The operator lists paths, and presets that expand to several paths. Presets are expanded once,
//! when the daemon starts. The workspace can be hostile: only files that lead git to a directory
//! are read, and git is not run.

mod git_directory;

use std::{
    borrow::Cow,
    fs,
    path::{Component, Path},
};

use crate::daemon::sandbox::plan::{Placeholder, ProtectedPath};

/// Preset: no protected paths.
const PRESET_NONE: &str = "none";
/// Preset: files that make git run a program when the operator works in the repository.
const PRESET_GIT: &str = "@git";
/// Preset: files that make editors, shells and coding agents run or trust a program.
const PRESET_AGENT_CONFIGS: &str = "@agent-configs";

const EMPTY_FILE: Placeholder = Placeholder::File(Cow::Borrowed(""));

/// Files of a git directory that name programs, or directories that have such files
/// (gitrepository-layout(5)).
///
/// For a missing one, the sandbox mounts a placeholder that git reads as empty, so that commands
/// cannot create it. Without one for `commondir`, a command could make git read another `config`.
const GIT_DIR_PATHS: &[(&str, Placeholder)] = &[
    ("config", EMPTY_FILE),
    ("config.worktree", EMPTY_FILE),
    ("commondir", Placeholder::File(Cow::Borrowed(".\n"))),
    ("hooks", Placeholder::Directory),
    ("info/attributes", EMPTY_FILE),
];
/// The same for a linked worktree (git-worktree(1)), which always has `commondir`.
const GIT_WORKTREE_PATHS: &[(&str, Placeholder)] =
    &[("config.worktree", EMPTY_FILE), ("commondir", EMPTY_FILE)];

/// Files and directories from which programs of the operator take commands.
///
/// An attacker could write there and wait for a trusted program to execute it.
const AGENT_CONFIG_PATHS: &[&str] = &[
    ".agents",
    ".claude",
    ".codex",
    ".continue",
    ".cursor",
    ".devcontainer",
    ".devcontainer.json",
    ".envrc",
    ".gemini",
    ".idea",
    ".mcp.json",
    ".roo",
    ".vscode",
    ".windsurf",
    ".zed",
    "opencode.json",
];
/// As above, but protected only if it exists.
///
/// A placeholder would prevent the creation of a new virtual environment.
const PYVENV_CONFIG_PATH: &str = ".venv/pyvenv.cfg";

/// Protected paths of a workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Protection {
    pub(crate) paths: Vec<ProtectedPath>,
    /// Whether the operator requested it. The default protection does not lower the isolation level
    /// if the daemon cannot enforce it.
    pub(crate) required: bool,
    /// Why the default could not be applied, for the log.
    pub(crate) problem: Option<String>,
}

impl Protection {
    /// Expands the paths and presets of the operator for the workspace at `root`.
    ///
    /// `None` is the default: `@git` in a repository, and nothing elsewhere.
    ///
    /// # Errors
    ///
    /// Returns a problem that the operator must fix.
    pub(super) fn resolve(requested: Option<&[String]>, root: &Path) -> Result<Self, String> {
        let Some(requested) = requested else {
            return Ok(Self::default_for(root));
        };

        let mut paths: Vec<ProtectedPath> = Vec::new();
        for text in requested {
            let expanded = match text.as_str() {
                PRESET_NONE if requested.len() == 1 => Vec::new(),
                PRESET_NONE => {
                    return Err(format!("{text:?} cannot be combined with other values"));
                }
                PRESET_GIT => git_paths(root)?,
                PRESET_AGENT_CONFIGS => agent_config_paths(root)?,
                _ => vec![ProtectedPath {
                    path: parse_relative(text)?,
                    placeholder: Placeholder::Directory,
                }],
            };
            for new in expanded {
                if paths.iter().all(|known| known.path != new.path) {
                    paths.push(new);
                }
            }
        }
        Ok(Self { required: !paths.is_empty(), paths, problem: None })
    }

    fn default_for(root: &Path) -> Self {
        if !git_directory::has_repository(root) {
            return Self::default();
        }
        match git_paths(root) {
            Ok(paths) => Self { paths, ..Self::default() },
            Err(problem) => Self { problem: Some(problem), ..Self::default() },
        }
    }

    pub(crate) fn path_names(&self) -> Vec<String> {
        self.paths.iter().map(|protected| protected.path.clone()).collect()
    }
}

/// Expands [`PRESET_GIT`].
///
/// Returns the files of each directory in the workspace that git reads its configuration from, and
/// `.git` itself if it is a file or missing.
fn git_paths(root: &Path) -> Result<Vec<ProtectedPath>, String> {
    let mut paths = Vec::new();
    if is_directory(root, ".git")? != Some(true) {
        paths.push(ProtectedPath { path: ".git".to_owned(), placeholder: Placeholder::Directory });
    }
    for directory in git_directory::find(root)? {
        if directory.is_worktree {
            paths.extend(protected_below(&directory.path, GIT_WORKTREE_PATHS));
            continue;
        }
        paths.extend(protected_below(&directory.path, GIT_DIR_PATHS));
        // Linked worktrees can be outside of the workspace and have their own `commondir`.
        for worktree in worktrees(root, &directory.path) {
            paths.extend(protected_below(&worktree, GIT_WORKTREE_PATHS));
        }
    }

    for protected in &paths {
        reject_symlinks(root, &protected.path)?;
    }
    Ok(paths)
}

/// Returns the directories of the worktrees that are linked to the repository, sorted.
fn worktrees(root: &Path, repository: &str) -> Vec<String> {
    let directory = join(repository, "worktrees");
    let entries = fs::read_dir(root.join(&directory)).into_iter().flatten();
    let mut names: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .map(|name| join(&directory, &name))
        .collect();
    names.sort();
    names
}

fn agent_config_paths(root: &Path) -> Result<Vec<ProtectedPath>, String> {
    let python =
        fs::symlink_metadata(root.join(PYVENV_CONFIG_PATH)).is_ok().then_some(PYVENV_CONFIG_PATH);
    let mut paths = Vec::new();
    for path in AGENT_CONFIG_PATHS.iter().copied().chain(python) {
        reject_symlinks(root, path)?;
        paths.push(ProtectedPath { path: path.to_owned(), placeholder: Placeholder::Directory });
    }
    Ok(paths)
}

fn protected_below(directory: &str, files: &[(&str, Placeholder)]) -> Vec<ProtectedPath> {
    let mut paths = Vec::new();
    for (name, placeholder) in files {
        paths.push(ProtectedPath { path: join(directory, name), placeholder: placeholder.clone() });
    }
    paths
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// Returns whether `path` is a directory, or `None` if it is missing.
///
/// Rejects a symbolic link, because a command could replace it by another one.
fn is_directory(root: &Path, path: &str) -> Result<Option<bool>, String> {
    let Ok(metadata) = fs::symlink_metadata(root.join(path)) else {
        return Ok(None);
    };
    if metadata.is_symlink() {
        return Err(format!(
            "{path} is a symbolic link, which cannot be protected; replace it with its target"
        ));
    }
    Ok(Some(metadata.is_dir()))
}

/// Rejects a path with a symbolic link in any component.
fn reject_symlinks(root: &Path, path: &str) -> Result<(), String> {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    for end in ends {
        is_directory(root, &path[..end])?;
    }
    Ok(())
}

/// Normalizes a path relative to the workspace.
fn parse_relative(text: &str) -> Result<String, String> {
    let problem = || {
        format!(
            "give a path in the workspace, relative to it and without .. (\".git/hooks\"), {PRESET_GIT}, {PRESET_AGENT_CONFIGS}, or {PRESET_NONE} alone"
        )
    };
    if text.starts_with('@') || text.contains('\0') {
        return Err(problem());
    }
    let mut names = Vec::new();
    for component in Path::new(text).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => names.push(name.to_str().ok_or_else(problem)?),
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                return Err(problem());
            }
        }
    }
    if names.is_empty() { Err(problem()) } else { Ok(names.join("/")) }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::{AGENT_CONFIG_PATHS, Protection, parse_relative};

    fn resolve(requested: &[&str], root: &Path) -> Result<Protection, String> {
        let requested: Vec<String> = requested.iter().map(|text| (*text).to_owned()).collect();
        Protection::resolve(Some(&requested), root)
    }

    #[test]
    fn protected_paths_are_in_the_workspace() {
        for (text, expected) in [
            (".git/hooks", Some(".git/hooks")),
            ("./a//b/.", Some("a/b")),
            ("", None),
            (".", None),
            ("/etc", None),
            ("a/../b", None),
            ("..", None),
            ("a\0", None),
            ("@unknown", None),
        ] {
            assert_eq!(parse_relative(text).ok().as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn presets_expand_to_several_paths() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(resolve(&["@git"], root).unwrap().path_names(), [".git"]);
        assert_eq!(Protection::resolve(None, root), Ok(Protection::default()));

        fs::create_dir_all(root.join(".git/worktrees/w")).unwrap();
        let git = resolve(&["@git", ".git/hooks", "x"], root).unwrap();
        assert!(git.required);
        let names = git.path_names();
        for path in [".git/config", ".git/commondir", ".git/worktrees/w/commondir", "x"] {
            assert!(names.iter().any(|name| name == path), "{path} of {names:?}");
        }
        assert_eq!(names.iter().filter(|name| *name == ".git/hooks").count(), 1);

        let default = Protection::resolve(None, root).unwrap();
        assert!(!default.required && default.paths.len() + 1 == git.paths.len());
        assert_eq!(
            resolve(&["@agent-configs"], root).unwrap().paths.len(),
            AGENT_CONFIG_PATHS.len()
        );
        assert_eq!(resolve(&["none"], root), Ok(Protection::default()));
        assert_eq!(resolve(&[], root), Ok(Protection::default()));
        assert!(resolve(&["none", "@git"], root).is_err());
    }

    #[test]
    fn symbolic_links_are_rejected() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir(root.join("elsewhere")).unwrap();
        symlink("elsewhere", root.join(".git")).unwrap();
        assert!(resolve(&["@git"], root).unwrap_err().contains("symbolic link"));
        let default = Protection::resolve(None, root).unwrap();
        assert!(default.paths.is_empty() && default.problem.is_some(), "{default:?}");

        fs::remove_file(root.join(".git")).unwrap();
        fs::create_dir(root.join(".git")).unwrap();
        symlink("../elsewhere", root.join(".git/info")).unwrap();
        assert!(resolve(&["@git"], root).unwrap_err().contains(".git/info"));
    }
}
