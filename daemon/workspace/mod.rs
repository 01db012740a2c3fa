//! The workspace: a directory that is accessed only through its file descriptor.
//!
//! No path is trusted. The text of a request first becomes a [`RelativePath`], without any file
//! access. The kernel then resolves it beneath the directory's descriptor, and rejects symbolic
//! links on the way. There is no check-then-use race, even while commands in the workspace rename
//! files.
//!
//! | module | contents |
//! |---|---|
//! | [`blocking_permit`] | the permit of blocking work on files |
//! | [`cancel`] | cancellation of blocking work |
//! | [`chown`] | changes the owner of files at start |
//! | [`copy_tree`] | copies the files of one workspace into another |
//! | [`directory`], [`directory_page`] | the entries of one directory, in order and in pages |
//! | [`fault_injection`] | points at which a test kills the daemon |
//! | [`file`](mod@file) | regular files, and nothing else |
//! | [`file_quota`], [`file_usage`], [`bounds`] | bounds on disk space and the number of files |
//! | [`file_watch`] | reports changes below a directory |
//! | [`glob`] | globs that select paths |
//! | [`ignore_files`] | `.gitignore` and its relatives |
//! | [`journal`] | write-ahead journal of changes, for recovery |
//! | [`memory_budget`] | memory for file contents |
//! | [`metadata`] | type, size and time of a path |
//! | [`move_path`] | moves files and directories |
//! | [`mod@os_error`] | maps errors of the kernel to reasons of the contract |
//! | [`parallel`] | the same work on many files, on several threads |
//! | [`partial_file`] | an incomplete upload |
//! | [`path`] | valid paths in requests |
//! | [`path_identities`] | detects directories replaced during an approval |
//! | [`path_locks`] | one change at a time per path |
//! | [`recovery`] | undoes changes that a crashed daemon left unfinished |
//! | [`remove`] | deletes files and directories |
//! | [`rename_step`] | puts one new file in place, and reverts it |
//! | [`resolve`] | opens paths beneath a directory |
//! | [`scan`] | reads lines of a file, and facts about the whole |
//! | [`mod@search`] | searches files |
//! | [`snapshot`] | a file before a change |
//! | [`subtree`] | a directory that contains exactly some known files |
//! | [`symlinks`] | resolves symbolic links within the workspace |
//! | [`temporary`] | names of the daemon's temporary files |
//! | [`transaction`] | changes files, all of them or none |
//! | [`tree_archive`], [`tree_extraction`] | a directory as a tar archive, and the reverse |
//! | [`tree_removal`] | deletes a directory with its contents |
//! | [`upload`] | starts, resumes and commits uploads |
//! | [`walk`] | the files below a directory, in order |

mod blocking_permit;
mod bounds;
mod cancel;
mod chown;
mod copy_tree;
mod directory;
mod directory_page;
pub(crate) mod fault_injection;
mod file;
mod file_quota;
mod file_usage;
pub(crate) mod file_watch;
mod glob;
mod ignore_files;
mod journal;
mod memory_budget;
mod metadata;
mod move_path;
mod os_error;
mod parallel;
mod partial_file;
mod path;
pub(crate) mod path_identities;
mod path_locks;
mod recovery;
mod remove;
mod rename_step;
mod resolve;
mod scan;
mod search;
mod snapshot;
mod subtree;
mod symlinks;
mod temporary;
pub(crate) mod transaction;
pub(crate) mod tree_archive;
pub(crate) mod tree_extraction;
mod tree_removal;
mod upload;
mod walk;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

pub(crate) use blocking_permit::BlockingPermit;
pub(crate) use cancel::CancelToken;
pub(crate) use chown::ChownSummary;
use chown::chown_all;
pub(crate) use directory_page::DirectoryPage;
pub(crate) use file::RegularFile;
pub(crate) use file_quota::{Enforcement, FileBound, FileQuota};
pub(crate) use file_usage::FileUsage;
pub(crate) use glob::compile_globs;
use journal::JournalDirectory;
pub(crate) use memory_budget::MemoryReservation;
pub(crate) use metadata::{FileKind, PathMetadata};
pub(crate) use os_error::file_not_found_error;
use os_error::{ExpectedKind, os_error};
pub(crate) use parallel::parallel_map;
pub(crate) use partial_file::{
    PartialFile, PartialFileError, PartialFileLocation, PartialFileState, PartialFileTarget,
};
pub(crate) use path::RelativePath;
use path_locks::PathLocks;
use resolve::Root;
pub(crate) use scan::{FileExcerpt, ReadOptions};
pub(crate) use search::{
    Match, SearchOptions, SearchPattern, SearchProgress, SearchQuery, SearchResults, search_file,
};
pub(crate) use snapshot::{FileSnapshot, NewContent};
use temporary::is_temporary;
pub(crate) use tree_removal::remove_tree;
pub(crate) use walk::{FileWalk, WalkFilter};

use super::{
    error::{Error, Reason},
    sys::Errno,
};

/// A directory that tools work in.
#[derive(Debug)]
pub(crate) struct Workspace {
    name: String,
    mount_path: PathBuf,
    path: PathBuf,
    root: Root,
    /// The same directory. Rejects symbolic links, even if `root` follows them.
    strict_root: Root,
    identity: (u64, u64),
    /// Whether opening cached files never waits for a network (see [`Root::is_local`]).
    is_local: bool,
    /// User and group of the directory and of new files.
    owner: (u32, u32),
    locks: PathLocks,
    journals: Option<JournalDirectory>,
    protected: Vec<RelativePath>,
    quota: Option<Arc<FileQuota>>,
    /// Whether a change is durable on disk before its response.
    sync: bool,
}

impl Workspace {
    /// Opens the directory at `path`, following the operator's symbolic links. Commands see it at
    /// `mount_path`, an absolute path without `..`.
    pub(crate) fn open(
        name: impl Into<String>,
        path: impl Into<PathBuf>,
        mount_path: impl Into<PathBuf>,
    ) -> io::Result<Self> {
        let path = path.into();
        let root = Root::open(&path)?;
        let stat = rustix::fs::fstat(&root)?;
        Ok(Self {
            name: name.into(),
            mount_path: mount_path.into(),
            path,
            identity: (stat.st_dev, stat.st_ino),
            is_local: root.is_local()?,
            strict_root: root.try_clone()?,
            root,
            owner: (stat.st_uid, stat.st_gid),
            locks: PathLocks::default(),
            journals: None,
            protected: Vec::new(),
            quota: None,
            sync: false,
        })
    }

    /// Follows symbolic links that stay in the directory, instead of rejecting all.
    pub(crate) fn follow_links(&mut self) -> io::Result<()> {
        self.root.follow_links()
    }

    /// Protects these relative paths, and everything below them, from changes by file tools. Fails
    /// if one is not in the workspace, so that none stays unprotected by mistake.
    pub(crate) fn protect(&mut self, paths: &[String]) -> io::Result<()> {
        self.protected = paths
            .iter()
            .map(|path| self.resolve(path))
            .collect::<Result<_, _>>()
            .map_err(io::Error::other)?;
        Ok(())
    }

    /// Sets whether changes are durable on disk before their response.
    pub(crate) fn sync_changes(&mut self, sync: bool) {
        self.sync = sync;
    }

    pub(crate) fn syncs_changes(&self) -> bool {
        self.sync
    }

    /// Changes the owner of all files of root to the workspace's owner, or to `user` if that is
    /// root.
    pub(crate) fn chown_to(&mut self, user: u32) -> io::Result<ChownSummary> {
        let owner = match self.owner {
            (0, 0) => (user, user),
            (0, group) => (user, group),
            owner => owner,
        };
        let summary = chown_all(self.root.as_fd(), owner)?;
        self.owner = owner;
        Ok(summary)
    }

    /// User and group of new files.
    pub(crate) fn owner(&self) -> (u32, u32) {
        self.owner
    }

    /// Rejects a change of a path that is protected, or that contains a name reserved for the
    /// daemon's temporary files: listings would hide it, and recovery could delete it.
    fn check_change_allowed(&self, path: &RelativePath) -> Result<(), Error> {
        if let Some(name) = path.components().find(|name| is_temporary(name.as_bytes())) {
            let text = format!(
                "{name:?} is reserved for the daemon's temporary files, which listings omit: choose another name"
            );
            return Err(Error::new(Reason::PolicyDenied, text).with_metadata("path", path.as_str()));
        }
        self.check_removal_allowed(path)
    }

    /// Rejects the removal of a path if the operator protects it, or a path above or below it.
    fn check_removal_allowed(&self, path: &RelativePath) -> Result<(), Error> {
        let overlaps = |protected: &&RelativePath| protected.overlaps(path);
        // Tools reject changes of the workspace itself with another error.
        let found = self.protected.iter().find(overlaps);
        let Some(protected) = found.filter(|_| path.split().is_some()) else {
            return Ok(());
        };
        let text = format!(
            "the operator protects {:?}, so {:?} cannot be changed",
            protected.as_str(),
            path.as_str()
        );
        Err(Error::new(Reason::PolicyDenied, text).with_metadata("path", path.as_str()))
    }

    /// Mounts the workspace at its own path, without a mount point of its own.
    pub(crate) fn mount_in_place(&mut self) {
        self.mount_path.clone_from(&self.path);
    }

    /// The name in requests.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn mount_path(&self) -> &Path {
        &self.mount_path
    }

    /// Where the daemon sees the workspace. For messages and for building sandboxes, not for
    /// opening files.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode of the directory.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Parses a path of a request.
    pub(crate) fn resolve(&self, text: &str) -> Result<RelativePath, Error> {
        RelativePath::parse(text, &self.mount_path)
    }

    /// Opens a regular file for reading. Files of other types are not opened.
    pub(crate) fn open_file(&self, path: &RelativePath) -> Result<RegularFile, Error> {
        let handle = self
            .root
            .open_path(path.as_bytes())
            .map_err(|errno| os_error(errno, path.as_str(), ExpectedKind::File))?;
        RegularFile::open(&handle, path.as_str())
    }

    /// Opens and reads a regular file of at most `max_bytes`, if the kernel has it in memory. Never
    /// waits for a disk, so the caller may be an asynchronous task. `None` if the caller has to use
    /// [`Workspace::open_file`].
    pub(crate) fn open_file_cached(
        &self,
        path: &RelativePath,
        max_bytes: usize,
    ) -> Option<RegularFile> {
        // On a network file system, even opening a cached file asks a server.
        if !self.is_local {
            return None;
        }
        let handle = self.root.open_path_cached(path.as_bytes())?;
        let mut file = RegularFile::open(&handle, path.as_str()).ok()?;
        file.read_cached(max_bytes).then_some(file)
    }

    /// Rejects a change of `name` in an open directory if the operator protects it. Complements the
    /// check of the request's path: with symbolic links, and on case-insensitive file systems, the
    /// directory may have been found under another path.
    fn check_change_allowed_in(&self, directory: BorrowedFd<'_>, name: &str) -> Result<(), Error> {
        if self.protected.is_empty() {
            return Ok(());
        }
        let Some(parent) = self.path_of(directory) else {
            let text =
                "the real path of this file is unknown, and the operator protects some paths";
            return Err(Error::new(Reason::PolicyDenied, text).with_metadata("path", name));
        };
        self.check_removal_allowed(&parent.join(name))
    }

    /// Writes the entries of these directories to disk, if changes must be durable.
    fn sync_directories(
        &self,
        directories: impl IntoIterator<Item = RelativePath>,
    ) -> Result<(), Error> {
        let mut result = Ok(());
        for directory in directories.into_iter().filter(|_| self.sync) {
            let synced = self.root.open_directory(directory.as_bytes());
            match synced.and_then(rustix::fs::fsync) {
                // The directory was removed in the meantime.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => {
                    let path = directory.as_str();
                    let text = format!(
                        "the change was made, but the directory {path:?} could not be written to disk ({errno}): the change may be lost if the machine fails"
                    );
                    result = Err(Error::internal(text).with_metadata("path", path));
                }
            }
        }
        result
    }

    /// Returns the metadata of a path, without following a symbolic link at its end, and the hash
    /// of a regular file that is readable and not too large.
    pub(crate) fn metadata(
        &self,
        path: &RelativePath,
        cancel: &CancelToken,
    ) -> Result<(PathMetadata, Option<String>), Error> {
        metadata::read_metadata(&self.root, path, cancel)
    }

    /// Reads at most `max_entries` entries of a directory, starting after the name `after`.
    pub(crate) fn read_directory_page(
        &self,
        path: &RelativePath,
        after: Option<&str>,
        max_entries: usize,
        cancel: &CancelToken,
    ) -> Result<DirectoryPage, Error> {
        DirectoryPage::read(&self.root, path, after, max_entries, cancel)
    }

    /// Starts a walk over the files below a directory, after the path `after`, which is relative to
    /// that directory.
    pub(crate) fn walk<'a>(
        &'a self,
        base: &RelativePath,
        filter: WalkFilter,
        after: Option<&str>,
        cancel: &'a CancelToken,
    ) -> Result<FileWalk<'a>, Error> {
        FileWalk::start(&self.root, base, filter, after, cancel)
    }

    /// Searches one file, or the files below a directory. Returns whether the search was complete;
    /// `progress` has the matches in any case.
    pub(crate) fn search(
        &self,
        path: &RelativePath,
        filter: WalkFilter,
        options: &SearchOptions,
        progress: &SearchProgress,
        cancel: &CancelToken,
    ) -> Result<bool, Error> {
        search::search(&self.root, path, filter, options, progress, cancel)
    }
}

impl AsFd for Workspace {
    /// The directory, opened with `O_PATH`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use ignore::overrides::Override;
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

    use super::*;
    use crate::daemon::error::Reason;

    #[test]
    fn only_a_directory_can_be_a_workspace() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(Workspace::open("w", &file, "/workspace").is_err());
        assert!(Workspace::open("w", directory.path().join("none"), "/workspace").is_err());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(".", &link).unwrap();
        let [straight, through_link] =
            [directory.path(), &link].map(|path| Workspace::open("w", path, "/workspace").unwrap());
        assert_eq!(straight.identity(), through_link.identity());
        assert_eq!(straight.name(), "w");
        assert_eq!(straight.path(), directory.path());
        assert_eq!(straight.mount_path(), Path::new("/workspace"));
    }

    #[test]
    fn protected_paths_must_be_in_the_workspace() {
        let directory = tempfile::tempdir().unwrap();
        let mut workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        let change = |workspace: &Workspace| {
            let path = workspace.resolve("safe/x").unwrap();
            workspace.check_change_allowed(&path).is_ok()
        };
        assert!(change(&workspace));
        for bad in ["../x", "/etc", "a\0"] {
            let paths = ["safe".to_owned(), bad.to_owned()];
            let error = workspace.protect(&paths).unwrap_err();
            assert!(error.to_string().contains(&format!("{bad:?}")), "{error}");
        }
        workspace.protect(&["safe".to_owned()]).unwrap();
        assert!(!change(&workspace));
    }

    #[test]
    fn unreadable_files_are_errors_and_unreadable_directories_are_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("closed")).unwrap();
        fs::write(at("closed/file"), "").unwrap();
        fs::write(at("secret"), "").unwrap();
        let set_mode =
            |name: &str, mode| fs::set_permissions(at(name), fs::Permissions::from_mode(mode));
        set_mode("closed", 0).unwrap();
        set_mode("secret", 0).unwrap();

        let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        // Root ignores permissions, so the attempt runs on a thread without that capability.
        let attempt = std::thread::spawn(move || {
            let sets = capabilities(None).unwrap();
            let without = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(
                None,
                CapabilitySets { effective: sets.effective.difference(without), ..sets },
            )
            .unwrap();
            let path = |text: &str| workspace.resolve(text).unwrap();
            let cancel = CancelToken::new();
            let filter = || WalkFilter {
                globs: Override::empty(),
                respect_ignore: true,
                include_hidden: true,
                include_git: false,
                max_depth: None,
            };

            let mut walk = workspace.walk(&path("."), filter(), None, &cancel).unwrap();
            let mut files = Vec::new();
            while let Some(file) = walk.next().unwrap() {
                files.push(file.to_owned());
            }

            let errors = [
                workspace.open_file(&path("secret")).unwrap_err(),
                workspace.open_file(&path("closed/file")).unwrap_err(),
                workspace
                    .root
                    .open_directory(b"closed")
                    .map_err(|errno| os_error(errno, "closed", ExpectedKind::Directory))
                    .unwrap_err(),
                workspace.walk(&path("closed"), filter(), None, &cancel).unwrap_err(),
            ];
            (files, errors.map(|error| error.reason))
        });

        let (files, reasons) = attempt.join().unwrap();
        assert_eq!(files, ["secret"]);
        assert_eq!(reasons, [Reason::PermissionDenied; 4]);
        set_mode("closed", 0o700).unwrap();
    }
}
