//! The files below a directory, in the order of their whole paths.
//!
//! The walk goes depth-first over directory descriptors, never by path, and holds what it has still
//! to do on a stack of its own: a tree may be as deep as it likes. The deepest [`OPEN`] directories
//! stay open. Coming back to one that was closed, the walk opens [`REOPENED`] of them at once, the
//! topmost beneath the workspace as any path is opened and the others from one to the next, so that
//! a deep tree costs no more than its depth.
//!
//! What others do meanwhile is no error: a directory that is gone, or something else by now, is
//! passed over, as is one without permission.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    sync::Arc,
};

use ignore::{Match, overrides::Override};
use rustix::fs::{AtFlags, FileType, statat};

use super::{
    cancel::CancelToken,
    directory::{
        DirectoryReader, ENTRIES_PER_CHECK, Listing, ListingBudget, ListingEntry,
        ReadDirectoryError, SpecialEntries,
    },
    ignore_files::IgnoreFiles,
    os_error::{ExpectedKind, os_error},
    path::RelativePath,
    resolve::{Root, open_child_directory},
    temporary::is_temporary,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Directories that stay open. All walks of a busy daemon together stay far below its limit of
/// descriptors.
const MAX_OPEN_DIRECTORIES: usize = 64;
/// Directories that are opened again at once.
const REOPEN_BATCH_DIRECTORIES: usize = MAX_OPEN_DIRECTORIES / 2;
/// Most entries that wait at once, and most bytes of their names: 90 MiB.
const PENDING_ENTRIES_BUDGET: ListingBudget = ListingBudget { entries: 2 << 20, bytes: 64 << 20 };
/// Longest path of a directory that is entered, in bytes: a page token must hold the path of a file
/// in it. No request may name one a third as long.
const MAX_DIRECTORY_PATH_BYTES: usize = 12_000;

/// Which files a walk finds.
#[derive(Debug)]
pub(crate) struct WalkFilter {
    /// Globs that paths, relative to the walk's directory, must match; see [`Override`].
    pub(crate) globs: Override,
    /// Whether ignore files count.
    pub(crate) respect_ignore: bool,
    /// Whether names may begin with a dot. Those that a glob or an ignore file takes back in may in
    /// any case.
    pub(crate) include_hidden: bool,
    /// Whether directories named `.git` are entered.
    pub(crate) include_git: bool,
    /// Levels of directories to go down; 1 finds the files directly in the walk's directory.
    pub(crate) max_depth: Option<usize>,
}

/// A walk over the files below a directory.
#[derive(Debug)]
pub(crate) struct FileWalk<'a> {
    root: &'a Root,
    cancel: &'a CancelToken,
    selection: WalkFilter,
    after: Option<Vec<u8>>,
    reader: DirectoryReader,
    ignore_files: IgnoreFiles,
    frames: Vec<WalkFrame>,
    /// Path of the current entry, relative to the workspace. Each directory on the stack has a
    /// prefix of it.
    path: Vec<u8>,
    /// Length of the walk's own directory in `path`, with its final slash.
    base_length: usize,
    budget: ListingBudget,
    steps: usize,
    skipped_entries: u32,
    /// Whether directories are kept for their files, too, and not only for what is to be entered.
    keeps_file_directories: bool,
}

/// A directory that the walk is in.
#[derive(Debug)]
struct WalkFrame {
    directory: Option<Arc<OwnedFd>>,
    listing: Listing,
    /// Length of its path, with its final slash.
    path_length: usize,
    /// How many ignore files' directories counted above it.
    ignore_depth: usize,
}

impl<'a> FileWalk<'a> {
    /// Starts below `base`, from behind `after`, a path relative to `base`.
    pub(super) fn start(
        root: &'a Root,
        base: &RelativePath,
        selection: WalkFilter,
        after: Option<&str>,
        cancel: &'a CancelToken,
    ) -> Result<Self, Error> {
        let mut walk = Self {
            root,
            cancel,
            selection,
            after: after.map(|after| after.as_bytes().to_vec()),
            reader: DirectoryReader::new(),
            ignore_files: IgnoreFiles::default(),
            frames: Vec::new(),
            path: Vec::new(),
            base_length: 0,
            budget: PENDING_ENTRIES_BUDGET,
            steps: 0,
            skipped_entries: 0,
            keeps_file_directories: false,
        };
        let wanted = |errno| os_error(errno, base.as_str(), ExpectedKind::Directory);
        let directory = root.open_directory(base.as_bytes()).map_err(wanted)?;
        if walk.selection.respect_ignore {
            walk.read_ignore_files_above(base)?;
        }
        walk.path.extend_from_slice(base.as_bytes());
        if !walk.path.is_empty() {
            walk.path.push(b'/');
        }
        walk.base_length = walk.path.len();
        match walk.enter(directory) {
            Ok(()) => Ok(walk),
            Err(trouble) => Err(walk.to_error(trouble)),
        }
    }

    /// Path of the next file, relative to the walk's directory.
    pub(crate) fn next(&mut self) -> Result<Option<&str>, Error> {
        loop {
            self.steps += 1;
            if self.steps.is_multiple_of(ENTRIES_PER_CHECK) {
                self.cancel.check()?;
            }
            let Some(frame) = self.frames.last_mut() else {
                return Ok(None);
            };
            self.path.truncate(frame.path_length);
            let Some((entry, name)) = frame.listing.next() else {
                self.leave_directory();
                continue;
            };
            self.path.extend_from_slice(name);
            if entry.is_excluded {
                self.skipped_entries = self.skipped_entries.saturating_add(1);
            } else if entry.is_directory {
                match self.descend() {
                    Ok(()) => {}
                    Err(ReadDirectoryError::Os(errno)) if !is_fatal(errno) => {}
                    Err(trouble) => return Err(self.to_error(trouble)),
                }
            } else {
                let path =
                    str::from_utf8(&self.path[self.base_length..]).map_err(Error::internal)?;
                return Ok(Some(path));
            }
        }
    }

    /// The directory of the file that [`Self::next`] gave last; none when it is gone or may not be
    /// read any more.
    pub(super) fn directory(&mut self) -> Result<Option<Arc<OwnedFd>>, Error> {
        let Some(top) = self.frames.len().checked_sub(1) else {
            return Ok(None);
        };
        self.keeps_file_directories = true;
        match self.reopen(top) {
            Ok(()) => Ok(self.frames[top].directory.clone()),
            Err(errno) if !is_fatal(errno) => Ok(None),
            Err(errno) => Err(self.to_error(ReadDirectoryError::Os(errno))),
        }
    }

    /// Files and directories so far that were left out because their names are not UTF-8, or a
    /// directory's path is longer than can be asked for.
    pub(crate) fn skipped_entries(&self) -> u32 {
        self.skipped_entries
    }

    /// Ignore files so far of which a part did not count.
    pub(crate) fn truncated_ignore_files(&self) -> u32 {
        self.ignore_files.truncated_files()
    }

    /// What to tell about trouble with the directory that `path` names.
    fn to_error(&self, trouble: ReadDirectoryError) -> Error {
        let path = String::from_utf8_lossy(&self.path);
        let path = match path.trim_end_matches('/') {
            "" => ".",
            path => path,
        };
        match trouble {
            ReadDirectoryError::Os(errno) => os_error(errno, path, ExpectedKind::Directory),
            ReadDirectoryError::OverBudget => Error::new(
                Reason::TooManyFiles,
                format!(
                    "{path:?}, with the directories above it, has more than {} entries to sort: list directories below it, or fewer levels",
                    PENDING_ENTRIES_BUDGET.entries
                ),
            )
            .with_metadata("path", path),
            ReadDirectoryError::Aborted(error) => error,
        }
    }

    /// Reads the ignore files of the directories above `base`.
    fn read_ignore_files_above(&mut self, base: &RelativePath) -> Result<(), Error> {
        let base = base.as_bytes();
        let slashes = memchr::memchr_iter(b'/', base).map(|slash| slash + 1);
        for length in std::iter::once(0).chain(slashes) {
            if length == base.len() {
                break;
            }
            let path = &base[..length];
            let wanted =
                |errno| os_error(errno, &String::from_utf8_lossy(path), ExpectedKind::Directory);
            let above = path.strip_suffix(b"/").unwrap_or(path);
            let directory = self.root.open_path(above).map_err(wanted)?;
            let kind = |name: &str| {
                statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)
                    .ok()
                    .map(|stat| FileType::from_raw_mode(stat.st_mode))
            };
            let found = SpecialEntries {
                git: kind(".git").is_some(),
                gitignore: kind(".gitignore") == Some(FileType::RegularFile),
                ignore: kind(".ignore") == Some(FileType::RegularFile),
                rgignore: kind(".rgignore") == Some(FileType::RegularFile),
            };
            self.ignore_files.enter(directory.as_fd(), path, found, self.cancel)?;
        }
        Ok(())
    }

    /// Enters the directory that `path` names.
    fn descend(&mut self) -> Result<(), ReadDirectoryError> {
        let Some(top) = self.frames.len().checked_sub(1) else {
            return Ok(());
        };
        self.reopen(top)?;
        let frame = &mut self.frames[top];
        let name = &self.path[frame.path_length..];
        let Some(directory) = &frame.directory else {
            return Ok(());
        };
        let child = open_child_directory(directory.as_fd(), name);
        if !self.keeps_file_directories && !frame.listing.has_directories() {
            frame.directory = None;
        }
        self.path.push(b'/');
        self.enter(child?)
    }

    /// Reads a directory, whose path with its final slash is in `path`, and puts it on the stack.
    fn enter(&mut self, directory: OwnedFd) -> Result<(), ReadDirectoryError> {
        let mut listing = self.reader.read(directory.as_fd(), self.budget, self.cancel)?;
        let ignore_files = self.ignore_files.len();
        if self.selection.respect_ignore {
            self.ignore_files.enter(
                directory.as_fd(),
                &self.path,
                listing.special_entries,
                self.cancel,
            )?;
        }
        self.select_entries(&mut listing)?;
        let size = listing.memory_use();
        self.budget.entries -= size.entries;
        self.budget.bytes -= size.bytes;
        self.frames.push(WalkFrame {
            directory: (self.keeps_file_directories || listing.has_directories())
                .then(|| Arc::new(directory)),
            listing,
            path_length: self.path.len(),
            ignore_depth: ignore_files,
        });
        if let Some(closed) = self.frames.len().checked_sub(MAX_OPEN_DIRECTORIES + 1) {
            self.frames[closed].directory = None;
        }
        Ok(())
    }

    fn leave_directory(&mut self) {
        if let Some(frame) = self.frames.pop() {
            self.ignore_files.truncate(frame.ignore_depth);
            let size = frame.listing.memory_use();
            self.budget.entries += size.entries;
            self.budget.bytes += size.bytes;
        }
    }

    /// Opens the directory at `index` of the stack again, and those above it, if it was closed.
    fn reopen(&mut self, index: usize) -> Result<(), Errno> {
        if self.frames[index].directory.is_some() {
            return Ok(());
        }
        let first = index.saturating_sub(REOPEN_BATCH_DIRECTORIES - 1);
        for current in first..=index {
            if self.frames[current].directory.is_some() {
                continue;
            }
            let end = self.frames[current].path_length.saturating_sub(1);
            let above = current.checked_sub(1).filter(|_| current > first);
            let above = above.and_then(|above| {
                let frame = &self.frames[above];
                frame.directory.as_ref().map(|open| (open, frame.path_length))
            });
            let directory = match above {
                Some((open, start)) => open_child_directory(open.as_fd(), &self.path[start..end])?,
                None => self.root.open_directory(&self.path[..end])?,
            };
            self.frames[current].directory = Some(Arc::new(directory));
        }
        Ok(())
    }

    /// Keeps what is selected, and comes after where the walk starts, in order.
    fn select_entries(&mut self, listing: &mut Listing) -> Result<(), Error> {
        let Self {
            selection,
            after,
            ignore_files,
            path,
            base_length: base,
            cancel: stop,
            frames,
            ..
        } = self;
        let length = path.len();
        let matches_paths = !selection.globs.is_empty() || ignore_files.len() > 0;
        let deeper = selection.max_depth.is_none_or(|levels| frames.len() + 1 < levels);
        // Only where the paths so far are the same does it matter what comes after.
        let after = after.as_deref().and_then(|after| after.strip_prefix(&path[*base..]));
        let arranged = listing.filter_and_sort(|entry, name| {
            stop.check()?;
            if entry.is_directory && !deeper
                || entry.is_directory && !selection.include_git && name == b".git"
                || is_temporary(name)
                || after.is_some_and(|after| is_at_or_before(*entry, name, after))
            {
                return Ok(false);
            }
            if entry.is_directory && length + name.len() >= MAX_DIRECTORY_PATH_BYTES {
                entry.is_excluded = true;
            }
            // As in ripgrep, a glob decides before an ignore file does, and both before the dot.
            if matches_paths {
                path.truncate(length);
                path.extend_from_slice(name);
                let below = Path::new(OsStr::from_bytes(&path[*base..]));
                match selection.globs.matched(below, entry.is_directory) {
                    Match::Ignore(_) => return Ok(false),
                    Match::Whitelist(_) => return Ok(true),
                    Match::None => {}
                }
                if let Some(left_out) = ignore_files.is_ignored(path, entry.is_directory) {
                    return Ok(!left_out);
                }
            }
            Ok(selection.include_hidden || !name.starts_with(b"."))
        });
        path.truncate(length);
        arranged
    }
}

/// Whether an entry, with all that is in it, comes before or is the file `after`, a path relative
/// to the entry's directory.
fn is_at_or_before(entry: ListingEntry, name: &[u8], after: &[u8]) -> bool {
    if !entry.is_directory {
        return name <= after;
    }
    match after.strip_prefix(name) {
        // The same bytes so far: a slash decides, and a path in the directory leaves a rest of it
        // to walk, unless it is only counted.
        Some([b'/', ..]) => entry.is_excluded,
        Some([next, ..]) => b'/' < *next,
        Some([]) => false,
        None => name < after,
    }
}

/// Whether a directory that could not be entered ends the walk: running out of descriptors must not
/// look like an empty directory.
fn is_fatal(errno: Errno) -> bool {
    !matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE | Errno::ACCESS | Errno::PERM
    )
}

#[cfg(test)]
mod tests;
