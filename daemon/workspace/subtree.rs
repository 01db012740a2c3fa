//! Directories that hold some files and nothing else.

use std::{
    collections::BTreeMap,
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::fs::RawDir;

use super::{directory::DIRENT_BUFFER_BYTES, resolve::open_child_directory, snapshot::FileVersion};
use crate::daemon::sys::Errno;

/// A directory that holds some files and nothing else.
#[derive(Debug)]
pub(crate) struct Subtree {
    identity: (u64, u64),
    /// By their paths in it.
    files: BTreeMap<String, FileVersion>,
}

impl Subtree {
    /// The directory that `top` tells, with these files.
    pub(super) fn new(
        top: FileVersion,
        files: impl Iterator<Item = (String, FileVersion)>,
    ) -> Self {
        Self { identity: top.identity(), files: files.collect() }
    }

    /// Whether that is what `name` is.
    pub(super) fn is_at(&self, directory: BorrowedFd<'_>, name: &str) -> bool {
        let is_it =
            FileVersion::read(directory, name).map(FileVersion::identity) == Ok(self.identity);
        let found = open_child_directory(directory, name.as_bytes())
            .and_then(|top| self.count_files(&top, ""));
        is_it && found == Ok(Some(self.files.len()))
    }

    /// How many of the files are in a directory; none if there is anything else.
    fn count_files(&self, directory: &OwnedFd, above: &str) -> Result<Option<usize>, Errno> {
        let mut count = 0;
        let mut buffer = vec![MaybeUninit::uninit(); DIRENT_BUFFER_BYTES];
        let mut entries = RawDir::new(directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                return Ok(None);
            };
            if matches!(name, "." | "..") {
                continue;
            }
            let path = format!("{above}{name}");
            if let Some(file) = self.files.get(&path) {
                if FileVersion::read(directory.as_fd(), name) != Ok(*file) {
                    return Ok(None);
                }
                count += 1;
                continue;
            }
            let below = format!("{path}/");
            let next = self.files.range(below.clone()..).next();
            if !next.is_some_and(|(next, _)| next.starts_with(&below)) {
                return Ok(None);
            }
            let child = open_child_directory(directory.as_fd(), name.as_bytes())?;
            match self.count_files(&child, &below)? {
                Some(more) => count += more,
                None => return Ok(None),
            }
        }
        Ok(Some(count))
    }
}
