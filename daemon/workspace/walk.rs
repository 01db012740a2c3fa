//! Walks the files below a directory, in the order of their whole paths.
//!
//! The walk is depth-first over directory descriptors, never over paths. Its state is an explicit
//! stack, so the tree may be arbitrarily deep. The deepest [`MAX_OPEN_DIRECTORIES`] directories
//! stay open. When the walk returns to a closed directory, it reopens [`REOPEN_BATCH_DIRECTORIES`]
//! at once: the topmost beneath the workspace, like any path, and the others one from the other. So
//! a deep tree costs no more than its depth.
//!
//! Concurrent changes are not errors. The walk skips directories that were removed or replaced, and
//! those without permission.

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
/// Directories that are reopened at once.
const REOPEN_BATCH_DIRECTORIES: usize = MAX_OPEN_DIRECTORIES / 2;
/// Entries on the stack and bytes of their names: 80 MiB.
const PENDING_ENTRIES_BUDGET: ListingBudget = ListingBudget { entries: 2 << 20, bytes: 64 << 20 };
/// Length of the path of a directory that the walk enters. A page token must hold the path of a
/// file in it. The limit for paths in requests is about a third.
pub(super) const MAX_DIRECTORY_PATH_BYTES: usize = 12_000;

/// Which files a walk returns.
#[derive(Debug)]
pub(crate) struct WalkFilter {
    /// Globs that paths, relative to the walk's directory, must match; see [`Override`].
    pub(crate) globs: Override,
    /// Whether ignore files apply.
    pub(crate) respect_ignore: bool,
    /// Whether to include names that begin with a dot. Those included by a glob or an ignore file
    /// are returned in any case.
    pub(crate) include_hidden: bool,
    /// Whether to enter directories named `.git`.
    pub(crate) include_git: bool,
    /// Levels of directories; 1 returns only files directly in the walk's directory.
    pub(crate) max_depth: Option<usize>,
}

/// A walk over the files below a directory.
#[derive(Debug)]
pub(crate) struct FileWalk<'a> {
    root: &'a Root,
    cancel: &'a CancelToken,
    filter: WalkFilter,
    after: Option<Vec<u8>>,
    reader: DirectoryReader,
    ignore_files: IgnoreFiles,
    frames: Vec<WalkFrame>,
    /// Path of the current entry, relative to the workspace. The path of each directory on the
    /// stack is a prefix of it.
    path: Vec<u8>,
    /// Length of the path of the walk's own directory in `path`, with its final slash.
    base_length: usize,
    budget: ListingBudget,
    steps: usize,
    skipped_entries: u32,
    /// Whether to keep directories open for the files in them, and not only to enter others.
    keeps_file_directories: bool,
}

/// A directory on the stack.
#[derive(Debug)]
struct WalkFrame {
    directory: Option<Arc<OwnedFd>>,
    listing: Listing,
    /// Length of its path in [`FileWalk::path`], with its final slash.
    path_length: usize,
    /// Number of ignore files' directories above it.
    ignore_depth: usize,
}

impl<'a> FileWalk<'a> {
    /// Starts below `base`, after the path `after`, which is relative to `base`.
    pub(super) fn start(
        root: &'a Root,
        base: &RelativePath,
        filter: WalkFilter,
        after: Option<&str>,
        cancel: &'a CancelToken,
    ) -> Result<Self, Error> {
        let mut walk = Self {
            root,
            cancel,
            filter,
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
        let to_error = |errno| os_error(errno, base.as_str(), ExpectedKind::Directory);
        let directory = root.open_directory(base.as_bytes()).map_err(to_error)?;
        if walk.filter.respect_ignore {
            walk.read_ignore_files_above(base)?;
        }

        walk.path.extend_from_slice(base.as_bytes());
        if !walk.path.is_empty() {
            walk.path.push(b'/');
        }
        walk.base_length = walk.path.len();
        match walk.enter(directory) {
            Ok(()) => Ok(walk),
            Err(error) => Err(walk.to_error(error)),
        }
    }

    /// Returns the path of the next file, relative to the walk's directory. `None` at the end.
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
                    Err(error) => return Err(self.to_error(error)),
                }
            } else {
                let path =
                    str::from_utf8(&self.path[self.base_length..]).map_err(Error::internal)?;
                return Ok(Some(path));
            }
        }
    }

    /// Returns the directory of the file that [`Self::next`] returned last. `None` if it was
    /// removed or is no longer readable.
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

    /// Number of files and directories skipped so far, because their names are not UTF-8 or the
    /// path of a directory is too long.
    pub(crate) fn skipped_entries(&self) -> u32 {
        self.skipped_entries
    }

    /// Number of ignore files so far that were applied only in part.
    pub(crate) fn truncated_ignore_files(&self) -> u32 {
        self.ignore_files.truncated_files()
    }

    /// Converts an error about the directory at `self.path`.
    fn to_error(&self, error: ReadDirectoryError) -> Error {
        let path = String::from_utf8_lossy(&self.path);
        let path = match path.trim_end_matches('/') {
            "" => ".",
            path => path,
        };
        match error {
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
            let to_error =
                |errno| os_error(errno, &String::from_utf8_lossy(path), ExpectedKind::Directory);
            let parent = path.strip_suffix(b"/").unwrap_or(path);
            let directory = self.root.open_path(parent).map_err(to_error)?;
            let kind = |name: &str| {
                statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)
                    .ok()
                    .map(|stat| FileType::from_raw_mode(stat.st_mode))
            };
            let special_entries = SpecialEntries {
                git: kind(".git").is_some(),
                gitignore: kind(".gitignore") == Some(FileType::RegularFile),
                ignore: kind(".ignore") == Some(FileType::RegularFile),
                rgignore: kind(".rgignore") == Some(FileType::RegularFile),
            };
            self.ignore_files.enter(directory.as_fd(), path, special_entries, self.cancel)?;
        }
        Ok(())
    }

    /// Enters the directory at `self.path`.
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

    /// Reads a directory and pushes it to the stack. `self.path` is its path with a final slash.
    fn enter(&mut self, directory: OwnedFd) -> Result<(), ReadDirectoryError> {
        let mut listing = self.reader.read(directory.as_fd(), self.budget, self.cancel)?;
        let ignore_depth = self.ignore_files.len();
        if self.filter.respect_ignore {
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
            ignore_depth,
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

    /// Reopens the directory at `index` of the stack, and those above it, if they are closed.
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
            let parent = current.checked_sub(1).filter(|_| current > first).and_then(|parent| {
                let frame = &self.frames[parent];
                frame.directory.as_ref().map(|directory| (directory, frame.path_length))
            });
            let directory = match parent {
                Some((parent, start)) => {
                    open_child_directory(parent.as_fd(), &self.path[start..end])?
                }
                None => self.root.open_directory(&self.path[..end])?,
            };
            self.frames[current].directory = Some(Arc::new(directory));
        }
        Ok(())
    }

    /// Selects and sorts the entries that match the filter and come after the start of the walk.
    fn select_entries(&mut self, listing: &mut Listing) -> Result<(), Error> {
        let Self { filter, after, ignore_files, path, base_length: base, cancel, frames, .. } =
            self;
        let length = path.len();
        let matches_paths = !filter.globs.is_empty() || ignore_files.len() > 0;
        let enters_directories = filter.max_depth.is_none_or(|levels| frames.len() + 1 < levels);
        // `after` matters only in directories on its own path.
        let after = after.as_deref().and_then(|after| after.strip_prefix(&path[*base..]));
        let result = listing.filter_and_sort(|entry, name| {
            cancel.check()?;
            if entry.is_directory && !enters_directories
                || entry.is_directory && !filter.include_git && name == b".git"
                || is_temporary(name)
                || after.is_some_and(|after| is_at_or_before(*entry, name, after))
            {
                return Ok(false);
            }
            if entry.is_directory && length + name.len() >= MAX_DIRECTORY_PATH_BYTES {
                entry.is_excluded = true;
            }

            // As in ripgrep, globs take precedence over ignore files, and both over hidden names.
            if matches_paths {
                path.truncate(length);
                path.extend_from_slice(name);
                let relative = Path::new(OsStr::from_bytes(&path[*base..]));
                match filter.globs.matched(relative, entry.is_directory) {
                    Match::Ignore(_) => return Ok(false),
                    Match::Whitelist(_) => return Ok(true),
                    Match::None => {}
                }
                if let Some(is_ignored) = ignore_files.is_ignored(path, entry.is_directory) {
                    return Ok(!is_ignored);
                }
            }
            Ok(filter.include_hidden || !name.starts_with(b"."))
        });
        path.truncate(length);
        result
    }
}

/// Whether an entry, with everything in it, sorts at or before the file `after`, a path relative to
/// the entry's directory.
fn is_at_or_before(entry: ListingEntry, name: &[u8], after: &[u8]) -> bool {
    if !entry.is_directory {
        return name <= after;
    }
    match after.strip_prefix(name) {
        // `after` begins with the name, so the next byte decides. If it is a slash, files after
        // `after` remain in the directory, unless the entry is only counted.
        Some([b'/', ..]) => entry.is_excluded,
        Some([next, ..]) => b'/' < *next,
        Some([]) => false,
        None => name < after,
    }
}

/// Whether the walk ends because a directory could not be entered. Running out of descriptors must
/// not look like an empty directory.
fn is_fatal(errno: Errno) -> bool {
    !matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE | Errno::ACCESS | Errno::PERM
    )
}

#[cfg(test)]
mod tests;
