//! The entries of one directory, in the order in which their whole paths sort.

use std::{cmp::Ordering, os::fd::BorrowedFd};

use rustix::{
    fs::{AtFlags, FileType, RawDir, statat},
    io::retry_on_intr,
};

use super::cancel::CancelToken;
use crate::daemon::{error::Error, sys::Errno};

/// Entries between two looks at the time.
pub(super) const ENTRIES_PER_CHECK: usize = 256;
/// Bytes of entries that the kernel gives at once: what the C library takes too.
pub(super) const DIRENT_BUFFER_BYTES: usize = 32 * 1024;

/// Regular files and directories of one directory.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Names, one after the other: a directory may have a million of them.
    names: Vec<u8>,
    entries: Vec<ListingEntry>,
    next: usize,
    /// Which special entries it has.
    pub(super) special_entries: SpecialEntries,
}

/// One entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingEntry {
    start: u32,
    length: u8,
    /// Whether it is a directory.
    pub(super) is_directory: bool,
    /// Whether it is only counted.
    pub(super) is_excluded: bool,
}

/// Entries that say what to leave out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpecialEntries {
    /// Anything named `.git`: a repository begins here.
    pub(super) git: bool,
    /// A file `.gitignore`.
    pub(super) gitignore: bool,
    /// A file `.ignore`.
    pub(super) ignore: bool,
    /// A file `.rgignore`.
    pub(super) rgignore: bool,
}

/// How many entries may still be held.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingBudget {
    /// Entries.
    pub(super) entries: usize,
    /// Bytes of their names.
    pub(super) bytes: usize,
}

/// Why a directory could not be read.
#[derive(Debug)]
pub(super) enum ReadDirectoryError {
    /// The kernel's answer.
    Os(Errno),
    /// There is no room for its entries.
    OverBudget,
    /// The call must end.
    Aborted(Error),
}

/// Reads directories, one after the other, through one buffer.
#[derive(Debug)]
pub(super) struct DirectoryReader {
    buffer: Vec<u8>,
}

impl DirectoryReader {
    /// A reader.
    pub(super) fn new() -> Self {
        Self { buffer: Vec::with_capacity(DIRENT_BUFFER_BYTES) }
    }

    /// Reads a directory. The entries come as the file system keeps them; see [`Listing::arrange`].
    pub(super) fn read(
        &mut self,
        directory: BorrowedFd<'_>,
        room: ListingBudget,
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
            // Some file systems do not say.
            if kind == FileType::Unknown {
                kind = match file_type_of(directory, entry.file_name()) {
                    Err(Errno::NOENT) => continue,
                    kind => kind?,
                };
            }
            listing.add(name, kind);
            if listing.entries.len() > room.entries || listing.names.len() > room.bytes {
                return Err(ReadDirectoryError::OverBudget);
            }
        }
        Ok(listing)
    }
}

impl Listing {
    /// The next entry and its name.
    pub(super) fn next(&mut self) -> Option<(ListingEntry, &[u8])> {
        let entry = *self.entries.get(self.next)?;
        self.next += 1;
        Some((entry, entry_name(&self.names, entry)))
    }

    /// Keeps the entries that `wanted` wants, which may also mark them as left out, and sorts them:
    /// by their names, where a directory's name ends with a slash, since that is what the paths of
    /// its files go on with.
    pub(super) fn filter_and_sort(
        &mut self,
        mut wanted: impl FnMut(&mut ListingEntry, &[u8]) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let names = &self.names;
        let mut trouble = Ok(());
        self.entries.retain_mut(|entry| {
            let name = entry_name(names, *entry);
            match wanted(entry, name) {
                Ok(keep) => keep,
                Err(error) => {
                    trouble = Err(error);
                    false
                }
            }
        });
        trouble?;
        self.entries.sort_unstable_by(|a, b| {
            compare_paths(
                (entry_name(names, *a), a.is_directory),
                (entry_name(names, *b), b.is_directory),
            )
        });
        Ok(())
    }

    /// Whether directories are still to come.
    pub(super) fn has_directories(&self) -> bool {
        self.entries[self.next..].iter().any(|entry| entry.is_directory && !entry.is_excluded)
    }

    /// What it takes up.
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
        // Names of more than 255 bytes do not exist on Linux, and the room for names is far below 4
        // GiB.
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

/// How the paths of two entries of one directory, or of what is in them, sort.
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

/// What the entry called `name` is.
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
                    let path = |name: &str, is_directory| match is_directory {
                        true => format!("{name}/x"),
                        false => name.to_owned(),
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
    fn what_does_not_fit_is_an_error_and_what_is_stopped_ends() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..300 {
            std::fs::write(directory.path().join(number.to_string()), "").unwrap();
        }
        let open = std::fs::File::open(directory.path()).unwrap();
        let read = |room, cancel: &CancelToken| {
            use std::{io::Seek as _, os::fd::AsFd as _};
            (&open).rewind().unwrap();
            DirectoryReader::new().read(open.as_fd(), room, cancel)
        };
        let stop = CancelToken::new();
        let room = |entries, bytes| ListingBudget { entries, bytes };
        assert_eq!(read(room(300, 1000), &stop).unwrap().memory_use().entries, 300);
        for room in [room(299, 1000), room(300, 100)] {
            assert!(matches!(read(room, &stop), Err(ReadDirectoryError::OverBudget)));
        }
        stop.cancel();
        let Err(ReadDirectoryError::Aborted(error)) = read(room(300, 1000), &stop) else {
            panic!("it goes on");
        };
        assert_eq!(error.reason, Reason::Timeout);
    }
}
