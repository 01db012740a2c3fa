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
    beneath::{Root, open_child},
    directory::{ENTRIES_PER_CHECK, Entry, Found, Listing, Reader, Room, Trouble},
    failure::{Wanted, failure},
    ignore_files::IgnoreFiles,
    path::RelativePath,
    stop::Stop,
    temporary::is_temporary,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Directories that stay open. All walks of a busy daemon together stay far below its limit of
/// descriptors.
const OPEN: usize = 64;
/// Directories that are opened again at once.
const REOPENED: usize = OPEN / 2;
/// Most entries that wait at once, and most bytes of their names: 90 MiB.
const ROOM: Room = Room { entries: 2 << 20, bytes: 64 << 20 };
/// Longest path of a directory that is entered, in bytes: a page token must hold the path of a file
/// in it. No request may name one a third as long.
const LONGEST: usize = 12_000;

/// Which files a walk finds.
#[derive(Debug)]
pub(crate) struct Selection {
    /// Globs that paths, relative to the walk's directory, must match; see [`Override`].
    pub(crate) globs: Override,
    /// Whether ignore files count.
    pub(crate) respect_ignore: bool,
    /// Whether names may begin with a dot. Those that a glob or an ignore file takes back in may in
    /// any case.
    pub(crate) hidden: bool,
    /// Whether directories named `.git` are entered.
    pub(crate) git: bool,
    /// Levels of directories to go down; 1 finds the files directly in the walk's directory.
    pub(crate) max_depth: Option<usize>,
}

/// A walk over the files below a directory.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    root: &'a Root,
    stop: &'a Stop,
    selection: Selection,
    after: Option<Vec<u8>>,
    reader: Reader,
    ignore_files: IgnoreFiles,
    frames: Vec<Frame>,
    /// Path of the current entry, relative to the workspace. Each directory on the stack has a
    /// prefix of it.
    path: Vec<u8>,
    /// Length of the walk's own directory in `path`, with its final slash.
    base: usize,
    room: Room,
    steps: usize,
    skipped: u32,
    /// Whether directories are kept for their files, too, and not only for what is to be entered.
    files_are_opened: bool,
}

/// A directory that the walk is in.
#[derive(Debug)]
struct Frame {
    directory: Option<Arc<OwnedFd>>,
    listing: Listing,
    /// Length of its path, with its final slash.
    path: usize,
    /// How many ignore files' directories counted above it.
    ignore_files: usize,
}

impl<'a> Walk<'a> {
    /// Starts below `base`, from behind `after`, a path relative to `base`.
    pub(super) fn start(
        root: &'a Root,
        base: &RelativePath,
        selection: Selection,
        after: Option<&str>,
        stop: &'a Stop,
    ) -> Result<Self, Error> {
        let mut walk = Self {
            root,
            stop,
            selection,
            after: after.map(|after| after.as_bytes().to_vec()),
            reader: Reader::new(),
            ignore_files: IgnoreFiles::default(),
            frames: Vec::new(),
            path: Vec::new(),
            base: 0,
            room: ROOM,
            steps: 0,
            skipped: 0,
            files_are_opened: false,
        };
        let wanted = |errno| failure(errno, base.as_str(), Wanted::Directory);
        let directory = root.open_directory(base.as_bytes()).map_err(wanted)?;
        if walk.selection.respect_ignore {
            walk.read_ignore_files_above(base)?;
        }
        walk.path.extend_from_slice(base.as_bytes());
        if !walk.path.is_empty() {
            walk.path.push(b'/');
        }
        walk.base = walk.path.len();
        match walk.enter(directory) {
            Ok(()) => Ok(walk),
            Err(trouble) => Err(walk.error(trouble)),
        }
    }

    /// Path of the next file, relative to the walk's directory.
    pub(crate) fn next(&mut self) -> Result<Option<&str>, Error> {
        loop {
            self.steps += 1;
            if self.steps.is_multiple_of(ENTRIES_PER_CHECK) {
                self.stop.check()?;
            }
            let Some(frame) = self.frames.last_mut() else {
                return Ok(None);
            };
            self.path.truncate(frame.path);
            let Some((entry, name)) = frame.listing.next() else {
                self.leave();
                continue;
            };
            self.path.extend_from_slice(name);
            if entry.left_out {
                self.skipped = self.skipped.saturating_add(1);
            } else if entry.is_directory {
                match self.descend() {
                    Ok(()) => {}
                    Err(Trouble::Kernel(errno)) if !is_fatal(errno) => {}
                    Err(trouble) => return Err(self.error(trouble)),
                }
            } else {
                let path = str::from_utf8(&self.path[self.base..]).map_err(Error::internal)?;
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
        self.files_are_opened = true;
        match self.reopen(top) {
            Ok(()) => Ok(self.frames[top].directory.clone()),
            Err(errno) if !is_fatal(errno) => Ok(None),
            Err(errno) => Err(self.error(Trouble::Kernel(errno))),
        }
    }

    /// Files and directories so far that were left out because their names are not UTF-8, or a
    /// directory's path is longer than can be asked for.
    pub(crate) fn skipped(&self) -> u32 {
        self.skipped
    }

    /// Ignore files so far of which a part did not count.
    pub(crate) fn ignore_files_cut(&self) -> u32 {
        self.ignore_files.cut()
    }

    /// What to tell about trouble with the directory that `path` names.
    fn error(&self, trouble: Trouble) -> Error {
        let path = String::from_utf8_lossy(&self.path);
        let path = match path.trim_end_matches('/') {
            "" => ".",
            path => path,
        };
        match trouble {
            Trouble::Kernel(errno) => failure(errno, path, Wanted::Directory),
            Trouble::Full => Error::new(
                Reason::TooManyFiles,
                format!(
                    "{path:?}, with the directories above it, has more than {} entries to sort: list directories below it, or fewer levels",
                    ROOM.entries
                ),
            )
            .with("path", path),
            Trouble::Call(error) => error,
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
            let wanted = |errno| failure(errno, &String::from_utf8_lossy(path), Wanted::Directory);
            let above = path.strip_suffix(b"/").unwrap_or(path);
            let directory = self.root.open_path(above).map_err(wanted)?;
            let kind = |name: &str| {
                statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)
                    .ok()
                    .map(|stat| FileType::from_raw_mode(stat.st_mode))
            };
            let found = Found {
                git: kind(".git").is_some(),
                gitignore: kind(".gitignore") == Some(FileType::RegularFile),
                ignore: kind(".ignore") == Some(FileType::RegularFile),
                rgignore: kind(".rgignore") == Some(FileType::RegularFile),
            };
            self.ignore_files.enter(directory.as_fd(), path, found, self.stop)?;
        }
        Ok(())
    }

    /// Enters the directory that `path` names.
    fn descend(&mut self) -> Result<(), Trouble> {
        let Some(top) = self.frames.len().checked_sub(1) else {
            return Ok(());
        };
        self.reopen(top)?;
        let frame = &mut self.frames[top];
        let name = &self.path[frame.path..];
        let Some(directory) = &frame.directory else {
            return Ok(());
        };
        let child = open_child(directory.as_fd(), name);
        if !self.files_are_opened && !frame.listing.has_directories() {
            frame.directory = None;
        }
        self.path.push(b'/');
        self.enter(child?)
    }

    /// Reads a directory, whose path with its final slash is in `path`, and puts it on the stack.
    fn enter(&mut self, directory: OwnedFd) -> Result<(), Trouble> {
        let mut listing = self.reader.read(directory.as_fd(), self.room, self.stop)?;
        let ignore_files = self.ignore_files.len();
        if self.selection.respect_ignore {
            self.ignore_files.enter(directory.as_fd(), &self.path, listing.found, self.stop)?;
        }
        self.arrange(&mut listing)?;
        let size = listing.size();
        self.room.entries -= size.entries;
        self.room.bytes -= size.bytes;
        self.frames.push(Frame {
            directory: (self.files_are_opened || listing.has_directories())
                .then(|| Arc::new(directory)),
            listing,
            path: self.path.len(),
            ignore_files,
        });
        if let Some(closed) = self.frames.len().checked_sub(OPEN + 1) {
            self.frames[closed].directory = None;
        }
        Ok(())
    }

    fn leave(&mut self) {
        if let Some(frame) = self.frames.pop() {
            self.ignore_files.truncate(frame.ignore_files);
            let size = frame.listing.size();
            self.room.entries += size.entries;
            self.room.bytes += size.bytes;
        }
    }

    /// Opens the directory at `index` of the stack again, and those above it, if it was closed.
    fn reopen(&mut self, index: usize) -> Result<(), Errno> {
        if self.frames[index].directory.is_some() {
            return Ok(());
        }
        let first = index.saturating_sub(REOPENED - 1);
        for current in first..=index {
            if self.frames[current].directory.is_some() {
                continue;
            }
            let end = self.frames[current].path.saturating_sub(1);
            let above = current.checked_sub(1).filter(|_| current > first);
            let above = above.and_then(|above| {
                let frame = &self.frames[above];
                frame.directory.as_ref().map(|open| (open, frame.path))
            });
            let directory = match above {
                Some((open, start)) => open_child(open.as_fd(), &self.path[start..end])?,
                None => self.root.open_directory(&self.path[..end])?,
            };
            self.frames[current].directory = Some(Arc::new(directory));
        }
        Ok(())
    }

    /// Keeps what is selected, and comes after where the walk starts, in order.
    fn arrange(&mut self, listing: &mut Listing) -> Result<(), Error> {
        let Self { selection, after, ignore_files, path, base, stop, frames, .. } = self;
        let length = path.len();
        let matches_paths = !selection.globs.is_empty() || ignore_files.len() > 0;
        let deeper = selection.max_depth.is_none_or(|levels| frames.len() + 1 < levels);
        // Only where the paths so far are the same does it matter what comes after.
        let after = after.as_deref().and_then(|after| after.strip_prefix(&path[*base..]));
        let arranged = listing.arrange(|entry, name| {
            stop.check()?;
            if entry.is_directory && !deeper
                || entry.is_directory && !selection.git && name == b".git"
                || is_temporary(name)
                || after.is_some_and(|after| is_behind(*entry, name, after))
            {
                return Ok(false);
            }
            if entry.is_directory && length + name.len() >= LONGEST {
                entry.left_out = true;
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
                if let Some(left_out) = ignore_files.decide(path, entry.is_directory) {
                    return Ok(!left_out);
                }
            }
            Ok(selection.hidden || !name.starts_with(b"."))
        });
        path.truncate(length);
        arranged
    }
}

/// Whether an entry, with all that is in it, comes before or is the file `after`, a path relative
/// to the entry's directory.
fn is_behind(entry: Entry, name: &[u8], after: &[u8]) -> bool {
    if !entry.is_directory {
        return name <= after;
    }
    match after.strip_prefix(name) {
        // The same bytes so far: a slash decides, and a path in the directory leaves a rest of it
        // to walk, unless it is only counted.
        Some([b'/', ..]) => entry.left_out,
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
