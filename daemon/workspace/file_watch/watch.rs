//! A watch, and the steps that its other parts have in common.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
};

use super::{
    budget::WatchReservation,
    filter::{EntrySelection, WatchFilter},
    kernel_events::{KernelWatch, watch_error},
    watch_tree::WatchTree,
};
use crate::daemon::{
    error::Error,
    sys::Errno,
    workspace::{Workspace, cancel::CancelToken, path::RelativePath},
};

/// A watch of a directory.
#[derive(Debug)]
pub(crate) struct TreeWatch {
    pub(super) workspace: Arc<Workspace>,
    pub(super) base: RelativePath,
    pub(super) filter: WatchFilter,
    pub(super) kernel: KernelWatch,
    pub(super) tree: WatchTree,
    /// The directory itself.
    pub(super) top: i32,
    /// The directories above it. If one is renamed, the directory is elsewhere.
    pub(super) ancestors: Vec<i32>,
    pub(super) reservation: WatchReservation,
}

/// An entry of a watched directory.
pub(super) struct Entry<'a> {
    pub(super) directory: BorrowedFd<'a>,
    /// Watch of the directory.
    pub(super) watch: i32,
    pub(super) name: &'a [u8],
    /// Relative to the workspace.
    pub(super) path: &'a [u8],
}

/// What became of a directory that is to be watched.
#[derive(Debug)]
pub(super) enum Entered {
    /// It is watched already.
    Known,
    New {
        watch: i32,
        /// Whether another directory was watched at its path.
        replaced: bool,
    },
    /// It is too deep, not readable, or mounted at several paths.
    Not,
    /// No directory is there now.
    Gone,
}

impl TreeWatch {
    /// Watches `base` and all directories below it that the filter selects.
    pub(crate) fn open(
        workspace: Arc<Workspace>,
        base: RelativePath,
        filter: WatchFilter,
        reservation: WatchReservation,
        cancel: &CancelToken,
    ) -> Result<Self, Error> {
        let mut watch = Self {
            workspace,
            base,
            filter,
            kernel: KernelWatch::new()?,
            tree: WatchTree::default(),
            top: -1,
            ancestors: Vec::new(),
            reservation,
        };
        watch.watch_all(cancel)?;
        Ok(watch)
    }

    /// Returns a descriptor that is readable when there are events.
    pub(crate) fn events_descriptor(&self) -> io::Result<OwnedFd> {
        self.kernel.try_clone()
    }

    /// Number of watched directories.
    pub(crate) fn directories(&self) -> usize {
        self.tree.len()
    }

    pub(super) fn select(&self, path: &[u8], is_directory: bool) -> EntrySelection {
        let base = self.base.as_bytes().len();
        self.filter.select(path, if base == 0 { 0 } else { base + 1 }, is_directory)
    }

    /// Opens a watched directory. `None` if it is no longer at its path: an event about that follows.
    pub(super) fn open_watched(
        &mut self,
        watch: i32,
        path: &[u8],
    ) -> Result<Option<OwnedFd>, Error> {
        let opened = self.workspace.strict_root.open_directory(path).and_then(|directory| {
            let found = self.kernel.add(directory.as_fd())?;
            Ok((directory, found))
        });
        match opened {
            Ok((directory, found)) if found == watch => Ok(Some(directory)),
            Ok((_, found)) => {
                if !self.tree.contains(found) && !self.ancestors.contains(&found) {
                    self.kernel.remove(&[found]);
                }
                Ok(None)
            }
            Err(errno) if is_gone(errno) => Ok(None),
            Err(Errno::ACCESS | Errno::PERM) if watch != self.top => {
                // Watched again when it becomes readable.
                self.forget(watch);
                Ok(None)
            }
            Err(errno) => Err(watch_error(errno, path)),
        }
    }

    /// Ends the watches of a directory and of all below it.
    pub(super) fn forget(&mut self, watch: i32) {
        let removed = self.tree.remove(watch);
        self.kernel.remove(&removed);
        self.reservation.remove(removed.len() as u64);
    }
}

/// Whether the error means that nothing of the expected type is at a path.
pub(super) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE)
}
