//! A directory as a tar archive, produced in pieces as its receiver reads them.
//!
//! The archive has directories, regular files and symbolic links, in the order of their names.
//! Nothing is opened by its path but the directory itself and directories that are reopened: the
//! kernel resolves all paths beneath the workspace. Concurrent changes are no errors. Entries that
//! cannot be archived are left out and reported.

use std::{
    fmt,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use ignore::{Match, overrides::Override};
use rustix::fs::{FileType, RawDir, Stat, fstat, readlinkat};

use super::{
    Workspace,
    cancel::CancelToken,
    directory::{DIRENT_BUFFER_BYTES, ENTRIES_PER_CHECK},
    file::RegularFile,
    os_error::{ExpectedKind, os_error},
    path::RelativePath,
    resolve::{open_child_directory, open_entry},
    temporary::is_temporary,
};
use crate::{
    archive::{
        END_OF_ARCHIVE, MAX_MEMBER_DEPTH, MAX_MEMBER_PATH_BYTES, Member, MemberKind, ModifyTime,
        padding, write_header,
    },
    daemon::{
        error::{Error, Reason},
        sys::Errno,
    },
};

/// Directories that stay open. Those above are reopened.
const MAX_OPEN_DIRECTORIES: usize = 32;
/// Entries on the stack.
const MAX_PENDING_ENTRIES: usize = 2 << 20;
/// Bytes of their names.
const MAX_PENDING_NAME_BYTES: usize = 64 << 20;
/// Problems that are reported with their paths.
const MAX_REPORTED_PROBLEMS: usize = 1000;

/// Which entries an archive has.
pub(crate) struct TreeFilter {
    /// Paths relative to the tree that it ignores are left out.
    pub(crate) exclude: Override,
    pub(crate) max_file_bytes: Option<u64>,
    /// Whether the policy allows to read a path of the workspace. Others are reported.
    pub(crate) is_allowed: Box<dyn Fn(&str) -> bool + Send>,
}

/// Archives a directory.
pub(crate) struct TreeArchive {
    workspace: Arc<Workspace>,
    base: RelativePath,
    filter: TreeFilter,
    stack: Vec<OpenDirectory>,
    /// Path of the current entry, relative to the tree.
    path: String,
    file: Option<OpenFile>,
    pending_entries: usize,
    pending_name_bytes: usize,
    is_complete: bool,
    summary: TreeSummary,
}

/// What an archive contains.
#[derive(Debug, Default, Clone)]
pub(crate) struct TreeSummary {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) symlinks: u64,
    /// Bytes of the contents of the files.
    pub(crate) size_bytes: u64,
    /// Paths, relative to the tree, of entries with problems: the first of them.
    pub(crate) problems: Vec<(String, TreeProblem)>,
    /// Number of all entries that were left out.
    pub(crate) skipped_entries: u64,
    /// Number of all files that changed while they were read.
    pub(crate) changed_files: u64,
}

/// Why an entry is not in the archive, or not as it is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeProblem {
    /// A FIFO, socket or device.
    Special,
    /// The name, or the target of a link, is not UTF-8.
    NotUtf8,
    /// The path is too long or too deep.
    TooLong,
    /// The daemon has no permission to read it.
    Unreadable,
    /// It was removed or replaced before it was read.
    Vanished,
    /// The policy does not allow to read it.
    Denied,
    /// The file is in the archive, but changed while it was read.
    Changed,
}

/// A directory on the stack.
struct OpenDirectory {
    /// `None` if it was closed, to be reopened.
    descriptor: Option<OwnedFd>,
    /// Names of the entries that follow, the next one last.
    names: Vec<Box<[u8]>>,
    /// Length of its path in [`TreeArchive::path`].
    path_length: usize,
}

/// A file that is being archived.
struct OpenFile {
    file: RegularFile,
    opened: Stat,
    size: u64,
    offset: u64,
    /// Whether the file ended early or could not be read: zeros fill the rest.
    is_short: bool,
}

impl TreeArchive {
    /// Opens the directory `base`.
    pub(crate) fn open(
        workspace: Arc<Workspace>,
        base: RelativePath,
        filter: TreeFilter,
        cancel: &CancelToken,
    ) -> Result<Self, Error> {
        let mut archive = Self {
            workspace,
            base,
            filter,
            stack: Vec::new(),
            path: String::new(),
            file: None,
            pending_entries: 0,
            pending_name_bytes: 0,
            is_complete: false,
            summary: TreeSummary::default(),
        };
        let path = archive.base.as_str();
        let to_error = |errno| os_error(errno, path, ExpectedKind::Directory);
        let opened = archive.workspace.root.open_directory(archive.base.as_bytes());
        let directory = opened.map_err(to_error)?;
        archive
            .enter(directory, cancel)?
            .map_err(|errno| os_error(errno, archive.base.as_str(), ExpectedKind::Directory))?;
        Ok(archive)
    }

    /// Appends the next bytes of the archive to `output`, until that has about `max_bytes` or the
    /// archive is complete. Returns whether it is.
    pub(crate) fn read(
        &mut self,
        output: &mut Vec<u8>,
        max_bytes: usize,
        cancel: &CancelToken,
    ) -> Result<bool, Error> {
        while output.len() < max_bytes && !self.is_complete {
            cancel.check()?;
            if self.file.is_some() {
                self.read_file(output, max_bytes);
            } else {
                self.next_entry(output, cancel)?;
            }
        }
        Ok(self.is_complete)
    }

    /// What the archive contains so far.
    pub(crate) fn summary(&self) -> &TreeSummary {
        &self.summary
    }

    /// Archives the next entry, or ends the archive.
    fn next_entry(&mut self, output: &mut Vec<u8>, cancel: &CancelToken) -> Result<(), Error> {
        let Some(directory) = self.stack.last_mut() else {
            output.extend_from_slice(&END_OF_ARCHIVE);
            self.is_complete = true;
            return Ok(());
        };
        self.path.truncate(directory.path_length);
        let Some(name) = directory.names.pop() else {
            self.stack.pop();
            return Ok(());
        };
        self.pending_entries -= 1;
        self.pending_name_bytes -= name.len();

        if !self.path.is_empty() {
            self.path.push('/');
        }
        let is_utf8 = str::from_utf8(&name).is_ok();
        self.path.push_str(&String::from_utf8_lossy(&name));
        let problem = if !is_utf8 {
            Some(TreeProblem::NotUtf8)
        } else {
            match self.archive_entry(&name, output, cancel)? {
                Ok(problem) => problem,
                Err(errno) => Some(
                    problem_of(errno)
                        .ok_or_else(|| os_error(errno, &self.path, ExpectedKind::File))?,
                ),
            }
        };
        if let Some(problem) = problem {
            self.summary.report(&self.path, problem);
        }
        Ok(())
    }

    /// Archives the entry `name` of the deepest directory, whose path is `self.path`.
    fn archive_entry(
        &mut self,
        name: &[u8],
        output: &mut Vec<u8>,
        cancel: &CancelToken,
    ) -> Result<Result<Option<TreeProblem>, Errno>, Error> {
        let handle = match self.reopen().and_then(|()| self.open_entry(name)) {
            Ok(handle) => handle,
            Err(errno) => return Ok(Err(errno)),
        };
        let stat = match fstat(&handle) {
            Ok(stat) => stat,
            Err(errno) => return Ok(Err(errno)),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_directory = kind == FileType::Directory;
        if matches!(self.filter.exclude.matched(&self.path, is_directory), Match::Ignore(_)) {
            return Ok(Ok(None));
        }
        let is_too_large = |max| u64::try_from(stat.st_size).is_ok_and(|size| size > max);
        if kind == FileType::RegularFile && self.filter.max_file_bytes.is_some_and(is_too_large) {
            return Ok(Ok(None));
        }
        if !(self.filter.is_allowed)(self.base.join(&self.path).as_str()) {
            return Ok(Ok(Some(TreeProblem::Denied)));
        }
        if self.base.as_bytes().len() + self.path.len() >= MAX_MEMBER_PATH_BYTES
            || self.stack.len() > MAX_MEMBER_DEPTH
        {
            return Ok(Ok(Some(TreeProblem::TooLong)));
        }

        match kind {
            FileType::RegularFile => Ok(self.begin_file(&handle, output)),
            FileType::Directory => {
                let Some(parent) = self.stack.last().and_then(|top| top.descriptor.as_ref()) else {
                    return Ok(Err(Errno::NOENT));
                };
                let directory = match open_child_directory(parent.as_fd(), name) {
                    Ok(directory) => directory,
                    Err(errno) => return Ok(Err(errno)),
                };
                self.write_member(MemberKind::Directory, &stat, output);
                self.summary.directories += 1;
                Ok(self.enter(directory, cancel)?.map(|()| None))
            }
            FileType::Symlink => {
                let target = match readlinkat(&handle, "", Vec::new()) {
                    Ok(target) => target,
                    Err(errno) => return Ok(Err(errno)),
                };
                let Ok(target) = target.into_string() else {
                    return Ok(Ok(Some(TreeProblem::NotUtf8)));
                };
                self.write_member(MemberKind::Symlink(target), &stat, output);
                self.summary.symlinks += 1;
                Ok(Ok(None))
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(Ok(Some(TreeProblem::Special))),
        }
    }

    fn begin_file(
        &mut self,
        handle: &OwnedFd,
        output: &mut Vec<u8>,
    ) -> Result<Option<TreeProblem>, Errno> {
        let opened = RegularFile::open(handle, &self.path);
        let opened = opened.and_then(|file| file.stat().map(|stat| (file, stat)));
        let (file, opened) = match opened {
            Ok(opened) => opened,
            Err(error) if error.reason == Reason::ResourceExhausted => return Err(Errno::MFILE),
            Err(_) => return Err(Errno::ACCESS),
        };
        let size = u64::try_from(opened.st_size).unwrap_or(0);
        self.write_member(MemberKind::File(size), &opened, output);
        self.file = Some(OpenFile { file, opened, size, offset: 0, is_short: false });
        Ok(None)
    }

    /// Archives a part of the open file. It keeps the size in its header, whatever happens.
    fn read_file(&mut self, output: &mut Vec<u8>, max_bytes: usize) {
        let Some(open) = &mut self.file else {
            return;
        };
        let remaining = open.size - open.offset;
        let length = max_bytes.saturating_sub(output.len());
        let length = usize::try_from(remaining).unwrap_or(usize::MAX).min(length);
        let start = output.len();
        output.resize(start + length, 0);
        let mut filled = start;
        while filled < output.len() && !open.is_short {
            let offset = open.offset + (filled - start) as u64;
            match open.file.read_at(&mut output[filled..], offset) {
                Ok(0) | Err(_) => open.is_short = true,
                Ok(read) => filled += read,
            }
        }
        open.offset += length as u64;
        if open.offset < open.size {
            return;
        }

        output.resize(output.len() + padding(open.size), 0);
        let is_changed = open.is_short || !open.is_unchanged();
        self.summary.files += 1;
        self.summary.size_bytes += open.size;
        self.file = None;
        if is_changed {
            self.summary.report(&self.path, TreeProblem::Changed);
        }
    }

    fn write_member(&self, kind: MemberKind, stat: &Stat, output: &mut Vec<u8>) {
        let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        let member = Member {
            path: self.path.clone(),
            kind,
            mode: stat.st_mode & 0o777,
            modified: ModifyTime::new((stat.st_mtime, nanos)),
        };
        write_header(&member, output);
    }

    /// Reads the names of a directory, whose path is `self.path`, and pushes it to the stack.
    fn enter(
        &mut self,
        directory: OwnedFd,
        cancel: &CancelToken,
    ) -> Result<Result<(), Errno>, Error> {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut buffer = Vec::with_capacity(DIRENT_BUFFER_BYTES);
        let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            if names.len().is_multiple_of(ENTRIES_PER_CHECK) {
                cancel.check()?;
            }
            let name = match &entry {
                Ok(entry) => entry.file_name().to_bytes(),
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    let errno = *errno;
                    self.forget(&names);
                    return Ok(Err(errno));
                }
            };
            if matches!(name, b"." | b"..") || is_temporary(name) {
                continue;
            }
            self.pending_entries += 1;
            self.pending_name_bytes += name.len();
            if self.pending_entries > MAX_PENDING_ENTRIES
                || self.pending_name_bytes > MAX_PENDING_NAME_BYTES
            {
                let text = format!(
                    "{:?}, with the directories above it, has more than {MAX_PENDING_ENTRIES} entries to sort: download directories below it",
                    self.path
                );
                return Err(Error::new(Reason::TooManyFiles, text));
            }
            names.push(name.into());
        }

        names.sort_unstable_by(|one, other| other.cmp(one));
        let path_length = self.path.len();
        self.stack.push(OpenDirectory { descriptor: Some(directory), names, path_length });
        if let Some(closed) = self.stack.len().checked_sub(MAX_OPEN_DIRECTORIES + 1) {
            self.stack[closed].descriptor = None;
        }
        Ok(Ok(()))
    }

    /// Releases the budget of names that are not archived.
    fn forget(&mut self, names: &[Box<[u8]>]) {
        self.pending_entries -= names.len();
        self.pending_name_bytes -= names.iter().map(|name| name.len()).sum::<usize>();
    }

    /// Reopens the deepest directory if it is closed.
    fn reopen(&mut self) -> Result<(), Errno> {
        let Some(top) = self.stack.last_mut() else {
            return Ok(());
        };
        if top.descriptor.is_none() {
            let path = self.base.join(&self.path[..top.path_length]);
            top.descriptor = Some(self.workspace.root.open_directory(path.as_bytes())?);
        }
        Ok(())
    }

    fn open_entry(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        let top = self.stack.last().and_then(|top| top.descriptor.as_ref());
        open_entry(top.ok_or(Errno::NOENT)?.as_fd(), name)
    }
}

impl OpenFile {
    /// Whether the file has the content that it had when it was opened, judged by size and times.
    fn is_unchanged(&self) -> bool {
        let content = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        self.file.stat().is_ok_and(|now| content(&now) == content(&self.opened))
    }
}

impl TreeSummary {
    fn report(&mut self, path: &str, problem: TreeProblem) {
        if problem == TreeProblem::Changed {
            self.changed_files += 1;
        } else {
            self.skipped_entries += 1;
        }
        if self.problems.len() < MAX_REPORTED_PROBLEMS {
            self.problems.push((path.to_owned(), problem));
        }
    }
}

impl fmt::Debug for TreeArchive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeArchive").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Returns the problem of an entry that could not be opened. `None` if the archive must fail:
/// running out of descriptors must not look like an empty directory.
fn problem_of(errno: Errno) -> Option<TreeProblem> {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE => Some(TreeProblem::Vanished),
        Errno::ACCESS | Errno::PERM => Some(TreeProblem::Unreadable),
        _ => None,
    }
}
