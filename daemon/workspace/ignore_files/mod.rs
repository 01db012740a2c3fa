//! What `.gitignore`, `.ignore`, `.rgignore` and `.git/info/exclude` leave out.
//!
//! The patterns are those of gitignore(5), understood by ripgrep's matcher; the files are read
//! here, through directory descriptors. As in ripgrep, a `.rgignore` anywhere on the way has
//! precedence over every `.ignore`, that over every `.gitignore`, a deeper file over one above it,
//! and `.gitignore` and
//! `.git/info/exclude` count within a repository only: in or below a directory with a `.git`, and
//! not beyond the next one. Links are not followed, as git does not follow them.

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

/// Most bytes of the files that count for one directory, together; with what is known of their
/// lines, they take up to 100 MiB.
const MAX_IGNORE_BYTES: usize = 8 << 20;
/// Most bytes of the lines with wildcards among these. Compiled, they take up to 120 MiB and half a
/// second; large projects have some ten kilobytes.
const MAX_WILDCARD_BYTES: usize = 256 << 10;

/// The files on the way from the workspace to a directory.
#[derive(Debug, Default)]
pub(super) struct IgnoreFiles {
    layers: Vec<IgnoreLayer>,
    truncated_files: u32,
}

/// The files of one directory.
#[derive(Debug)]
struct IgnoreLayer {
    /// Length of the directory's path with its final slash: patterns see what comes after it.
    prefix: usize,
    rgignore: IgnorePatterns,
    ignore: IgnorePatterns,
    gitignore: IgnorePatterns,
    exclude: IgnorePatterns,
    is_repository: bool,
    /// What of the files that count for the directories below may still be held.
    budget: IgnoreBudget,
}

/// Bytes that may still be held.
#[derive(Debug, Clone, Copy)]
struct IgnoreBudget {
    bytes: usize,
    compiled_bytes: usize,
}

impl IgnoreFiles {
    /// How many directories count.
    pub(super) fn len(&self) -> usize {
        self.layers.len()
    }

    /// Goes back up until `len` directories count.
    pub(super) fn truncate(&mut self, len: usize) {
        self.layers.truncate(len);
    }

    /// Files so far of which a part did not count, as there was no room for it.
    pub(super) fn truncated_files(&self) -> u32 {
        self.truncated_files
    }

    /// Reads the files of `directory`, whose path is `path`, empty or with a final slash.
    pub(super) fn enter(
        &mut self,
        directory: BorrowedFd<'_>,
        path: &[u8],
        found: SpecialEntries,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        if found == SpecialEntries::default() {
            return Ok(());
        }
        let mut room = self.layers.last().map_or(IgnoreBudget::FULL, |layer| layer.budget);
        let mut read = |present: bool, names: &[&[u8]]| {
            if !present {
                return Ok(IgnorePatterns::default());
            }
            let (content, is_cut) = match read_up_to(directory, names, room.bytes) {
                Ok(content) => content,
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::IO)) => {
                    let path = [path, &names.join(&b'/')].concat();
                    let path = String::from_utf8_lossy(&path);
                    return Err(os_error(errno, &path, ExpectedKind::File));
                }
                // What cannot be read says nothing.
                Err(_) => return Ok(IgnorePatterns::default()),
            };
            room.bytes -= content.len();
            let patterns = IgnorePatterns::parse(content, room.compiled_bytes, cancel)?;
            room.compiled_bytes -= patterns.wildcard_bytes;
            self.truncated_files =
                self.truncated_files.saturating_add((is_cut || patterns.is_truncated).into());
            Ok(patterns)
        };
        let layer = IgnoreLayer {
            prefix: path.len(),
            rgignore: read(found.rgignore, &[b".rgignore"])?,
            ignore: read(found.ignore, &[b".ignore"])?,
            gitignore: read(found.gitignore, &[b".gitignore"])?,
            exclude: read(found.git, &[b".git", b"info", b"exclude"])?,
            is_repository: found.git,
            budget: room,
        };
        self.layers.push(layer);
        Ok(())
    }

    /// Whether the file or directory at `path` is left out, if anything says so or the opposite.
    /// That those above it are not is known.
    pub(super) fn is_ignored(&self, path: &[u8], is_directory: bool) -> Option<bool> {
        let in_repository = self.layers.iter().any(|layer| layer.is_repository);
        let mut beyond = !in_repository;
        let (mut ignore, mut gitignore, mut exclude) = (None, None, None);
        for layer in self.layers.iter().rev() {
            let below = &path[layer.prefix..];
            if let Some(decision) = layer.rgignore.is_ignored(below, is_directory) {
                return Some(decision);
            }
            ignore = ignore.or_else(|| layer.ignore.is_ignored(below, is_directory));
            if !beyond {
                gitignore = gitignore.or_else(|| layer.gitignore.is_ignored(below, is_directory));
                exclude = exclude.or_else(|| layer.exclude.is_ignored(below, is_directory));
            }
            beyond |= layer.is_repository;
        }
        ignore.or(gitignore).or(exclude)
    }
}

impl IgnoreBudget {
    const FULL: Self = Self { bytes: MAX_IGNORE_BYTES, compiled_bytes: MAX_WILDCARD_BYTES };
}

/// The content of a file, or as many whole lines from its start as fit into `most` bytes; and
/// whether that is not all.
fn read_up_to(
    directory: BorrowedFd<'_>,
    names: &[&[u8]],
    most: usize,
) -> Result<(Vec<u8>, bool), Errno> {
    let mut place: Option<OwnedFd> = None;
    for name in names {
        let from = place.as_ref().map_or(directory, |place| place.as_fd());
        place = Some(open_entry(from, name)?);
    }
    let place = place.ok_or(Errno::NOENT)?;
    let (file, stat) = reopen(place.as_fd())?.map_err(|_kind| Errno::NOENT)?;
    let size = usize::try_from(stat.st_size).unwrap_or(0);
    let mut content = vec![0; size.min(most) + 1];
    let mut length = 0;
    while length < content.len() {
        let offset = length as u64;
        match retry_on_intr(|| pread(&file, &mut content[length..], offset))? {
            0 => break,
            read => length += read,
        }
    }
    content.truncate(length);
    let is_cut = length > most;
    if is_cut {
        let end = memchr::memrchr(b'\n', &content).map_or(0, |end| end + 1);
        content.truncate(end.min(most));
    }
    Ok((content, is_cut))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Decides about `path` under the given files, all directories on the way entered.
    fn leaves_out(files: &[(&str, &str)], path: &str) -> bool {
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
            let here = at(&prefix);
            let found = SpecialEntries {
                git: here.join(".git").exists(),
                gitignore: here.join(".gitignore").exists(),
                ignore: here.join(".ignore").exists(),
                rgignore: here.join(".rgignore").exists(),
            };
            let open = fs::File::open(&here).unwrap();
            rules.enter(open.as_fd(), prefix.as_bytes(), found, &CancelToken::new()).unwrap();
        }
        panic!("{path} has no last component");
    }

    #[test]
    fn precedence_is_that_of_ripgrep() {
        const REPOSITORY: (&str, &str) = (".git/HEAD", "");
        for (files, path, expected) in [
            // Without a repository, .gitignore says nothing and .ignore does.
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
            // What is in a directory that is left out cannot be taken back in.
            (&[REPOSITORY, (".gitignore", "a/\n!a/x")], "a/x", true),
            (&[REPOSITORY, (".gitignore", "a/*\n!a/x")], "a/x", false),
            // .ignore over .gitignore, whatever the depth; .gitignore over exclude.
            (&[REPOSITORY, (".gitignore", "x"), (".ignore", "!x")], "x", false),
            (&[REPOSITORY, ("a/.gitignore", "!x"), (".ignore", "x")], "a/x", true),
            (&[(".git/info/exclude", "x")], "x", true),
            (&[(".git/info/exclude", "/x")], "a/x", false),
            (&[(".git/info/exclude", "x"), (".gitignore", "!x")], "x", false),
            // A repository within another has its own rules; one below a plain directory counts
            // from there on.
            (&[REPOSITORY, (".gitignore", "x"), ("a/.git/HEAD", "")], "a/x", false),
            (&[REPOSITORY, (".ignore", "x"), ("a/.git/HEAD", "")], "a/x", true),
            (&[("a/.git/HEAD", ""), (".gitignore", "x")], "a/x", false),
            (&[("a/.git", "gitdir: ../b"), ("a/.gitignore", "x")], "a/x", true),
            // How lines are read.
            (&[(".ignore", "\u{feff}x\r\ny\r\n")], "x", true),
            (&[(".ignore", "\u{feff}x\r\ny\r\n")], "y", true),
            (&[(".ignore", "#x")], "#x", false),
            (&[(".ignore", "\\#x")], "#x", true),
            (&[(".ignore", "x   ")], "x", true),
            (&[(".ignore", "a[\nx")], "x", true),
            (&[(".ignore", "\u{202e}\u{1f600}")], "\u{202e}\u{1f600}", true),
        ] {
            assert_eq!(leaves_out(files, path), expected, "{files:?} {path}");
        }
    }

    #[test]
    fn what_is_too_large_is_cut_and_what_cannot_be_read_says_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let found = SpecialEntries {
            ignore: true,
            gitignore: true,
            git: true,
            ..SpecialEntries::default()
        };
        let enter = || {
            let open = fs::File::open(directory.path()).unwrap();
            let mut rules = IgnoreFiles::default();
            rules.enter(open.as_fd(), b"", found, &CancelToken::new()).map(|()| rules).unwrap()
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
        // Whole lines as far as there is room for them: what is left of a line is another pattern.
        let comment = format!("#{}", "-".repeat(MAX_IGNORE_BYTES - 8));
        for (tail, cut, expected) in [
            ("\nx\nyyy\n", 0, [Some(true), None, Some(true)]),
            ("\nx\nyyyy\n", 2, [Some(true), None, None]),
            ("\nx\nyyy\nyy\n", 2, [Some(true), None, Some(true)]),
        ] {
            fs::write(at(".ignore"), format!("{comment}{tail}")).unwrap();
            fs::write(at(".gitignore"), "z\n").unwrap();
            let rules = enter();
            // Then there is room for no other file.
            assert_eq!(rules.truncated_files(), cut.max(1), "{tail:?}");
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
