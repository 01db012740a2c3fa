//! What `.gitignore`, `.ignore` and `.git/info/exclude` leave out.
//!
//! The patterns are those of gitignore(5), understood by ripgrep's matcher; the files are read
//! here, through directory descriptors. As in ripgrep, a `.ignore` anywhere on the way has
//! precedence over every `.gitignore`, a deeper file over one above it, and `.gitignore` and
//! `.git/info/exclude` count within a repository only: in or below a directory with a `.git`, and
//! not beyond the next one. Links are not followed, as git does not follow them.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use rustix::io::{pread, retry_on_intr};

use super::{beneath::open_name, directory::Found, file::reopen, stop::Stop};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Most bytes of the files that count for one directory, together. Compiled, patterns can take up
/// 250 times as much; large projects have some ten kilobytes.
const BYTES: usize = 256 << 10;
/// Lines that are compiled at once, and between two looks at the time. All lines of a large file
/// together would be too large for the matcher.
const LINES_TOGETHER: usize = 256;

/// The files on the way from the workspace to a directory.
#[derive(Debug, Default)]
pub(super) struct IgnoreFiles {
    layers: Vec<Layer>,
}

/// Patterns of one file, in its order, [`LINES_TOGETHER`] compiled at once.
type Patterns = Vec<Gitignore>;

/// The files of one directory.
#[derive(Debug)]
struct Layer {
    /// Length of the directory's path with its final slash: patterns see what comes after it.
    prefix: usize,
    ignore: Patterns,
    gitignore: Patterns,
    exclude: Patterns,
    is_repository: bool,
    bytes: usize,
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

    /// Reads the files of `directory`, whose path is `path`, empty or with a final slash.
    pub(super) fn enter(
        &mut self,
        directory: BorrowedFd<'_>,
        path: &[u8],
        found: Found,
        stop: &Stop,
    ) -> Result<(), Error> {
        if found == Found::default() {
            return Ok(());
        }
        let before: usize = self.layers.iter().map(|layer| layer.bytes).sum();
        let mut bytes = before;
        let mut read = |present: bool, names: &[&[u8]]| {
            if !present {
                return Ok(Patterns::new());
            }
            let shown =
                || String::from_utf8_lossy(&[path, &names.join(&b'/')].concat()).into_owned();
            let content = match content(directory, names) {
                Ok(content) => content,
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::IO)) => {
                    let wanted = super::failure::Wanted::File;
                    return Err(super::failure::failure(errno, &shown(), wanted));
                }
                // What cannot be read says nothing.
                Err(_) => return Ok(Patterns::new()),
            };
            bytes += content.len();
            if bytes > BYTES {
                let message = format!(
                    "{:?}, with the ignore files above it, is over 256 KiB: leave ignore files out of account",
                    shown()
                );
                return Err(Error::new(Reason::ResourceExhausted, message).with("path", shown()));
            }
            compile(&content, stop)
        };
        let layer = Layer {
            prefix: path.len(),
            ignore: read(found.ignore, &[b".ignore"])?,
            gitignore: read(found.gitignore, &[b".gitignore"])?,
            exclude: read(found.git, &[b".git", b"info", b"exclude"])?,
            is_repository: found.git,
            bytes: bytes - before,
        };
        self.layers.push(layer);
        Ok(())
    }

    /// Whether the file or directory at `path` is left out, if anything says so or the opposite.
    /// That those above it are not is known.
    pub(super) fn decide(&self, path: &[u8], is_directory: bool) -> Option<bool> {
        let in_repository = self.layers.iter().any(|layer| layer.is_repository);
        let mut beyond = !in_repository;
        let (mut gitignore, mut exclude) = (None, None);
        for layer in self.layers.iter().rev() {
            let below = Path::new(OsStr::from_bytes(&path[layer.prefix..]));
            if let Some(decision) = decision(&layer.ignore, below, is_directory) {
                return Some(decision);
            }
            if !beyond {
                gitignore = gitignore.or_else(|| decision(&layer.gitignore, below, is_directory));
                exclude = exclude.or_else(|| decision(&layer.exclude, below, is_directory));
            }
            beyond |= layer.is_repository;
        }
        gitignore.or(exclude)
    }
}

/// What the last pattern that matches says.
fn decision(patterns: &Patterns, path: &Path, is_directory: bool) -> Option<bool> {
    patterns
        .iter()
        .rev()
        .find_map(|together| match together.matched(path, is_directory) {
            Match::None => None,
            Match::Ignore(_) => Some(true),
            Match::Whitelist(_) => Some(false),
        })
}

/// The start of a file, one byte more than it may have.
fn content(directory: BorrowedFd<'_>, names: &[&[u8]]) -> Result<Vec<u8>, Errno> {
    let mut place: Option<OwnedFd> = None;
    for name in names {
        let from = place.as_ref().map_or(directory, |place| place.as_fd());
        place = Some(open_name(from, name)?);
    }
    let place = place.ok_or(Errno::NOENT)?;
    let (file, stat) = reopen(place.as_fd())?.map_err(|_kind| Errno::NOENT)?;
    let size = usize::try_from(stat.st_size).unwrap_or(0);
    let mut content = vec![0; size.min(BYTES) + 1];
    let mut length = 0;
    while length < content.len() {
        let offset = length as u64;
        match retry_on_intr(|| pread(&file, &mut content[length..], offset))? {
            0 => break,
            read => length += read,
        }
    }
    content.truncate(length);
    Ok(content)
}

fn compile(content: &[u8], stop: &Stop) -> Result<Patterns, Error> {
    let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
    let mut lines = content.split(|byte| *byte == b'\n').peekable();
    let mut patterns = Patterns::new();
    while lines.peek().is_some() {
        stop.check()?;
        let mut builder = GitignoreBuilder::new("");
        for line in lines.by_ref().take(LINES_TOGETHER) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            // A line that is no pattern says nothing, as in git.
            if let Ok(line) = str::from_utf8(line) {
                let _understood = builder.add_line(None, line);
            }
        }
        let together = builder.build().map_err(|error| {
            Error::new(
                Reason::ResourceExhausted,
                "the patterns of an ignore file are too large: leave ignore files out of account",
            )
            .caused_by(error)
        })?;
        if !together.is_empty() {
            patterns.push(together);
        }
    }
    Ok(patterns)
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
                if rules.decide(entry.as_bytes(), is_directory) == Some(true) {
                    return true;
                }
                if !is_directory {
                    return false;
                }
                prefix = format!("{entry}/");
            }
            let here = at(&prefix);
            let found = Found {
                git: here.join(".git").exists(),
                gitignore: here.join(".gitignore").exists(),
                ignore: here.join(".ignore").exists(),
            };
            let open = fs::File::open(&here).unwrap();
            rules
                .enter(open.as_fd(), prefix.as_bytes(), found, &Stop::new())
                .unwrap();
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
            (
                &[REPOSITORY, (".gitignore", "*.log\n!keep.log")],
                "keep.log",
                false,
            ),
            (
                &[REPOSITORY, (".gitignore", "!keep.log\n*.log")],
                "keep.log",
                true,
            ),
            (
                &[
                    REPOSITORY,
                    (".gitignore", "*.log"),
                    ("a/.gitignore", "!*.log"),
                ],
                "a/b.log",
                false,
            ),
            (
                &[
                    REPOSITORY,
                    (".gitignore", "!*.log"),
                    ("a/.gitignore", "*.log"),
                ],
                "a/b.log",
                true,
            ),
            // What is in a directory that is left out cannot be taken back in.
            (&[REPOSITORY, (".gitignore", "a/\n!a/x")], "a/x", true),
            (&[REPOSITORY, (".gitignore", "a/*\n!a/x")], "a/x", false),
            // .ignore over .gitignore, whatever the depth; .gitignore over exclude.
            (
                &[REPOSITORY, (".gitignore", "x"), (".ignore", "!x")],
                "x",
                false,
            ),
            (
                &[REPOSITORY, ("a/.gitignore", "!x"), (".ignore", "x")],
                "a/x",
                true,
            ),
            (&[(".git/info/exclude", "x")], "x", true),
            (&[(".git/info/exclude", "/x")], "a/x", false),
            (
                &[(".git/info/exclude", "x"), (".gitignore", "!x")],
                "x",
                false,
            ),
            // A repository within another has its own rules; one below a plain directory counts
            // from there on.
            (
                &[REPOSITORY, (".gitignore", "x"), ("a/.git/HEAD", "")],
                "a/x",
                false,
            ),
            (
                &[REPOSITORY, (".ignore", "x"), ("a/.git/HEAD", "")],
                "a/x",
                true,
            ),
            (&[("a/.git/HEAD", ""), (".gitignore", "x")], "a/x", false),
            (
                &[("a/.git", "gitdir: ../b"), ("a/.gitignore", "x")],
                "a/x",
                true,
            ),
            // How lines are read.
            (&[(".ignore", "\u{feff}x\r\ny\r\n")], "x", true),
            (&[(".ignore", "\u{feff}x\r\ny\r\n")], "y", true),
            (&[(".ignore", "#x")], "#x", false),
            (&[(".ignore", "\\#x")], "#x", true),
            (&[(".ignore", "x   ")], "x", true),
            (&[(".ignore", "a[\nx")], "x", true),
            (
                &[(".ignore", "\u{202e}\u{1f600}")],
                "\u{202e}\u{1f600}",
                true,
            ),
        ] {
            assert_eq!(leaves_out(files, path), expected, "{files:?} {path}");
        }
    }

    #[test]
    fn what_is_too_large_is_an_error_and_what_cannot_be_read_says_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let found = Found {
            ignore: true,
            gitignore: true,
            git: true,
        };
        let enter = || {
            let open = fs::File::open(directory.path()).unwrap();
            let mut rules = IgnoreFiles::default();
            rules
                .enter(open.as_fd(), b"", found, &Stop::new())
                .map(|()| rules)
        };
        fs::create_dir(directory.path().join(".gitignore")).unwrap();
        std::os::unix::fs::symlink("elsewhere", directory.path().join(".ignore")).unwrap();
        fs::write(directory.path().join("elsewhere"), "*").unwrap();
        let rules = enter().unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!(rules.decide(b"x", false), None);

        fs::remove_file(directory.path().join(".ignore")).unwrap();
        fs::write(directory.path().join(".ignore"), b"\xff\nx").unwrap();
        assert_eq!(enter().unwrap().decide(b"x", false), Some(true));

        let large = "#".repeat(BYTES + 1);
        fs::write(directory.path().join(".ignore"), &large).unwrap();
        assert_eq!(enter().unwrap_err().reason, Reason::ResourceExhausted);
        fs::write(directory.path().join(".ignore"), &large[1..]).unwrap();
        assert!(enter().is_ok());
    }
}
