//! Lists one directory, in the order of the whole paths below it.

use std::{cmp::Ordering, os::fd::BorrowedFd};

use rustix::{
    fs::{AtFlags, FileType, RawDir, statat},
    io::retry_on_intr,
};

use super::cancel::CancelToken;
use crate::daemon::{error::Error, sys::Errno};

/// Entries between two cancellation checks.
pub(super) const ENTRIES_PER_CHECK: usize = 256;
/// Buffer for entries from the kernel, of the size that the C library uses.
pub(super) const DIRENT_BUFFER_BYTES: usize = 32 * 1024;

/// The regular files and directories of one directory.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// All names in one buffer, as a directory may have a million of them.
    names: Vec<u8>,
    entries: Vec<ListingEntry>,
    next: usize,
    pub(super) special_entries: SpecialEntries,
}

/// An entry of a [`Listing`].
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingEntry {
    start: u32,
    length: u8,
    pub(super) is_directory: bool,
    /// Whether the entry is counted, but neither entered nor returned.
    pub(super) is_excluded: bool,
}

/// Which entries that affect the selection of files a directory has.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpecialEntries {
    /// An entry `.git` of any type: the top of a repository.
    pub(super) git: bool,
    /// A file `.gitignore`.
    pub(super) gitignore: bool,
    /// A file `.ignore`.
    pub(super) ignore: bool,
    /// A file `.rgignore`.
    pub(super) rgignore: bool,
}

/// Memory for listings.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingBudget {
    pub(super) entries: usize,
    /// Bytes of the entries' names.
    pub(super) bytes: usize,
}

/// Why a directory could not be read.
#[derive(Debug)]
pub(super) enum ReadDirectoryError {
    Os(Errno),
    /// The directory has more entries than the budget allows.
    OverBudget,
    /// The call was cancelled or failed.
    Aborted(Error),
}

/// Reads directories through one buffer.
#[derive(Debug)]
pub(super) struct DirectoryReader {
    buffer: Vec<u8>,
}

impl DirectoryReader {
    pub(super) fn new() -> Self {
        Self { buffer: Vec::with_capacity(DIRENT_BUFFER_BYTES) }
    }

    /// Reads a directory. The entries are unsorted; see [`Listing::filter_and_sort`].
    pub(super) fn read(
        &mut self,
        directory: BorrowedFd<'_>,
        budget: ListingBudget,
        cancel: &CancelToken,
    ) -> Result<Listing, ReadDirectoryError> {
        let mut listing = Listing::default();
        let mut entries = RawDir::new(directory, self.buffer.spare_capacity_mut());
        let mut seen = 0_usize;

        while let Some(entry) = entries.next() {
            seen += 1;
            if seen.is_multiple_of(ENTRIES_PER_CHECK) {
                cancel.check()?;
            }
            let entry = match entry {
                Err(Errno::INTR) => continue,
                entry => entry?,
            };

            let name = entry.file_name().to_bytes();
            let mut kind = entry.file_type();
            // Some file systems do not report the type.
            if kind == FileType::Unknown {
                kind = match file_type_of(directory, entry.file_name()) {
                    Err(Errno::NOENT) => continue,
                    kind => kind?,
                };
            }

            listing.add(name, kind);
            if listing.entries.len() > budget.entries || listing.names.len() > budget.bytes {
                return Err(ReadDirectoryError::OverBudget);
            }
        }
        Ok(listing)
    }
}

impl Listing {
    /// Returns the next entry and its name.
    pub(super) fn next(&mut self) -> Option<(ListingEntry, &[u8])> {
        let entry = *self.entries.get(self.next)?;
        self.next += 1;
        Some((entry, entry_name(&self.names, entry)))
    }

    /// Keeps the entries for which `select` returns true, and sorts them. `select` may also mark an
    /// entry as excluded. The name of a directory sorts with a trailing slash, because the paths of
    /// its files continue so.
    pub(super) fn filter_and_sort(
        &mut self,
        mut select: impl FnMut(&mut ListingEntry, &[u8]) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let names = &self.names;
        let mut result = Ok(());
        self.entries.retain_mut(|entry| {
            let name = entry_name(names, *entry);
            match select(entry, name) {
                Ok(keep) => keep,
                Err(error) => {
                    result = Err(error);
                    false
                }
            }
        });
        result?;
        self.entries.sort_unstable_by(|a, b| {
            compare_paths(
                (entry_name(names, *a), a.is_directory),
                (entry_name(names, *b), b.is_directory),
            )
        });
        Ok(())
    }

    /// Whether directories to enter follow.
    pub(super) fn has_directories(&self) -> bool {
        self.entries[self.next..].iter().any(|entry| entry.is_directory && !entry.is_excluded)
    }

    /// Returns the memory that the listing uses.
    pub(super) fn memory_use(&self) -> ListingBudget {
        ListingBudget { entries: self.entries.len(), bytes: self.names.len() }
    }

    fn add(&mut self, name: &[u8], kind: FileType) {
        let is_directory = kind == FileType::Directory;
        let is_file = kind == FileType::RegularFile;
        match name {
            b"." | b".." => return,
            b".git" => self.special_entries.git = true,
            b".gitignore" => self.special_entries.gitignore |= is_file,
            b".ignore" => self.special_entries.ignore |= is_file,
            b".rgignore" => self.special_entries.rgignore |= is_file,
            _ => {}
        }
        if !is_directory && !is_file {
            return;
        }
        // Linux has no names of more than 255 bytes, and the budget for names is far below 4 GiB.
        let (Ok(start), Ok(length)) = (u32::try_from(self.names.len()), u8::try_from(name.len()))
        else {
            return;
        };
        self.names.extend_from_slice(name);
        self.entries.push(ListingEntry {
            start,
            length,
            is_directory,
            is_excluded: str::from_utf8(name).is_err(),
        });
    }
}

impl From<Errno> for ReadDirectoryError {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

impl From<Error> for ReadDirectoryError {
    fn from(error: Error) -> Self {
        Self::Aborted(error)
    }
}

/// Compares two entries of one directory as the paths of the files in them.
fn compare_paths(a: (&[u8], bool), b: (&[u8], bool)) -> Ordering {
    let ((a, a_is_directory), (b, b_is_directory)) = (a, b);
    let common = a.len().min(b.len());
    let byte_after = |name: &[u8], is_directory: bool| {
        let slash = is_directory.then_some(b'/');
        name.get(common).copied().or(slash)
    };
    a[..common]
        .cmp(&b[..common])
        .then_with(|| byte_after(a, a_is_directory).cmp(&byte_after(b, b_is_directory)))
}

fn entry_name(names: &[u8], entry: ListingEntry) -> &[u8] {
    let start = entry.start as usize;
    &names[start..start + usize::from(entry.length)]
}

/// Returns the type of the entry `name`.
pub(super) fn file_type_of(
    directory: BorrowedFd<'_>,
    name: &std::ffi::CStr,
) -> Result<FileType, Errno> {
    retry_on_intr(|| statat(directory, name, AtFlags::SYMLINK_NOFOLLOW))
        .map(|stat| FileType::from_raw_mode(stat.st_mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::error::Reason;

    #[test]
    fn entries_sort_as_the_paths_below_them() {
        let names = ["a", "a-", "a.txt", "a0", "ab", "b", "\u{e9}", "\u{1f600}"];
        for a in names {
            for b in names {
                for (a_is_directory, b_is_directory) in
                    [(false, false), (false, true), (true, false), (true, true)]
                {
                    if a == b {
                        continue;
                    }
                    let path = |name: &str, is_directory| {
                        if is_directory { format!("{name}/x") } else { name.to_owned() }
                    };
                    assert_eq!(
                        compare_paths(
                            (a.as_bytes(), a_is_directory),
                            (b.as_bytes(), b_is_directory)
                        ),
                        path(a, a_is_directory).cmp(&path(b, b_is_directory)),
                        "{a} {a_is_directory} {b} {b_is_directory}"
                    );
                }
            }
        }
    }

    #[test]
    fn reading_stops_at_the_budget_and_on_cancellation() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..300 {
            std::fs::write(directory.path().join(number.to_string()), "").unwrap();
        }
        let open = std::fs::File::open(directory.path()).unwrap();
        let read = |budget, cancel: &CancelToken| {
            use std::{io::Seek as _, os::fd::AsFd as _};
            (&open).rewind().unwrap();
            DirectoryReader::new().read(open.as_fd(), budget, cancel)
        };
        let cancel = CancelToken::new();
        let budget = |entries, bytes| ListingBudget { entries, bytes };
        assert_eq!(read(budget(300, 1000), &cancel).unwrap().memory_use().entries, 300);
        for budget in [budget(299, 1000), budget(300, 100)] {
            assert!(matches!(read(budget, &cancel), Err(ReadDirectoryError::OverBudget)));
        }
        cancel.cancel();
        let Err(ReadDirectoryError::Aborted(error)) = read(budget(300, 1000), &cancel) else {
            panic!("it is not cancelled");
        };
        assert_eq!(error.reason, Reason::Timeout);
    }
}
