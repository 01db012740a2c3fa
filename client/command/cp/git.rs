//! What git and other version control tools act on without being asked. The configuration of a
//! repository names programs that they run, also for `git status`, which shell prompts and editors
//! call by themselves. So a copy makes no repository unless `--with-git` insists.
//!
//! The names are those of `verify_path`, `is_hfs_dotgit` and `is_ntfs_dotgit` of git, and what else a
//! file system that folds names takes for them. The directories are those of `is_git_directory`.

use std::{
    borrow::Cow,
    fs,
    io::{self, ErrorKind},
    path::{Component, Path, PathBuf},
};

use super::{copy_log::SkipReason, options::base_name};
use crate::local_error::LocalError;

/// Dangling links that [`resolve`] follows, as many as the kernel does.
const MAX_LINKS: u32 = 40;
/// Names of repositories and checkouts of other tools whose configuration names programs, folded:
/// hooks and extensions of Mercurial and Sapling, the pager and the diff program of Jujutsu,
/// `post_commit` of Bazaar and Breezy, hooks of Pijul and Darcs, settings of Fossil. The `.svn` of
/// Subversion names none.
const OTHER_VCS_NAMES: &[&str] =
    &[".HG", ".SL", ".JJ", ".BZR", ".PIJUL", "_DARCS", ".FSLCKOUT", "_FOSSIL_"];

/// Why something of this name is left out: some file system, or the tool itself, takes it for the
/// repository of a version control tool.
pub(super) fn skip_reason(name: &str) -> Option<SkipReason> {
    // A Windows client, or a mount of its file system, takes a backslash for a separator.
    name.split('\\').find_map(|part| match fold_name(part).as_str() {
        ".GIT" | "GIT~1" => Some(SkipReason::GitName),
        part if OTHER_VCS_NAMES.iter().any(|other| matches_short_name(part, other)) => {
            Some(SkipReason::VcsName)
        }
        _ => None,
    })
}

/// Whether the folded name is that of a repository, or the short one that Windows gives to it.
fn matches_short_name(name: &str, repository: &str) -> bool {
    let is_short = |long: &str| {
        let start = &long[..long.len().min(6)];
        name.strip_suffix("~1") == Some(start)
    };
    name == repository || repository.strip_prefix('.').is_some_and(is_short)
}

/// Whether git may take a directory with these names for a repository. Stricter than git, which also
/// looks at what HEAD holds, and for `objects`, which the environment can place elsewhere.
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

/// Whether git may take the local directory for a repository once these names are in it as well.
pub(super) fn becomes_repository<'a>(
    directory: &Path,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<bool, LocalError> {
    let mut all: Vec<Cow<'_, str>> = names.into_iter().map(Cow::Borrowed).collect();
    all.extend(list_names(directory)?.into_iter().map(Cow::Owned));
    Ok(is_repository(all))
}

/// Refuses a source or destination of this name. `shown` is for the error.
pub(super) fn check_name(path: &str, shown: &str) -> Result<(), LocalError> {
    match base_name(path).and_then(skip_reason) {
        Some(why) => Err(vcs_path_error(Path::new(shown), &why)),
        None => Ok(()),
    }
}

fn vcs_path_error(path: &Path, why: &SkipReason) -> LocalError {
    LocalError::vcs_path(path, &format!("has {}", why.message()))
}

/// Refuses a local destination that is in a `.git` or the like, or that makes a repository of the
/// directory that it is put into, by its own name or through symbolic links.
pub(super) fn check_destination(to: &Path) -> Result<(), LocalError> {
    let reason = |part: Component<'_>| skip_reason(&part.as_os_str().to_string_lossy());
    if let Some(why) = to.components().find_map(reason) {
        return Err(vcs_path_error(to, &why));
    }
    let resolved = resolve(to).map_err(|error| LocalError::file(to, &error))?;
    if let Some(why) = resolved.components().find_map(reason) {
        let problem = format!("leads to a path that has {}", why.message());
        return Err(LocalError::vcs_path(to, &problem));
    }
    // Each directory above it, with the name below that the copy may add to it.
    let mut path = resolved.as_path();
    while let (Some(above), Some(name)) = (path.parent(), path.file_name()) {
        if above.is_dir() && becomes_repository(above, [&*name.to_string_lossy()])? {
            return Err(LocalError::vcs_path(
                to,
                "is in a directory that git takes for a repository",
            ));
        }
        path = above;
    }
    Ok(())
}

/// Where a path leads to, of which the last parts need not exist.
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
            // It dangles: a program that opens it makes the file that it names.
            Ok(target) if links < MAX_LINKS => {
                links += 1;
                existing.push(target);
            }
            Ok(_) => return Err(error),
            Err(_) => missing.push(last),
        }
    };

    // What is missing is no link, so that `..` is what it is in the text; what follows it may be one.
    let mut leads_back = false;
    for name in missing.iter().rev() {
        if name == ".." {
            leads_back = true;
            resolved.pop();
        } else {
            resolved.push(name);
        }
    }
    if leads_back { resolve(&resolved) } else { Ok(resolved) }
}

/// Names of what is in a local directory. Nothing is in one that does not exist. One that may be
/// passed but not listed (mode 0711, such as other people's homes) is the user's own arrangement.
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

/// The name as file systems compare it that fold case, leave out what is not seen, or end a name
/// before blanks, dots and a colon.
fn fold_name(name: &str) -> String {
    let seen = name.chars().filter(|character| !is_ignorable(*character));
    let upper: String = seen.flat_map(char::to_uppercase).collect();
    let end = upper.find(':').unwrap_or(upper.len());
    upper[..end].trim_end_matches(['.', ' ']).to_owned()
}

/// `Default_Ignorable_Code_Point` of Unicode, which holds all that HFS+ leaves out.
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
    fn names_that_file_systems_take_for_dot_git() {
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
            let why = skip_reason(name);
            assert!(matches!(why, Some(SkipReason::GitName)), "{name:?}: {why:?}");
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
            let why = skip_reason(name);
            assert!(why.is_none(), "{name:?}: {why:?}");
        }
    }

    #[test]
    fn names_of_other_tools() {
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
            let why = skip_reason(name);
            assert!(matches!(why, Some(SkipReason::VcsName)), "{name:?}: {why:?}");
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
            let why = skip_reason(name);
            assert!(why.is_none(), "{name:?}: {why:?}");
        }
    }

    #[test]
    fn directories_that_git_takes_for_a_repository() {
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
    fn destinations_in_a_repository_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("bare/refs/heads")).unwrap();
        fs::create_dir(at("half")).unwrap();
        fs::write(at("bare/HEAD"), "").unwrap();
        fs::write(at("half/HEAD"), "").unwrap();
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
            assert!(check_destination(&at(name)).is_err(), "{name}");
        }
        for name in ["x", "x/y", "half/objects", "half/x/refs"] {
            assert_eq!(check_destination(&at(name)), Ok(()), "{name}");
        }
    }

    #[test]
    fn links_into_a_repository_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("r/.git/hooks")).unwrap();
        fs::create_dir_all(at("bare/refs")).unwrap();
        fs::create_dir_all(at("plain/sub")).unwrap();
        fs::write(at("bare/HEAD"), "").unwrap();
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
            symlink(target, at(link)).unwrap();
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
            assert!(check_destination(&at(name)).is_err(), "{name}");
        }
        for name in ["sub", "sub/x", "sub/../x", "free", "new/../x"] {
            assert_eq!(check_destination(&at(name)), Ok(()), "{name}");
        }
    }
}
