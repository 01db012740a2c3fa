//! Turns the events of the kernel into changes.

use std::{
    ffi::OsStr,
    os::{fd::AsFd as _, unix::ffi::OsStrExt as _},
};

use rustix::{
    fs::{AtFlags, statat},
    io::retry_on_intr,
};

use super::{
    change_batch::{ChangeBatch, EntryChangeKind},
    filter::EntrySelection,
    kernel_events::{EntryEvents, watch_error},
    watch::{Entered, Entry, TreeWatch, is_gone},
};
use crate::daemon::{
    error::Error,
    sys::Errno,
    workspace::{
        cancel::CancelToken,
        metadata::{FileKind, PathMetadata},
    },
};

impl TreeWatch {
    /// Returns the changes since the last call. Does not wait for one.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory no longer exists, and if a directory cannot be watched: from
    /// then on, changes would be missed.
    pub(crate) fn next_batch(&mut self, cancel: &CancelToken) -> Result<ChangeBatch, Error> {
        let events = self.kernel.read()?;
        let mut batch = ChangeBatch::default();
        batch.has_more = events.has_more;

        let is_at_or_above = |watch: &i32| *watch == self.top || self.ancestors.contains(watch);
        if events.has_gap || events.moved.iter().chain(&events.ended).any(is_at_or_above) {
            self.watch_all(cancel)?;
            batch.replace_by_rescan(0, self.base.as_bytes());
            return Ok(batch);
        }
        for watch in events.ended {
            self.forget(watch);
        }

        for (watch, entries) in events.entries {
            let Some(mut path) = self.tree.path(watch) else {
                continue; // of a directory that was removed from the tree
            };
            let Some(directory) = self.open_watched(watch, &path)? else {
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            let length = path.len();
            for (name, events) in entries {
                cancel.check()?;
                path.truncate(length);
                path.extend_from_slice(&name);
                let directory = directory.as_fd();
                let entry = Entry { directory, watch, name: &name, path: &path };
                self.apply(&entry, events, &mut batch, cancel)?;
            }
        }
        if batch.is_full {
            batch.replace_by_rescan(0, self.base.as_bytes());
        }
        Ok(batch)
    }

    /// Reports what has become of an entry.
    fn apply(
        &mut self,
        entry: &Entry<'_>,
        events: EntryEvents,
        batch: &mut ChangeBatch,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        let kind = file_kind(entry)?;
        let is_directory = kind == Some(FileKind::Directory);
        if let Some(old) = self.tree.child(entry.watch, entry.name)
            && (events.lost_directory || !is_directory)
        {
            self.forget(old);
        }

        let selection = kind.map(|_| self.select(entry.path, is_directory));
        let is_reported = selection == Some(EntrySelection::Reported);
        let lost = match events {
            EntryEvents { lost_directory: true, .. } => Some((true, FileKind::Directory)),
            EntryEvents { lost_file: true, .. } if !is_reported => Some((false, FileKind::Unknown)),
            EntryEvents { .. } => None,
        };
        let lost_selection = lost.map(|(is_directory, _)| self.select(entry.path, is_directory));
        if let (Some((_, kind)), Some(EntrySelection::Reported)) = (lost, lost_selection) {
            batch.push(EntryChangeKind::Deleted, entry.path, kind);
        }
        if [selection, lost_selection].contains(&Some(EntrySelection::Skipped)) {
            batch.skip();
        }

        let Some(kind) = kind.filter(|_| is_reported) else {
            return Ok(());
        };
        let appeared = events.appeared_last || events.lost_directory;
        if is_directory {
            return self.apply_directory(entry, (appeared, events.is_changed), batch, cancel);
        }
        batch.push(created_or_changed(appeared), entry.path, kind);
        Ok(())
    }

    /// Reports a directory that exists, and watches it if it is new.
    fn apply_directory(
        &mut self,
        entry: &Entry<'_>,
        (appeared, is_changed): (bool, bool),
        batch: &mut ChangeBatch,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        let kind = FileKind::Directory;
        match self.enter(entry)? {
            // Its event follows.
            Entered::Gone => {}
            // It was reported when it was entered.
            Entered::Known if !is_changed => {}
            Entered::Known => batch.push(EntryChangeKind::Changed, entry.path, kind),
            Entered::Not => batch.push(created_or_changed(appeared), entry.path, kind),
            Entered::New { watch, replaced } if appeared || replaced => {
                if replaced {
                    batch.push(EntryChangeKind::Deleted, entry.path, kind);
                }
                batch.push(EntryChangeKind::Created, entry.path, kind);
                self.scan(watch, Some(batch), cancel)?;
            }
            // It was not readable before.
            Entered::New { watch, .. } => {
                self.scan(watch, None, cancel)?;
                batch.push(EntryChangeKind::Rescan, entry.path, kind);
            }
        }
        Ok(())
    }
}

fn created_or_changed(appeared: bool) -> EntryChangeKind {
    if appeared { EntryChangeKind::Created } else { EntryChangeKind::Changed }
}

/// Returns the type of what exists at an entry. `None` if nothing does, or if the daemon may not know.
fn file_kind(entry: &Entry<'_>) -> Result<Option<FileKind>, Error> {
    let name = OsStr::from_bytes(entry.name);
    match retry_on_intr(|| statat(entry.directory, name, AtFlags::SYMLINK_NOFOLLOW)) {
        Ok(stat) => Ok(Some(PathMetadata::from_stat(&stat).kind)),
        Err(errno) if is_gone(errno) => Ok(None),
        Err(Errno::ACCESS | Errno::PERM) => Ok(None),
        Err(errno) => Err(watch_error(errno, entry.path)),
    }
}
