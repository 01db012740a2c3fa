//! Finds the git directories of a workspace, as `setup_git_directory_gently` and `get_common_dir`
//! of git do.

use std::{
    ffi::OsStr,
    fs::{self, OpenOptions},
    io::Read as _,
    os::unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _},
    path::{Component, Path, PathBuf},
};

use rustix::fs::OFlags;

/// Bytes read of a file that names a directory. A path has at most 4,096 bytes.
const MAX_POINTER_BYTES: u64 = 8192;

/// A directory in the workspace that git reads its configuration from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GitDirectory {
    /// Relative to the workspace; empty for the workspace itself.
    pub(super) path: String,
    /// Whether it is the directory of a linked worktree (git-worktree(1)).
    pub(super) is_worktree: bool,
}

/// Whether git finds a repository in the workspace, or a damaged one.
pub(super) fn has_repository(root: &Path) -> bool {
    fs::symlink_metadata(root.join(".git")).is_ok() || is_repository(root)
}

/// Returns the directories of the repository that are in the workspace.
pub(super) fn find(root: &Path) -> Result<Vec<GitDirectory>, String> {
    let dot_git = root.join(".git");
    let kind = fs::symlink_metadata(&dot_git).map(|metadata| metadata.file_type());
    let is_file = kind.as_ref().is_ok_and(|kind| kind.is_file());
    let mut paths = Vec::new();
    if kind.is_ok_and(|kind| kind.is_dir()) {
        paths.push(".git".to_owned());
    } else if is_file && let Some(target) = read_pointer_file(&dot_git, b"gitdir: ") {
        paths.extend(relative_to_workspace(root, root, &target)?);
    }
    // Git looks for a bare repository if `.git` is not one.
    if !is_file && !is_repository(&dot_git) && is_repository(root) {
        paths.push(String::new());
    }

    let mut directories = Vec::new();
    let mut common = Vec::new();
    for path in paths {
        let directory = root.join(&path);
        let target = read_pointer_file(&directory.join("commondir"), b"");
        let target = target.filter(|target| target != Path::new("."));
        if let Some(target) = &target {
            common.extend(relative_to_workspace(root, &directory, target)?);
        }
        directories.push(GitDirectory { path, is_worktree: target.is_some() });
    }
    directories.extend(common.into_iter().map(|path| GitDirectory { path, is_worktree: false }));
    Ok(directories)
}

/// Whether git can take the directory for a repository.
fn is_repository(directory: &Path) -> bool {
    let has = |name: &str| directory.join(name).symlink_metadata().is_ok();
    has("HEAD") && (has("commondir") || has("objects") && has("refs"))
}

/// Reads the path in a file, after `prefix`.
///
/// The file can be hostile: the daemon does not follow a symbolic link or wait for a FIFO.
fn read_pointer_file(file: &Path, prefix: &[u8]) -> Option<PathBuf> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file =
        OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(file).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut content = Vec::new();
    file.take(MAX_POINTER_BYTES).read_to_end(&mut content).ok()?;
    let path = content.strip_prefix(prefix)?;
    let end = path.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'))?;
    Some(PathBuf::from(OsStr::from_bytes(path.get(..=end)?)))
}

/// Returns `target`, which is relative to `base`, as a path in the workspace, if it is in it.
fn relative_to_workspace(
    root: &Path,
    base: &Path,
    target: &Path,
) -> Result<Option<String>, String> {
    let target = base.join(target);
    let mut path = PathBuf::new();
    for component in target.components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => {
                path.push(component);
            }
        }
    }

    let real = fs::canonicalize(&target).ok();
    let is_in = |path: &PathBuf| path.starts_with(root);
    if is_in(&path) && real.as_ref().is_some_and(|real| *real != path) {
        let name = path.strip_prefix(root).unwrap_or(&path);
        return Err(format!(
            "the repository's directory {} is reached by a symbolic link, which cannot be protected; replace the link with its target",
            name.display()
        ));
    }

    let Some(path) = real.filter(is_in).or(Some(path).filter(is_in)) else {
        return Ok(None);
    };
    let name = path.strip_prefix(root).ok().and_then(Path::to_str);
    let name = name.ok_or("the name of the repository's directory is not UTF-8")?;
    Ok(Some(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::find;

    fn found(root: &Path) -> Vec<(String, bool)> {
        let found = find(root).unwrap().into_iter();
        found.map(|found| (found.path, found.is_worktree)).collect()
    }

    fn repository(at: &Path) {
        for name in ["objects", "refs"] {
            fs::create_dir_all(at.join(name)).unwrap();
        }
        fs::write(at.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    }

    #[test]
    fn git_directories_in_the_workspace_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let directory = fs::canonicalize(directory.path()).unwrap();
        let root = &directory.join("workspace");
        fs::create_dir(root).unwrap();
        assert!(found(root).is_empty());

        let of = |path: &str, is_worktree| (path.to_owned(), is_worktree);
        let absolute = format!("gitdir: {}/.gd\n", root.display());
        for (content, expected) in [
            ("gitdir: ./.gd\n", vec![of(".gd", false)]),
            ("gitdir: x/../../workspace/.gd", vec![of(".gd", false)]),
            (&absolute, vec![of(".gd", false)]),
            ("gitdir: .\r\n", vec![of("", false)]),
            ("gitdir: ../elsewhere\n", vec![]),
            ("gitdir:.gd\n", vec![]),
            ("gitdir: \n", vec![]),
            ("", vec![]),
        ] {
            fs::write(root.join(".git"), content).unwrap();
            assert_eq!(found(root), expected, "{content:?}");
        }

        // A worktree of a repository in the workspace.
        let worktree = root.join("main/.git/worktrees/w");
        fs::create_dir_all(&worktree).unwrap();
        fs::write(worktree.join("commondir"), "../..\n").unwrap();
        fs::write(root.join(".git"), "gitdir: main/.git/worktrees/w\n").unwrap();
        let expected = [of("main/.git/worktrees/w", true), of("main/.git", false)];
        assert_eq!(found(root), expected);
    }

    #[test]
    fn a_bare_repository_is_found_without_dot_git() {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        repository(&root);
        assert_eq!(found(&root), [(String::new(), false)]);
        fs::create_dir(root.join(".git")).unwrap();
        assert_eq!(found(&root), [(".git".to_owned(), false), (String::new(), false)]);
        repository(&root.join(".git"));
        assert_eq!(found(&root), [(".git".to_owned(), false)]);
    }

    #[test]
    fn a_git_directory_behind_a_symbolic_link_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        fs::create_dir(root.join("real")).unwrap();
        symlink("real", root.join("link")).unwrap();
        fs::write(root.join(".git"), "gitdir: link\n").unwrap();
        assert!(find(&root).unwrap_err().contains("symbolic link"));
    }
}
