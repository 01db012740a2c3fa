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
//! | [`scan`] | lines of a file, and what is known of the whole of it |
//! | [`glob`] | which paths a request wants |
//! | [`ignore_files`] | what `.gitignore`, `.ignore` and `.git/info/exclude` leave out |
//! | [`walk`] | the files below a directory, in order |
//! | [`mod@failure`] | the kernel's errors in the terms of the contract |
//! | [`stop`] | ending work whose time is up |

mod beneath;
mod directory;
mod failure;
mod file;
mod glob;
mod ignore_files;
mod path;
mod scan;
mod stop;
mod walk;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use beneath::Root;
use failure::{Wanted, failure};
pub(crate) use file::RegularFile;
pub(crate) use glob::globs;
pub(crate) use path::RelativePath;
pub(crate) use scan::{Excerpt, Wish};
pub(crate) use stop::Stop;
pub(crate) use walk::{Selection, Walk};

use super::error::Error;

/// A directory that tools work in.
#[derive(Debug)]
pub(crate) struct Workspace {
    name: String,
    mount_path: PathBuf,
    path: PathBuf,
    root: Root,
    identity: (u64, u64),
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
            root,
            identity: (stat.st_dev, stat.st_ino),
        })
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
            .map_err(|errno| failure(errno, path.as_str(), Wanted::File))?;
        RegularFile::open(&found, path.as_str())
    }

    /// Starts a walk over the files below a directory, from behind `after`, a path relative to that
    /// directory.
    pub(crate) fn walk<'a>(
        &'a self,
        base: &RelativePath,
        selection: Selection,
        after: Option<&str>,
        stop: &'a Stop,
    ) -> Result<Walk<'a>, Error> {
        Walk::start(&self.root, base, selection, after, stop)
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
                CapabilitySets {
                    effective: sets.effective.difference(without),
                    ..sets
                },
            )
            .unwrap();
            let path = |text: &str| workspace.resolve(text).unwrap();
            let stop = Stop::new();
            let selection = || Selection {
                globs: Override::empty(),
                respect_ignore: true,
                hidden: true,
                max_depth: None,
            };
            let mut walk = workspace
                .walk(&path("."), selection(), None, &stop)
                .unwrap();
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
                    .map_err(|errno| failure(errno, "closed", Wanted::Directory))
                    .unwrap_err(),
                workspace
                    .walk(&path("closed"), selection(), None, &stop)
                    .unwrap_err(),
            ];
            (files, errors.map(|error| error.reason))
        });
        let (files, reasons) = attempt.join().unwrap();
        assert_eq!(files, ["secret"]);
        assert_eq!(reasons, [Reason::PermissionDenied; 4]);
        forbid("closed", 0o700).unwrap();
    }
}
