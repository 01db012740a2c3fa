//! Applies `.gitignore`, `.ignore`, `.rgignore` and `.git/info/exclude`.
//!
//! The patterns are those of gitignore(5), matched by ripgrep's engine. The files are read here,
//! through directory descriptors. Precedence is that of ripgrep: any `.rgignore` over every
//! `.ignore`, that over every `.gitignore`, and a deeper file over one above it. `.gitignore` and
//! `.git/info/exclude` apply only within a repository: in and below a directory with a `.git`, up
//! to the next one. Symbolic links are not followed, as in git.

mod patterns;

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::{pread, retry_on_intr};

use self::patterns::IgnorePatterns;
use super::{
    cancel::CancelToken,
    directory::SpecialEntries,
    file::reopen,
    os_error::{ExpectedKind, os_error},
    resolve::open_entry,
};
use crate::daemon::{error::Error, sys::Errno};

/// Size of all files that apply to one directory. Parsed, they take up to 100 MiB.
const MAX_IGNORE_BYTES: usize = 8 << 20;
/// Size of their lines with wildcards. Compiled, these take up to 120 MiB and half a second. Large
/// projects have about ten kilobytes.
const MAX_WILDCARD_BYTES: usize = 256 << 10;

/// The ignore files from the workspace down to the current directory.
#[derive(Debug, Default)]
pub(super) struct IgnoreFiles {
    layers: Vec<IgnoreLayer>,
    truncated_files: u32,
}

/// The ignore files of one directory.
#[derive(Debug)]
struct IgnoreLayer {
    /// Length of the directory's path with its final slash. Patterns match the rest of a path.
    prefix: usize,
    rgignore: IgnorePatterns,
    ignore: IgnorePatterns,
    gitignore: IgnorePatterns,
    exclude: IgnorePatterns,
    is_repository: bool,
    /// Budget left for the directories below.
    budget: IgnoreBudget,
}

/// Memory left for ignore files.
#[derive(Debug, Clone, Copy)]
struct IgnoreBudget {
    bytes: usize,
    compiled_bytes: usize,
}

impl IgnoreFiles {
    /// Number of directories with ignore files.
    pub(super) fn len(&self) -> usize {
        self.layers.len()
    }

    /// Leaves directories until `len` of them are left.
    pub(super) fn truncate(&mut self, len: usize) {
        self.layers.truncate(len);
    }

    /// Number of files so far that exceeded the budget and were applied only in part.
    pub(super) fn truncated_files(&self) -> u32 {
        self.truncated_files
    }

    /// Reads the ignore files of `directory`. `path` is its path: empty, or with a final slash.
    pub(super) fn enter(
        &mut self,
        directory: BorrowedFd<'_>,
        path: &[u8],
        entries: SpecialEntries,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        if entries == SpecialEntries::default() {
            return Ok(());
        }
        let mut budget = self.layers.last().map_or(IgnoreBudget::FULL, |layer| layer.budget);
        let mut read = |present: bool, names: &[&[u8]]| {
            if !present {
                return Ok(IgnorePatterns::default());
            }
            let (content, is_cut) = match read_up_to(directory, names, budget.bytes) {
                Ok(content) => content,
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::IO)) => {
                    let path = [path, &names.join(&b'/')].concat();
                    let path = String::from_utf8_lossy(&path);
                    return Err(os_error(errno, &path, ExpectedKind::File));
                }
                // An unreadable file is ignored.
                Err(_) => return Ok(IgnorePatterns::default()),
            };
            budget.bytes -= content.len();
            let patterns = IgnorePatterns::parse(content, budget.compiled_bytes, cancel)?;
            budget.compiled_bytes -= patterns.wildcard_bytes;
            self.truncated_files =
                self.truncated_files.saturating_add((is_cut || patterns.is_truncated).into());
            Ok(patterns)
        };

        let layer = IgnoreLayer {
            prefix: path.len(),
            rgignore: read(entries.rgignore, &[b".rgignore"])?,
            ignore: read(entries.ignore, &[b".ignore"])?,
            gitignore: read(entries.gitignore, &[b".gitignore"])?,
            exclude: read(entries.git, &[b".git", b"info", b"exclude"])?,
            is_repository: entries.git,
            budget,
        };
        self.layers.push(layer);
        Ok(())
    }

    /// Whether the file or directory at `path` is ignored. `None` if no pattern matches. The caller
    /// has checked the directories above it.
    pub(super) fn is_ignored(&self, path: &[u8], is_directory: bool) -> Option<bool> {
        let in_repository = self.layers.iter().any(|layer| layer.is_repository);
        let mut is_outside = !in_repository;
        let (mut ignore, mut gitignore, mut exclude) = (None, None, None);
        for layer in self.layers.iter().rev() {
            let relative = &path[layer.prefix..];
            if let Some(decision) = layer.rgignore.is_ignored(relative, is_directory) {
                return Some(decision);
            }
            ignore = ignore.or_else(|| layer.ignore.is_ignored(relative, is_directory));
            if !is_outside {
                gitignore =
                    gitignore.or_else(|| layer.gitignore.is_ignored(relative, is_directory));
                exclude = exclude.or_else(|| layer.exclude.is_ignored(relative, is_directory));
            }
            is_outside |= layer.is_repository;
        }
        ignore.or(gitignore).or(exclude)
    }
}

impl IgnoreBudget {
    const FULL: Self = Self { bytes: MAX_IGNORE_BYTES, compiled_bytes: MAX_WILDCARD_BYTES };
}

/// Reads a file, given by the names on its path, up to `max_bytes`. Returns whole lines only, and
/// whether the file is larger.
fn read_up_to(
    directory: BorrowedFd<'_>,
    names: &[&[u8]],
    max_bytes: usize,
) -> Result<(Vec<u8>, bool), Errno> {
    let mut handle: Option<OwnedFd> = None;
    for name in names {
        let parent = handle.as_ref().map_or(directory, |handle| handle.as_fd());
        handle = Some(open_entry(parent, name)?);
    }
    let handle = handle.ok_or(Errno::NOENT)?;
    let (file, stat) = reopen(handle.as_fd())?.map_err(|_kind| Errno::NOENT)?;

    let size = usize::try_from(stat.st_size).unwrap_or(0);
    let mut content = vec![0; size.min(max_bytes) + 1];
    let mut length = 0;
    while length < content.len() {
        let offset = length as u64;
        match retry_on_intr(|| pread(&file, &mut content[length..], offset))? {
            0 => break,
            read => length += read,
        }
    }

    content.truncate(length);
    let is_cut = length > max_bytes;
    if is_cut {
        let end = memchr::memrchr(b'\n', &content).map_or(0, |end| end + 1);
        content.truncate(end.min(max_bytes));
    }
    Ok((content, is_cut))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Whether `path` is ignored under the given files, after entering all directories above it.
    fn is_ignored_under(files: &[(&str, &str)], path: &str) -> bool {
        let directory = tempfile::tempdir().unwrap();
        let at = |path: &str| directory.path().join(path);
        fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        for (name, content) in files {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), content).unwrap();
        }

        let mut rules = IgnoreFiles::default();
        let mut prefix = String::new();
        for name in std::iter::once("").chain(path.split('/')) {
            if !name.is_empty() {
                let is_directory = path.len() > prefix.len() + name.len();
                let entry = format!("{prefix}{name}");
                if rules.is_ignored(entry.as_bytes(), is_directory) == Some(true) {
                    return true;
                }
                if !is_directory {
                    return false;
                }
                prefix = format!("{entry}/");
            }

            let current = at(&prefix);
            let entries = SpecialEntries {
                git: current.join(".git").exists(),
                gitignore: current.join(".gitignore").exists(),
                ignore: current.join(".ignore").exists(),
                rgignore: current.join(".rgignore").exists(),
            };
            let open = fs::File::open(&current).unwrap();
            rules.enter(open.as_fd(), prefix.as_bytes(), entries, &CancelToken::new()).unwrap();
        }
        panic!("{path} has no last component");
    }

    #[test]
    fn precedence_is_that_of_ripgrep() {
        const REPOSITORY: (&str, &str) = (".git/HEAD", "");
        for (files, path, expected) in [
            // Without a repository, only .ignore applies, not .gitignore.
            (&[(".gitignore", "x")][..], "x", false),
            (&[(".ignore", "x")], "x", true),
            (&[(".rgignore", "x"), (".ignore", "!x")], "a/x", true),
            (&[(".rgignore", "!x"), ("a/.ignore", "x")], "a/x", false),
            (&[REPOSITORY, (".gitignore", "x")], "x", true),
            (&[REPOSITORY, (".gitignore", "x")], "a/b/x", true),
            (&[REPOSITORY, (".gitignore", "/x")], "a/x", false),
            (&[REPOSITORY, (".gitignore", "a/x")], "a/x", true),
            (&[REPOSITORY, (".gitignore", "a/x")], "b/a/x", false),
            (&[REPOSITORY, ("a/.gitignore", "/x")], "a/x", true),
            (&[REPOSITORY, ("a/.gitignore", "b/x")], "a/b/x", true),
            (&[REPOSITORY, ("a/.gitignore", "x")], "x", false),
            (&[REPOSITORY, (".gitignore", "x/")], "x", false),
            (&[REPOSITORY, (".gitignore", "x/")], "x/y", true),
            (&[REPOSITORY, (".gitignore", "**/x/**")], "a/x/y/z", true),
            (&[REPOSITORY, (".gitignore", "*.log\n!keep.log")], "keep.log", false),
            (&[REPOSITORY, (".gitignore", "!keep.log\n*.log")], "keep.log", true),
            (&[REPOSITORY, (".gitignore", "*.log"), ("a/.gitignore", "!*.log")], "a/b.log", false),
            (&[REPOSITORY, (".gitignore", "!*.log"), ("a/.gitignore", "*.log")], "a/b.log", true),
            // A file in an ignored directory cannot be included again.
            (&[REPOSITORY, (".gitignore", "a/\n!a/x")], "a/x", true),
            (&[REPOSITORY, (".gitignore", "a/*\n!a/x")], "a/x", false),
            // .ignore over .gitignore, whatever the depth; .gitignore over exclude.
            (&[REPOSITORY, (".gitignore", "x"), (".ignore", "!x")], "x", false),
            (&[REPOSITORY, ("a/.gitignore", "!x"), (".ignore", "x")], "a/x", true),
            (&[(".git/info/exclude", "x")], "x", true),
            (&[(".git/info/exclude", "/x")], "a/x", false),
            (&[(".git/info/exclude", "x"), (".gitignore", "!x")], "x", false),
            // A nested repository has its own rules. A repository below a plain directory applies
            // from there on.
            (&[REPOSITORY, (".gitignore", "x"), ("a/.git/HEAD", "")], "a/x", false),
            (&[REPOSITORY, (".ignore", "x"), ("a/.git/HEAD", "")], "a/x", true),
            (&[("a/.git/HEAD", ""), (".gitignore", "x")], "a/x", false),
            (&[("a/.git", "gitdir: ../b"), ("a/.gitignore", "x")], "a/x", true),
            // Parsing of lines.
            (&[(".ignore", "\u{feff}x\r\ny\r\n")], "x", true),
            (&[(".ignore", "\u{feff}x\r\ny\r\n")], "y", true),
            (&[(".ignore", "#x")], "#x", false),
            (&[(".ignore", "\\#x")], "#x", true),
            (&[(".ignore", "x   ")], "x", true),
            (&[(".ignore", "a[\nx")], "x", true),
            (&[(".ignore", "\u{202e}\u{1f600}")], "\u{202e}\u{1f600}", true),
        ] {
            assert_eq!(is_ignored_under(files, path), expected, "{files:?} {path}");
        }
    }

    #[test]
    fn oversized_files_are_truncated_and_unreadable_files_are_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let entries = SpecialEntries {
            ignore: true,
            gitignore: true,
            git: true,
            ..SpecialEntries::default()
        };
        let enter = || {
            let open = fs::File::open(directory.path()).unwrap();
            let mut rules = IgnoreFiles::default();
            rules.enter(open.as_fd(), b"", entries, &CancelToken::new()).map(|()| rules).unwrap()
        };
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at(".gitignore")).unwrap();
        std::os::unix::fs::symlink("elsewhere", at(".ignore")).unwrap();
        fs::write(at("elsewhere"), "*").unwrap();
        let rules = enter();
        assert_eq!(rules.len(), 1);
        assert_eq!((rules.is_ignored(b"x", false), rules.truncated_files()), (None, 0));

        fs::remove_file(at(".ignore")).unwrap();
        fs::write(at(".ignore"), b"\xff\nx").unwrap();
        assert_eq!(enter().is_ignored(b"x", false), Some(true));

        fs::remove_dir(at(".gitignore")).unwrap();
        fs::create_dir_all(at(".git/info")).unwrap();
        // Only whole lines are read: a part of a line is another pattern.
        let comment = format!("#{}", "-".repeat(MAX_IGNORE_BYTES - 8));
        for (tail, truncated, expected) in [
            ("\nx\nyyy\n", 0, [Some(true), None, Some(true)]),
            ("\nx\nyyyy\n", 2, [Some(true), None, None]),
            ("\nx\nyyy\nyy\n", 2, [Some(true), None, Some(true)]),
        ] {
            fs::write(at(".ignore"), format!("{comment}{tail}")).unwrap();
            fs::write(at(".gitignore"), "z\n").unwrap();
            let rules = enter();
            // A truncated file leaves no budget for other files.
            assert_eq!(rules.truncated_files(), truncated.max(1), "{tail:?}");
            let decisions =
                [b"x".as_slice(), b"yy", b"yyy"].map(|path| rules.is_ignored(path, false));
            assert_eq!(decisions, expected, "{tail:?}");
            assert_eq!(rules.is_ignored(b"z", false), None);
        }
        let wild = format!("*{}\n", "x".repeat(1 << 16)).repeat(5);
        fs::write(at(".ignore"), wild + "x\n").unwrap();
        let rules = enter();
        assert_eq!((rules.truncated_files(), rules.is_ignored(b"x", false)), (1, Some(true)));
        assert_eq!(rules.is_ignored(b"z", false), Some(true));
    }
}
