//! A page of everything in one directory, except the daemon's temporary files. Each page reads the
//! whole directory, to count the entries and because the kernel does not sort them. Only the
//! entries of the page are examined, and not many more names are held.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::{
    fs::{AtFlags, FileType, RawDir, statat},
    io::retry_on_intr,
};

use super::{
    cancel::CancelToken,
    directory::{DIRENT_BUFFER_BYTES, ENTRIES_PER_CHECK, file_type_of},
    metadata::PathMetadata,
    os_error::{ExpectedKind, os_error},
    path::RelativePath,
    resolve::Root,
    temporary::is_temporary,
};
use crate::daemon::{error::Error, sys::Errno};

/// Names held in addition to twice the page before the last ones are dropped.
const MAX_SPARE_NAMES: usize = 4096;

/// A page of a directory's entries, and the counts of the whole directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectoryPage {
    /// Sorted by the bytes of the names.
    pub(crate) entries: Vec<(String, PathMetadata)>,
    /// Last name of the page, if more follow.
    pub(crate) continue_after: Option<String>,
    /// Number of entries that are not directories.
    pub(crate) files: u32,
    pub(crate) directories: u32,
    /// Number of entries whose names are not UTF-8.
    pub(crate) skipped_names: u32,
}

impl DirectoryPage {
    /// Reads at most `max_entries` entries after the name `after`.
    pub(super) fn read(
        root: &Root,
        path: &RelativePath,
        after: Option<&str>,
        max_entries: usize,
        cancel: &CancelToken,
    ) -> Result<Self, Error> {
        let to_error = |errno| os_error(errno, path.as_str(), ExpectedKind::Directory);
        let directory = root.open_directory(path.as_bytes()).map_err(to_error)?;
        let mut page = Self::default();
        let names = page.read_names(&directory, after, max_entries, cancel, &to_error)?;

        page.entries.reserve_exact(names.len());
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        for (index, name) in names.into_iter().enumerate() {
            if index.is_multiple_of(ENTRIES_PER_CHECK) {
                cancel.check()?;
            }
            match retry_on_intr(|| statat(&directory, name.as_str(), flags)) {
                Ok(stat) => page.entries.push((name, PathMetadata::from_stat(&stat))),
                // The entry was removed in the meantime.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(to_error(errno)),
            }
        }
        Ok(page)
    }

    /// Counts the entries of the directory. Returns the sorted names of the page.
    fn read_names(
        &mut self,
        directory: &OwnedFd,
        after: Option<&str>,
        max_entries: usize,
        cancel: &CancelToken,
        to_error: &impl Fn(Errno) -> Error,
    ) -> Result<Vec<String>, Error> {
        let mut names: Vec<String> = Vec::new();
        let mut buffer = Vec::with_capacity(DIRENT_BUFFER_BYTES);
        let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
        let mut seen = 0_usize;

        while let Some(entry) = entries.next() {
            seen += 1;
            if seen.is_multiple_of(ENTRIES_PER_CHECK) {
                cancel.check()?;
            }
            let entry = match entry {
                Err(Errno::INTR) => continue,
                entry => entry.map_err(to_error)?,
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." || is_temporary(name) {
                continue;
            }
            let Ok(name) = str::from_utf8(name) else {
                self.skipped_names = self.skipped_names.saturating_add(1);
                continue;
            };

            let mut kind = entry.file_type();
            // Some file systems do not report the type.
            if kind == FileType::Unknown {
                kind = match file_type_of(directory.as_fd(), entry.file_name()) {
                    Err(Errno::NOENT) => continue,
                    kind => kind.map_err(to_error)?,
                };
            }
            let is_directory = kind == FileType::Directory;
            let count = if is_directory { &mut self.directories } else { &mut self.files };
            *count = count.saturating_add(1);

            if after.is_none_or(|after| name > after) {
                names.push(name.to_owned());
                if names.len() > max_entries.saturating_mul(2).saturating_add(MAX_SPARE_NAMES) {
                    retain_first(&mut names, max_entries + 1);
                }
            }
        }

        retain_first(&mut names, max_entries.saturating_add(1));
        names.sort_unstable();
        if names.len() > max_entries {
            names.truncate(max_entries);
            self.continue_after = names.last().cloned();
        }
        Ok(names)
    }
}

/// Keeps the first `count` names in sort order.
fn retain_first(names: &mut Vec<String>, count: usize) {
    if names.len() > count {
        names.select_nth_unstable(count);
        names.truncate(count);
    }
}
