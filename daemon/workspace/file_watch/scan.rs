//! Watches directories with all below them.

use std::os::fd::AsFd as _;

use rustix::fs::{FileType, RawDir};

use super::{
    change_batch::{ChangeBatch, EntryChangeKind},
    filter::EntrySelection,
    kernel_events::watch_error,
    watch::{Entered, Entry, TreeWatch, is_gone},
};
use crate::daemon::{
    error::Error,
    sys::Errno,
    workspace::{
        cancel::CancelToken,
        directory::{DIRENT_BUFFER_BYTES, file_type_of},
        metadata::FileKind,
        resolve::open_child_directory,
    },
};

impl TreeWatch {
    /// Watches everything, from the directory itself on. All former watches end.
    pub(super) fn watch_all(&mut self, cancel: &CancelToken) -> Result<(), Error> {
        let mut former = self.tree.clear();
        former.append(&mut self.ancestors);
        self.kernel.remove(&former);
        self.reservation.remove(former.len() as u64);

        let base = self.base.as_bytes().to_vec();
        let slashes = memchr::memchr_iter(b'/', &base);
        let ends: Vec<_> =
            std::iter::once(0).chain(slashes).filter(|end| *end < base.len()).collect();
        for end in ends {
            self.reservation.add()?;
            let watch = self
                .workspace
                .strict_root
                .open_directory(&base[..end])
                .and_then(|directory| self.kernel.add_ancestor(directory.as_fd()));
            match watch {
                Ok(watch) => self.ancestors.push(watch),
                Err(errno) => {
                    self.reservation.remove(1);
                    return Err(watch_error(errno, &base[..end]));
                }
            }
        }

        self.reservation.add()?;
        let top = self
            .workspace
            .strict_root
            .open_directory(&base)
            .and_then(|directory| self.kernel.add(directory.as_fd()));
        match top {
            Ok(top) => self.top = top,
            Err(errno) => {
                self.reservation.remove(1);
                return Err(watch_error(errno, &base));
            }
        }
        self.tree.insert_top(self.top, &base);
        self.scan(self.top, None, cancel)
    }

    /// Watches the directories below a watched one. Reports the entries to `batch`.
    pub(super) fn scan(
        &mut self,
        first: i32,
        batch: Option<&mut ChangeBatch>,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        let mut batch = batch.filter(|batch| !batch.is_full);
        let batch_start = batch.as_ref().map_or(0, |batch| batch.len());
        let mut buffer = Vec::with_capacity(DIRENT_BUFFER_BYTES);
        let mut pending = vec![first];

        while let Some(watch) = pending.pop() {
            cancel.check()?;
            let Some(mut path) = self.tree.path(watch) else {
                continue;
            };
            let Some(directory) = self.open_watched(watch, &path)? else {
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            let length = path.len();

            let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(Errno::INTR) => continue,
                    Err(errno) if is_gone(errno) => break,
                    Err(errno) => return Err(watch_error(errno, &path)),
                };
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                let mut file_type = entry.file_type();
                // Some file systems do not report the type.
                if file_type == FileType::Unknown {
                    match file_type_of(directory.as_fd(), entry.file_name()) {
                        Ok(found) => file_type = found,
                        Err(_) => continue, // removed, with an event that follows
                    }
                }

                let is_directory = file_type == FileType::Directory;
                path.truncate(length);
                path.extend_from_slice(name);
                match self.select(&path, is_directory) {
                    EntrySelection::Omitted => continue,
                    EntrySelection::Skipped => {
                        if let Some(batch) = &mut batch {
                            batch.skip();
                        }
                        continue;
                    }
                    EntrySelection::Reported => {}
                }
                if let Some(found) = &mut batch {
                    found.push(EntryChangeKind::Created, &path, FileKind::from(file_type));
                    if found.is_full {
                        let top = self.tree.path(first).unwrap_or_default();
                        found.replace_by_rescan(batch_start, &top);
                        batch = None;
                    }
                }
                if is_directory {
                    let directory = directory.as_fd();
                    let entry = Entry { directory, watch, name, path: &path };
                    if let Entered::New { watch, .. } = self.enter(&entry)? {
                        pending.push(watch);
                    }
                }
            }
        }
        Ok(())
    }

    /// Watches an entry that is a directory, unless it is too deep or not readable.
    pub(super) fn enter(&mut self, entry: &Entry<'_>) -> Result<Entered, Error> {
        let depth = self.tree.depth(entry.watch).map_or(0, |depth| depth + 1);
        if !self.filter.enters(depth) {
            return Ok(Entered::Not);
        }
        let old = self.tree.child(entry.watch, entry.name);
        let opened = open_child_directory(entry.directory, entry.name).and_then(|directory| {
            let watch = self.kernel.add(directory.as_fd())?;
            Ok((directory, watch))
        });
        let (directory, mut watch) = match opened {
            Ok(opened) => opened,
            Err(errno) if is_gone(errno) => return Ok(Entered::Gone),
            Err(Errno::ACCESS | Errno::PERM) => {
                // Watched again when it becomes readable.
                old.into_iter().for_each(|old| self.forget(old));
                return Ok(Entered::Not);
            }
            Err(errno) => return Err(watch_error(errno, entry.path)),
        };
        if old == Some(watch) {
            return Ok(Entered::Known);
        }

        if self.tree.contains(watch) {
            // A mount can contain a directory that is above it.
            if self.tree.is_at_or_above(watch, entry.watch) {
                return Ok(Entered::Not);
            }
            // It was renamed to this path.
            self.forget(watch);
            watch = match self.kernel.add(directory.as_fd()) {
                Ok(watch) => watch,
                Err(errno) => return Err(watch_error(errno, entry.path)),
            };
        } else if self.ancestors.contains(&watch) {
            return Ok(Entered::Not);
        }
        if let Some(old) = old {
            self.forget(old);
        }
        if let Err(error) = self.reservation.add() {
            self.kernel.remove(&[watch]);
            return Err(error);
        }
        self.tree.insert(watch, entry.watch, entry.name);
        Ok(Entered::New { watch, replaced: old.is_some() })
    }
}
