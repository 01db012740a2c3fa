//! Recognizes a directory that a file may replace: a patch deletes all its files, and it contains
//! nothing else.

use std::{
    collections::BTreeMap,
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::fs::RawDir;

use super::{directory::DIRENT_BUFFER_BYTES, resolve::open_child_directory, snapshot::FileVersion};
use crate::daemon::sys::Errno;

/// A directory that contains exactly some known files.
#[derive(Debug)]
pub(crate) struct Subtree {
    identity: (u64, u64),
    /// Versions of the files, by their paths in the directory.
    files: BTreeMap<String, FileVersion>,
}

impl Subtree {
    /// Describes the directory with the version `top`, and the files in it.
    pub(super) fn new(
        top: FileVersion,
        files: impl Iterator<Item = (String, FileVersion)>,
    ) -> Self {
        Self { identity: top.identity(), files: files.collect() }
    }

    /// Whether `name` is this directory, with exactly these files.
    pub(super) fn is_at(&self, directory: BorrowedFd<'_>, name: &str) -> bool {
        let version = FileVersion::read(directory, name);
        let is_same = version.map(FileVersion::identity) == Ok(self.identity);
        let count = open_child_directory(directory, name.as_bytes())
            .and_then(|top| self.count_files(&top, ""));
        is_same && count == Ok(Some(self.files.len()))
    }

    /// Counts the known files in a directory, whose path is `prefix`. `None` if it contains
    /// anything else.
    fn count_files(&self, directory: &OwnedFd, prefix: &str) -> Result<Option<usize>, Errno> {
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

            let path = format!("{prefix}{name}");
            if let Some(file) = self.files.get(&path) {
                if FileVersion::read(directory.as_fd(), name) != Ok(*file) {
                    return Ok(None);
                }
                count += 1;
                continue;
            }

            let child_prefix = format!("{path}/");
            let next = self.files.range(child_prefix.clone()..).next();
            if !next.is_some_and(|(next, _)| next.starts_with(&child_prefix)) {
                return Ok(None);
            }
            let child = open_child_directory(directory.as_fd(), name.as_bytes())?;
            match self.count_files(&child, &child_prefix)? {
                Some(files) => count += files,
                None => return Ok(None),
            }
        }
        Ok(Some(count))
    }
}
