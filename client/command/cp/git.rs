//! Detects files that git and other version control tools act on automatically.
//!
//! The configuration of a repository names programs that these tools run, even for `git status`,
//! which shell prompts and editors call by themselves. So a copy creates no repository without
//! `--with-git`.
//!
//! The names are those of git's `verify_path`, `is_hfs_dotgit` and `is_ntfs_dotgit`, and other
//! names that a case-folding file system treats as equal. The directories are those of git's
//! `is_git_directory`.

use std::{
    borrow::Cow,
    fs,
    io::{self, ErrorKind},
    path::{Component, Path, PathBuf},
};

use super::{copy_log::SkipReason, options::base_name};
use crate::local_error::LocalError;

/// Maximum number of dangling links that [`resolve`] follows, as in the kernel.
const MAX_DANGLING_LINKS: u32 = 40;
/// Folded repository names of other tools whose configuration names programs: hooks and extensions
/// of Mercurial and Sapling, the pager and diff program of Jujutsu, `post_commit` of Bazaar and
/// Breezy, hooks of Pijul and Darcs, settings of Fossil. Subversion's `.svn` names none.
const OTHER_VCS_NAMES: &[&str] =
    &[".HG", ".SL", ".JJ", ".BZR", ".PIJUL", "_DARCS", ".FSLCKOUT", "_FOSSIL_"];

/// Returns the reason to skip a name that a file system or a tool may take for a repository.
pub(super) fn skip_reason(name: &str) -> Option<SkipReason> {
    // Windows clients, and mounts of their file systems, treat a backslash as a separator.
    name.split('\\').find_map(|part| match fold_name(part).as_str() {
        ".GIT" | "GIT~1" => Some(SkipReason::GitName),
        part if OTHER_VCS_NAMES.iter().any(|other| matches_short_name(part, other)) => {
            Some(SkipReason::VcsName)
        }
        _ => None,
    })
}

/// Returns whether a folded name is that of a repository, or its short name on Windows.
fn matches_short_name(name: &str, repository: &str) -> bool {
    let is_short = |long: &str| {
        let start = &long[..long.len().min(6)];
        name.strip_suffix("~1") == Some(start)
    };
    name == repository || repository.strip_prefix('.').is_some_and(is_short)
}

/// Returns whether git may take a directory with these entries for a repository.
///
/// Stricter than git, which also checks the content of HEAD, and requires `objects`, which the
/// environment can place elsewhere.
pub(super) fn is_repository<'a>(names: impl IntoIterator<Item = Cow<'a, str>>) -> bool {
    let (mut has_head, mut has_refs) = (false, false);

    for name in names {
        match fold_name(&name).as_str() {
            "HEAD" => has_head = true,
            "REFS" | "COMMONDIR" => has_refs = true,
            _ => {}
        }
    }

    has_head && has_refs
}

/// Returns whether git may take a local directory for a repository once it has these entries too.
pub(super) fn becomes_repository<'a>(
    directory: &Path,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<bool, LocalError> {
    let mut all: Vec<Cow<'_, str>> = names.into_iter().map(Cow::Borrowed).collect();
    all.extend(list_names(directory)?.into_iter().map(Cow::Owned));
    Ok(is_repository(all))
}

/// Rejects a source or destination with such a name. `display_path` is its name in the error.
pub(super) fn check_name(path: &str, display_path: &str) -> Result<(), LocalError> {
    match base_name(path).and_then(skip_reason) {
        Some(reason) => Err(vcs_path_error(Path::new(display_path), &reason)),
        None => Ok(()),
    }
}

fn vcs_path_error(path: &Path, reason: &SkipReason) -> LocalError {
    LocalError::vcs_path(path, &format!("has {}", reason.message()))
}

/// Rejects a local destination in a `.git` or similar directory. Also rejects one that turns its
/// directory into a repository, by its own name or through symbolic links.
pub(super) fn check_destination(to: &Path) -> Result<(), LocalError> {
    let reason_of = |part: Component<'_>| skip_reason(&part.as_os_str().to_string_lossy());
    if let Some(reason) = to.components().find_map(reason_of) {
        return Err(vcs_path_error(to, &reason));
    }

    let resolved = resolve(to).map_err(|error| LocalError::file(to, &error))?;
    if let Some(reason) = resolved.components().find_map(reason_of) {
        let problem = format!("leads to a path that has {}", reason.message());
        return Err(LocalError::vcs_path(to, &problem));
    }

    // Checks each parent directory, with the entry that the copy may add to it.
    let mut path = resolved.as_path();
    while let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
        if parent.is_dir() && becomes_repository(parent, [&*name.to_string_lossy()])? {
            return Err(LocalError::vcs_path(
                to,
                "is in a directory that git takes for a repository",
            ));
        }
        path = parent;
    }
    Ok(())
}

/// Resolves a path whose last components may be missing.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut existing = std::path::absolute(path)?;
    let mut missing = Vec::new();
    let mut links = 0;
    let mut resolved = loop {
        let error = match fs::canonicalize(&existing) {
            Ok(resolved) => break resolved,
            Err(error) => error,
        };
        if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
            return Err(error);
        }

        let link = fs::read_link(&existing);
        let last = existing.components().next_back();
        let Some(last) = last.map(|last| last.as_os_str().to_owned()) else {
            return Err(error);
        };
        existing.pop();

        match link {
            // A dangling link: a program that opens it creates its target.
            Ok(target) if links < MAX_DANGLING_LINKS => {
                links += 1;
                existing.push(target);
            }
            Ok(_) => return Err(error),
            Err(_) => missing.push(last),
        }
    };

    // A missing component is not a link, so `..` after it is lexical. What follows may be a link.
    let mut has_parent_dir = false;
    for name in missing.iter().rev() {
        if name == ".." {
            has_parent_dir = true;
            resolved.pop();
        } else {
            resolved.push(name);
        }
    }
    if has_parent_dir { resolve(&resolved) } else { Ok(resolved) }
}

/// Lists the entries of a local directory. A missing directory has none.
///
/// A directory without read permission (mode 0711, such as another user's home) counts as empty:
/// its owner's choice.
fn list_names(directory: &Path) -> Result<Vec<String>, LocalError> {
    let list = || -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(directory) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
            {
                return Ok(Vec::new());
            }
            entries => entries?,
        };
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        entries.map(|entry| entry.map(name)).collect()
    };
    list().map_err(|error| LocalError::file(directory, &error))
}

/// Folds a name as case-insensitive file systems do.
///
/// Some of them also skip invisible characters, or end a name before trailing blanks, dots or a
/// colon.
fn fold_name(name: &str) -> String {
    let visible = name.chars().filter(|character| !is_ignorable(*character));
    let upper: String = visible.flat_map(char::to_uppercase).collect();
    let end = upper.find(':').unwrap_or(upper.len());
    upper[..end].trim_end_matches(['.', ' ']).to_owned()
}

/// Unicode's `Default_Ignorable_Code_Point`, which includes everything that HFS+ ignores.
fn is_ignorable(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn variants_of_dot_git_are_skipped() {
        for name in [
            ".git",
            ".GIT",
            ".Git",
            "git~1",
            "GIT~1",
            "git~1.",
            ".git.",
            ".git . .",
            ".git ",
            ".git::$INDEX_ALLOCATION",
            ".git:x",
            ".git . :x",
            ".g\u{200c}it",
            "\u{feff}.git",
            ".git\u{202e}",
            ".gi\u{206f}T",
            ".g\u{ad}it",
            ".g\u{fe0f}it",
            ".g\u{131}t",
            "x\\.git",
            ".git\\config",
        ] {
            let reason = skip_reason(name);
            assert!(matches!(reason, Some(SkipReason::GitName)), "{name:?}: {reason:?}");
        }
        for name in [
            "",
            ".",
            "..",
            "git",
            ".gitignore",
            ".gitmodules",
            ".git~1",
            "git~2",
            "git~10",
            "a.git",
            ". git",
            " .git",
            ".git-x",
            ":.git",
        ] {
            let reason = skip_reason(name);
            assert!(reason.is_none(), "{name:?}: {reason:?}");
        }
    }

    #[test]
    fn repositories_of_other_tools_are_skipped() {
        for name in [
            ".hg",
            ".HG. ",
            "hg~1",
            ".Jj",
            "JJ~1",
            ".bzr",
            ".sl:x",
            ".pi\u{200c}jul",
            "PIJUL~1",
            "_Darcs",
            ".fslckout",
            "FSLCKO~1",
            "_fossil_",
            "x\\.hg",
        ] {
            let reason = skip_reason(name);
            assert!(matches!(reason, Some(SkipReason::VcsName)), "{name:?}: {reason:?}");
        }
        for name in [
            ".hgignore",
            ".hgtags",
            "hg",
            "hg~2",
            ".svn",
            "SVN~1",
            "darcs",
            "_darcs~1",
            "FSLCKOUT~1",
        ] {
            let reason = skip_reason(name);
            assert!(reason.is_none(), "{name:?}: {reason:?}");
        }
    }

    #[test]
    fn repositories_are_recognized_by_their_entries() {
        let is = |names: &[&'static str]| is_repository(names.iter().copied().map(Cow::Borrowed));
        for names in [
            &["HEAD", "objects", "refs"][..],
            &["refs", "x", "HEAD"],
            &["head", "OBJECTS", "Refs"],
            &["HEAD", "commondir"],
            &["HEAD.", "re\u{17f}s", "ref\u{17f}"],
            &["H\u{200d}EAD", "CommonDir "],
        ] {
            assert!(is(names), "{names:?}");
        }
        for names in [
            &[][..],
            &["HEAD"],
            &["refs", "objects", "config"],
            &["HEAD.md", "refs"],
            &["HEAD", "references"],
        ] {
            assert!(!is(names), "{names:?}");
        }
    }

    #[test]
    fn destinations_in_a_repository_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path_of = |name: &str| directory.path().join(name);
        fs::create_dir_all(path_of("bare/refs/heads")).unwrap();
        fs::create_dir(path_of("half")).unwrap();
        fs::write(path_of("bare/HEAD"), "").unwrap();
        fs::write(path_of("half/HEAD"), "").unwrap();
        for name in [
            ".git",
            "x/.GIT/config",
            "bare/config",
            "bare/hooks/x",
            "bare/refs/heads/x",
            "half/refs",
            "half/refs/heads/x",
            "half/commondir",
        ] {
            assert!(check_destination(&path_of(name)).is_err(), "{name}");
        }
        for name in ["x", "x/y", "half/objects", "half/x/refs"] {
            assert_eq!(check_destination(&path_of(name)), Ok(()), "{name}");
        }
    }

    #[test]
    fn links_into_a_repository_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path_of = |name: &str| directory.path().join(name);
        fs::create_dir_all(path_of("r/.git/hooks")).unwrap();
        fs::create_dir_all(path_of("bare/refs")).unwrap();
        fs::create_dir_all(path_of("plain/sub")).unwrap();
        fs::write(path_of("bare/HEAD"), "").unwrap();
        for (target, link) in [
            ("r/.git/hooks", "hooks"),
            ("hooks", "chain"),
            ("r/.git/hooks/new", "dangling"),
            ("dangling", "dangling chain"),
            ("bare", "copy"),
            ("bare/refs", "refs"),
            ("plain/sub", "sub"),
            ("plain/new", "free"),
            ("loop", "loop"),
        ] {
            symlink(target, path_of(link)).unwrap();
        }
        for name in [
            "hooks",
            "hooks/x",
            "hooks/x/y",
            "chain/x",
            "dangling",
            "dangling chain",
            "copy/x",
            "refs/heads/x",
            "refs/../x",
            "new/../hooks/x",
            "loop",
        ] {
            assert!(check_destination(&path_of(name)).is_err(), "{name}");
        }
        for name in ["sub", "sub/x", "sub/../x", "free", "new/../x"] {
            assert_eq!(check_destination(&path_of(name)), Ok(()), "{name}");
        }
    }
}
