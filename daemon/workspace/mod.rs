//! The workspace: a directory that is reached only through its descriptor.
//!
//! Nothing here trusts a path. A request's text becomes a [`RelativePath`] first, without looking
//! at any file; the kernel then resolves it beneath the directory's descriptor and refuses symbolic
//! links on the way. There is no check that something could be changed behind, and commands that
//! run in the workspace at the same time may rename whatever they like.
//!
//! | file | holds |
//! |---|---|
//! | [`path`] | what a request's path may be |
//! | [`beneath`] | opening beneath a directory |
//! | [`file`](mod@file) | regular files, and nothing that only looks like one |
//! | [`directory`] | the entries of one directory, in order |
//! | [`contents`] | a page of everything in one directory |
//! | [`description`] | what is at a path |
//! | [`scan`] | lines of a file, and what is known of the whole of it |
//! | [`glob`] | which paths a request wants |
//! | [`ignore_files`] | what `.gitignore` and its like leave out |
//! | [`draft`] | a file that comes in parts, as long as it is not whole |
//! | [`upload`] | such a file begun, found again, and put into its place |
//! | [`walk`] | the files below a directory, in order |
//! | [`relocate`] | moving |
//! | [`remove`] | deleting |
//! | [`tree`] | deleting a directory with all that is in it |
//! | [`change`] | changing files, all of them or none |
//! | [`step`] | putting one new content in place, and taking it back |
//! | [`subtree`] | a directory that holds some files and nothing else |
//! | [`temporary`] | names of the daemon's own files |
//! | [`original`] | a file before a change, and what of it is kept |
//! | [`room`] | memory for the contents of files that are held whole |
//! | [`journal`] | what a change is about to do, for the next daemon |
//! | [`mend`] | undoing what a daemon that died has left |
//! | [`links`] | where paths lead when links are followed |
//! | [`parallel`] | the same work on many files |
//! | [`lock`] | one change at a time to each path |
//! | [`fault`] | where a test has the daemon die |
//! | [`mod@search`] | searching these files |
//! | [`mod@failure`] | the kernel's errors in the terms of the contract |
//! | [`stop`] | ending work whose time is up |

mod blocking_permit;
mod cancel;
mod chown;
mod directory;
mod directory_page;
mod fault_injection;
mod file;
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
mod tree_removal;
mod upload;
mod walk;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

pub(crate) use blocking_permit::BlockingPermit;
pub(crate) use cancel::CancelToken;
pub(crate) use chown::ChownSummary;
use chown::chown_all;
pub(crate) use directory_page::DirectoryPage;
pub(crate) use file::RegularFile;
pub(crate) use glob::compile_globs;
use journal::JournalDirectory;
pub(crate) use memory_budget::MemoryReservation;
pub(crate) use metadata::{FileKind, PathMetadata};
pub(crate) use os_error::file_not_found;
use os_error::{ExpectedKind, os_error};
pub(crate) use parallel::{available_cores, parallel_map};
pub(crate) use partial_file::{
    PartialFile, PartialFileError, PartialFileLocation, PartialFileState, PartialFileTarget,
};
pub(crate) use path::RelativePath;
use path_locks::PathLocks;
use resolve::Root;
pub(crate) use scan::{FileExcerpt, ReadOptions, count_lines};
pub(crate) use search::{
    Match, SearchOptions, SearchPattern, SearchProgress, SearchQuery, SearchResults, search_file,
};
pub(crate) use snapshot::{FileSnapshot, NewContent};
use temporary::is_temporary;
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
    identity: (u64, u64),
    /// Whether its file system waits for nothing but disks of this machine.
    is_local: bool,
    /// User and group of the directory, to whom new files belong.
    owner: (u32, u32),
    locks: PathLocks,
    journals: Option<JournalDirectory>,
    protected: Vec<RelativePath>,
    /// Whether the disk has written down a change before it is answered.
    sync: bool,
}

impl Workspace {
    /// Opens the directory at `path`, where the operator's symbolic links are followed. Commands
    /// see it at `mount_path`, an absolute path without `..`.
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
            is_local: is_local(&root)?,
            root,
            owner: (stat.st_uid, stat.st_gid),
            locks: PathLocks::default(),
            journals: None,
            protected: Vec::new(),
            sync: false,
        })
    }

    /// Follows symbolic links that stay in the directory, instead of refusing all.
    pub(crate) fn follow_links(&mut self) -> io::Result<()> {
        self.root.follow_links()
    }

    /// Forbids changing these paths, relative ones, and what is below them by the file tools. Fails
    /// when one of them does not lie in the workspace: none may be left unprotected by mistake.
    pub(crate) fn protect(&mut self, paths: &[String]) -> io::Result<()> {
        let paths = paths.iter().map(|path| self.resolve(path));
        let paths = paths.collect::<Result<_, _>>();
        self.protected = paths.map_err(io::Error::other)?;
        Ok(())
    }

    /// Has changes wait for the disk.
    pub(crate) fn sync_changes(&mut self, sync: bool) {
        self.sync = sync;
    }

    /// Whether changes wait for the disk.
    pub(crate) fn syncs_changes(&self) -> bool {
        self.sync
    }

    /// Gives what belongs to root in the workspace to its owner, or to `user` if that is root.
    pub(crate) fn chown_to(&mut self, user: u32) -> io::Result<ChownSummary> {
        let owner = match self.owner {
            (0, 0) => (user, user),
            (0, group) => (user, group),
            owner => owner,
        };
        let given = chown_all(self.root.as_fd(), owner)?;
        self.owner = owner;
        Ok(given)
    }

    /// User and group to whom new files belong.
    pub(crate) fn owner(&self) -> (u32, u32) {
        self.owner
    }

    /// Checks that something may be made or written at a path: that no name in it is one of the
    /// daemon's own, which nobody would see there and a later daemon could take for its own, and as
    /// [`Self::allow_removal`].
    fn check_change_allowed(&self, path: &RelativePath) -> Result<(), Error> {
        if let Some(name) = path.components().find(|name| is_temporary(name.as_bytes())) {
            let text = format!(
                "{name:?} is a name that the daemon keeps for files on the way to their places, and lists leave it out: choose another"
            );
            return Err(Error::new(Reason::PolicyDenied, text).with_metadata("path", path.as_str()));
        }
        self.check_removal_allowed(path)
    }

    /// Checks that the operator protects neither a path nor what is above or below it.
    fn check_removal_allowed(&self, path: &RelativePath) -> Result<(), Error> {
        let overlaps = |protected: &&RelativePath| protected.overlaps(path);
        // The workspace itself is changed by no tool, for other reasons.
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

    /// Has commands see it where it is.
    pub(crate) fn mount_in_place(&mut self) {
        self.mount_path.clone_from(&self.path);
    }

    /// Name that calls give.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where commands see it.
    pub(crate) fn mount_path(&self) -> &Path {
        &self.mount_path
    }

    /// Where it is for the daemon. For messages and for building sandboxes, not for opening what is
    /// in it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode of the directory.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Understands a path of a request.
    pub(crate) fn resolve(&self, text: &str) -> Result<RelativePath, Error> {
        RelativePath::parse(text, &self.mount_path)
    }

    /// Opens a regular file for reading. Whatever else is there is not touched.
    pub(crate) fn open_file(&self, path: &RelativePath) -> Result<RegularFile, Error> {
        let found = self
            .root
            .open_path(path.as_bytes())
            .map_err(|errno| os_error(errno, path.as_str(), ExpectedKind::File))?;
        RegularFile::open(&found, path.as_str())
    }

    /// Opens a regular file of at most `most` bytes with its content, if the kernel has both in
    /// memory. Waits for no disk, so it may be called where nothing may block; what it does not
    /// answer, [`Workspace::open_file`] does.
    pub(crate) fn open_file_cached(&self, path: &RelativePath, most: usize) -> Option<RegularFile> {
        // Elsewhere even opening what is in memory asks a server, which may not answer.
        if !self.is_local {
            return None;
        }
        let found = self.root.open_path_cached(path.as_bytes())?;
        let mut file = RegularFile::open(&found, path.as_str()).ok()?;
        file.read_cached(most).then_some(file)
    }

    /// Checks that the operator does not protect what is called `name` in a directory that was
    /// opened: with links, and in file systems that do not tell upper from lower case, it may have
    /// been found under another path.
    fn check_change_allowed_in(&self, directory: BorrowedFd<'_>, name: &str) -> Result<(), Error> {
        if self.protected.is_empty() {
            return Ok(());
        }
        let Some(below) = self.path_of(directory) else {
            let text = "where this lies cannot be told, and the operator protects some paths";
            return Err(Error::new(Reason::PolicyDenied, text).with_metadata("path", name));
        };
        self.check_removal_allowed(&below.join(name))
    }

    /// Has the disk write down which names these directories hold, if changes wait for the disk.
    fn sync_directories(
        &self,
        directories: impl IntoIterator<Item = RelativePath>,
    ) -> Result<(), Error> {
        let mut result = Ok(());
        for directory in directories.into_iter().filter(|_| self.sync) {
            let synced = self.root.open_directory(directory.as_bytes());
            match synced.and_then(rustix::fs::fsync) {
                // Gone since.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => {
                    let path = directory.as_str();
                    let text = format!(
                        "the change was made, but the disk could not write down {path:?} ({errno}): it may be gone when the machine is started again"
                    );
                    result = Err(Error::internal(text).with_metadata("path", path));
                }
            }
        }
        result
    }

    /// Describes what is at a path; a symbolic link at its end is not followed. The hash is that of
    /// a file that can be read and is not too large.
    pub(crate) fn metadata(
        &self,
        path: &RelativePath,
        cancel: &CancelToken,
    ) -> Result<(PathMetadata, Option<String>), Error> {
        metadata::read_metadata(&self.root, path, cancel)
    }

    /// Reads the entries of a directory behind the name `after`, at most `most`.
    pub(crate) fn read_directory_page(
        &self,
        path: &RelativePath,
        after: Option<&str>,
        most: usize,
        cancel: &CancelToken,
    ) -> Result<DirectoryPage, Error> {
        DirectoryPage::read(&self.root, path, after, most, cancel)
    }

    /// Starts a walk over the files below a directory, from behind `after`, a path relative to that
    /// directory.
    pub(crate) fn walk<'a>(
        &'a self,
        base: &RelativePath,
        selection: WalkFilter,
        after: Option<&str>,
        cancel: &'a CancelToken,
    ) -> Result<FileWalk<'a>, Error> {
        FileWalk::start(&self.root, base, selection, after, cancel)
    }

    /// Searches the files below a directory, or one file. Answers whether it came to its end before
    /// it was stopped; `progress` has what was found in any case.
    pub(crate) fn search(
        &self,
        path: &RelativePath,
        selection: WalkFilter,
        wish: &SearchOptions,
        progress: &SearchProgress,
        cancel: &CancelToken,
    ) -> Result<bool, Error> {
        search::search(&self.root, path, selection, wish, progress, cancel)
    }
}

/// Whether a directory lies in one of the file systems whose contents are those of local disks or
/// of memory (statfs(2)).
fn is_local(root: &Root) -> io::Result<bool> {
    const LOCAL_FILE_SYSTEMS: [u32; 8] = [
        0xef53,      // ext4
        0x5846_5342, // XFS
        0x9123_683e, // Btrfs
        0x0102_1994, // tmpfs
        0x794c_7630, // overlayfs
        0xf2f5_2010, // F2FS
        0x2fc1_2fc1, // ZFS
        0xca45_1a4e, // bcachefs
    ];
    let kind = rustix::fs::fstatfs(root)?.f_type;
    Ok(u32::try_from(kind).is_ok_and(|kind| LOCAL_FILE_SYSTEMS.contains(&kind)))
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
    fn a_workspace_is_a_directory() {
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
    fn what_is_to_be_protected_must_lie_in_the_workspace() {
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
    fn files_without_permission_are_refused_and_directories_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("closed")).unwrap();
        fs::write(at("closed/file"), "").unwrap();
        fs::write(at("secret"), "").unwrap();
        let forbid =
            |name: &str, mode| fs::set_permissions(at(name), fs::Permissions::from_mode(mode));
        forbid("closed", 0).unwrap();
        forbid("secret", 0).unwrap();
        let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        // Root may do everything, so the attempt is made on a thread without that capability.
        let attempt = std::thread::spawn(move || {
            let sets = capabilities(None).unwrap();
            let without = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(
                None,
                CapabilitySets { effective: sets.effective.difference(without), ..sets },
            )
            .unwrap();
            let path = |text: &str| workspace.resolve(text).unwrap();
            let stop = CancelToken::new();
            let selection = || WalkFilter {
                globs: Override::empty(),
                respect_ignore: true,
                include_hidden: true,
                include_git: false,
                max_depth: None,
            };
            let mut walk = workspace.walk(&path("."), selection(), None, &stop).unwrap();
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
                workspace.walk(&path("closed"), selection(), None, &stop).unwrap_err(),
            ];
            (files, errors.map(|error| error.reason))
        });
        let (files, reasons) = attempt.join().unwrap();
        assert_eq!(files, ["secret"]);
        assert_eq!(reasons, [Reason::PermissionDenied; 4]);
        forbid("closed", 0o700).unwrap();
    }
}
