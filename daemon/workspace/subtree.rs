//! Directories that hold some files and nothing else.

use std::{
    collections::BTreeMap,
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::fs::RawDir;

use super::{beneath::open_child, directory::BUFFER, original::Stamp};
use crate::daemon::sys::Errno;

/// A directory that holds some files and nothing else.
#[derive(Debug)]
pub(crate) struct Subtree {
    identity: (u64, u64),
    /// By their paths in it.
    files: BTreeMap<String, Stamp>,
}

impl Subtree {
    /// The directory that `top` tells, with these files.
    pub(super) fn new(top: Stamp, files: impl Iterator<Item = (String, Stamp)>) -> Self {
        Self { identity: top.identity(), files: files.collect() }
    }

    /// Whether that is what `name` is.
    pub(super) fn is_at(&self, directory: BorrowedFd<'_>, name: &str) -> bool {
        let is_it = Stamp::at(directory, name).map(Stamp::identity) == Ok(self.identity);
        let found = open_child(directory, name.as_bytes()).and_then(|top| self.count(&top, ""));
        is_it && found == Ok(Some(self.files.len()))
    }

    /// How many of the files are in a directory; none if there is anything else.
    fn count(&self, directory: &OwnedFd, above: &str) -> Result<Option<usize>, Errno> {
        let mut count = 0;
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
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
                if Stamp::at(directory.as_fd(), name) != Ok(*file) {
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
            let child = open_child(directory.as_fd(), name.as_bytes())?;
            match self.count(&child, &below)? {
                Some(more) => count += more,
                None => return Ok(None),
            }
        }
        Ok(Some(count))
    }
}
