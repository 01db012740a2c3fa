//! Everything in one directory but the daemon's own files, page by page. The whole directory is read
//! for each page, to be counted and because the kernel keeps no order; only the entries of the page
//! are looked at, and not many more names are held.

use std::os::fd::AsFd as _;

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

/// Names that are held beyond those of a page before the last ones are let go.
const MAX_SPARE_NAMES: usize = 4096;

/// A page of a directory's entries, and what is known of the whole directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectoryPage {
    /// The entries of the page, sorted by the bytes of their names.
    pub(crate) entries: Vec<(String, PathMetadata)>,
    /// Last name of the page when there are more behind it.
    pub(crate) continue_after: Option<String>,
    /// Entries that are no directories.
    pub(crate) files: u32,
    /// Directories.
    pub(crate) directories: u32,
    /// Entries whose names are not UTF-8.
    pub(crate) skipped_names: u32,
}

impl DirectoryPage {
    /// Reads the entries behind the name `after`, at most `most`.
    pub(super) fn read(
        root: &Root,
        path: &RelativePath,
        after: Option<&str>,
        most: usize,
        cancel: &CancelToken,
    ) -> Result<Self, Error> {
        let wanted = |errno| os_error(errno, path.as_str(), ExpectedKind::Directory);
        let directory = root.open_directory(path.as_bytes()).map_err(wanted)?;
        let mut contents = Self::default();
        let mut names: Vec<String> = Vec::new();
        let mut buffer = Vec::with_capacity(DIRENT_BUFFER_BYTES);
        let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
        let mut seen = 0_usize;
        while let Some(entry) = entries.next() {
            seen += 1;
            if seen.is_multiple_of(ENTRIES_PER_CHECK) {
                cancel.check()?;
            }
            let entry = match entry {
                Err(Errno::INTR) => continue,
                entry => entry.map_err(wanted)?,
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." || is_temporary(name) {
                continue;
            }
            let Ok(name) = str::from_utf8(name) else {
                contents.skipped_names = contents.skipped_names.saturating_add(1);
                continue;
            };
            let mut kind = entry.file_type();
            // Some file systems do not say.
            if kind == FileType::Unknown {
                kind = match file_type_of(directory.as_fd(), entry.file_name()) {
                    Err(Errno::NOENT) => continue,
                    kind => kind.map_err(wanted)?,
                };
            }
            let count = if kind == FileType::Directory {
                &mut contents.directories
            } else {
                &mut contents.files
            };
            *count = count.saturating_add(1);
            if after.is_none_or(|after| name > after) {
                names.push(name.to_owned());
                if names.len() > most.saturating_mul(2).saturating_add(MAX_SPARE_NAMES) {
                    retain_first(&mut names, most + 1);
                }
            }
        }
        retain_first(&mut names, most.saturating_add(1));
        names.sort_unstable();
        if names.len() > most {
            names.truncate(most);
            contents.continue_after = names.last().cloned();
        }
        contents.entries.reserve_exact(names.len());
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        for (index, name) in names.into_iter().enumerate() {
            if index.is_multiple_of(ENTRIES_PER_CHECK) {
                cancel.check()?;
            }
            match retry_on_intr(|| statat(&directory, name.as_str(), flags)) {
                Ok(stat) => contents.entries.push((name, PathMetadata::from_stat(&stat))),
                // Gone meanwhile.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(wanted(errno)),
            }
        }
        Ok(contents)
    }
}

fn retain_first(names: &mut Vec<String>, most: usize) {
    if names.len() > most {
        names.select_nth_unstable(most);
        names.truncate(most);
    }
}
