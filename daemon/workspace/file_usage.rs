//! Measures what the files below a directory take, while commands may change them.
//!
//! The traversal uses descriptors only, follows no symbolic link and enters no mount. It needs one
//! descriptor for each level of the tree. Disk blocks count as `du` counts them: a sparse file by
//! its blocks, a file with several hard links once.

use std::{
    collections::HashSet,
    mem::MaybeUninit,
    ops::{Add, AddAssign, Sub},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
};

use rustix::fs::{AtFlags, FileType, Mode, RawDir, Stat, chmod, fstat, fstatvfs, statat};

use super::{
    cancel::CancelToken,
    directory::{DIRENT_BUFFER_BYTES, ENTRIES_PER_CHECK},
    resolve::{open_child_directory, open_entry},
};
use crate::daemon::{
    error::Error,
    sys::{Errno, STAT_BLOCK_BYTES},
};

/// Most levels of directories. Each takes a descriptor of the daemon.
pub(super) const MAX_MEASURED_DEPTH: usize = 200;
/// Unit in which file systems allocate space, mostly.
const ALLOCATION_BYTES: u64 = 4096;

/// Disk space, and the number of files, directories and links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FileUsage {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

/// Why the usage of a tree is unknown.
#[derive(Debug)]
pub(super) enum MeasureError {
    /// The path of a directory below more than [`MAX_MEASURED_DEPTH`] others.
    TooDeep(String),
    Os(Errno),
    Cancelled(Error),
}

/// A directory whose subdirectories are measured one after the other.
struct MeasuredLevel {
    directory: OwnedFd,
    name: Vec<u8>,
    subdirectories: Vec<Vec<u8>>,
}

/// A measurement in progress.
struct Measurement<'a> {
    total: FileUsage,
    /// The measurement ends once the total exceeds one of them.
    enough: FileUsage,
    device: u64,
    /// Inodes of files with several hard links.
    linked: HashSet<u64>,
    entries: usize,
    cancel: &'a CancelToken,
}

impl FileUsage {
    /// No bound.
    pub(crate) const MAX: Self = Self { bytes: u64::MAX, files: u64::MAX };

    /// What a new file of this size takes at most.
    pub(super) fn of_file(size: u64) -> Self {
        Self { bytes: allocated(size), files: 1 }
    }

    /// What a new directory takes.
    pub(super) fn of_directory() -> Self {
        Self { bytes: ALLOCATION_BYTES, files: 1 }
    }

    /// What a file takes more at most when it grows.
    pub(super) fn of_growth(from: u64, to: u64) -> Self {
        Self { bytes: allocated(to).saturating_sub(allocated(from)), files: 0 }
    }

    /// Whether neither part exceeds that of `limit`.
    pub(super) fn is_within(self, limit: Self) -> bool {
        self.bytes <= limit.bytes && self.files <= limit.files
    }
}

impl Add for FileUsage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            files: self.files.saturating_add(other.files),
        }
    }
}

impl AddAssign for FileUsage {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for FileUsage {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            files: self.files.saturating_sub(other.files),
        }
    }
}

/// The disk space that a file takes.
pub(super) fn disk_bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(STAT_BLOCK_BYTES)
}

fn allocated(size: u64) -> u64 {
    size.checked_next_multiple_of(ALLOCATION_BYTES).unwrap_or(u64::MAX)
}

/// Measures a directory with everything below it. Ends early once the usage exceeds `enough`.
pub(super) fn measure(
    root: BorrowedFd<'_>,
    enough: FileUsage,
    cancel: &CancelToken,
) -> Result<FileUsage, MeasureError> {
    let directory = open_top(root).map_err(MeasureError::Os)?;
    let stat = fstat(&directory).map_err(MeasureError::Os)?;
    let mut measurement = Measurement {
        total: FileUsage::default(),
        enough,
        device: stat.st_dev,
        linked: HashSet::new(),
        entries: 0,
        cancel,
    };
    measurement.add(&stat);

    let subdirectories = measurement.read(&directory)?;
    let mut levels = vec![MeasuredLevel { directory, name: Vec::new(), subdirectories }];
    while measurement.total.is_within(enough)
        && let Some(level) = levels.last_mut()
    {
        let Some(name) = level.subdirectories.pop() else {
            levels.pop();
            continue;
        };
        let Some(directory) = measurement.open(&level.directory, &name)? else {
            continue;
        };
        let subdirectories = measurement.read(&directory)?;
        levels.push(MeasuredLevel { directory, name, subdirectories });
        if levels.len() > MAX_MEASURED_DEPTH {
            return Err(MeasureError::TooDeep(path_of(&levels)));
        }
    }
    Ok(measurement.total)
}

/// What the files of a project take. The file system reports the limits of the project of a
/// directory as its size (statfs(2)), if it is larger than they are. A part is 0 if it is unknown.
pub(super) fn project_usage(root: impl AsFd, limits: FileUsage) -> Result<FileUsage, MeasureError> {
    let found = fstatvfs(root).map_err(MeasureError::Os)?;
    let block = found.f_frsize.max(1);
    let blocks = [limits.bytes / block, limits.bytes.div_ceil(block)];
    let used = found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(block);
    let files = found.f_files.saturating_sub(found.f_ffree);
    Ok(FileUsage {
        bytes: if blocks.contains(&found.f_blocks) { used } else { 0 },
        files: if found.f_files == limits.files { files } else { 0 },
    })
}

/// The path of the first levels: enough to find the tree.
fn path_of(levels: &[MeasuredLevel]) -> String {
    const SHOWN_LEVELS: usize = 3;
    let names = levels.iter().skip(1).take(SHOWN_LEVELS);
    let names: Vec<_> = names.map(|level| String::from_utf8_lossy(&level.name)).collect();
    names.join("/")
}

impl Measurement<'_> {
    fn add(&mut self, stat: &Stat) {
        self.total += FileUsage { bytes: disk_bytes(stat), files: 1 };
    }

    /// Adds the entries of a directory. Returns the names of its subdirectories.
    fn read(&mut self, directory: &OwnedFd) -> Result<Vec<Vec<u8>>, MeasureError> {
        let mut subdirectories = Vec::new();
        let mut buffer = vec![MaybeUninit::uninit(); DIRENT_BUFFER_BYTES];
        let mut entries = RawDir::new(directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Err(Errno::NOENT) => break, // the directory itself was deleted
                entry => entry.map_err(MeasureError::Os)?,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.entries += 1;
            if self.entries.is_multiple_of(ENTRIES_PER_CHECK) {
                self.cancel.check().map_err(MeasureError::Cancelled)?;
            }

            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            let stat = match statat(directory, name, flags) {
                Err(Errno::NOENT) => continue, // it was just deleted
                Err(Errno::ACCESS) => {
                    make_listable(directory).and_then(|()| statat(directory, name, flags))
                }
                stat => stat,
            };
            let stat = stat.map_err(MeasureError::Os)?;
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let is_left_out = stat.st_dev != self.device
                || !is_directory && stat.st_nlink > 1 && !self.linked.insert(stat.st_ino);
            if is_left_out {
                continue;
            }
            self.add(&stat);
            if !self.total.is_within(self.enough) {
                break;
            }
            if is_directory {
                subdirectories.push(name.to_bytes().to_vec());
            }
        }
        Ok(subdirectories)
    }

    /// Opens a subdirectory. `None` if it has been replaced or deleted.
    fn open(&self, parent: &OwnedFd, name: &[u8]) -> Result<Option<OwnedFd>, MeasureError> {
        let opened = match open_child_directory(parent.as_fd(), name) {
            Err(Errno::ACCESS) => open_entry(parent.as_fd(), name)
                .and_then(|handle| make_listable(&handle))
                .and_then(|()| open_child_directory(parent.as_fd(), name)),
            opened => opened,
        };
        match opened {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => Ok(None),
            Err(errno) => Err(MeasureError::Os(errno)),
        }
    }
}

/// Opens the directory of a handle for reading.
fn open_top(root: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    match open_child_directory(root, b".") {
        Err(Errno::ACCESS) => {
            make_listable(root)?;
            open_child_directory(root, b".")
        }
        opened => opened,
    }
}

/// Gives the owner of a directory all permissions, in addition to what its mode allows. A command may have
/// revoked the permission to itself and to the daemon, which can be the same user.
fn make_listable(handle: impl AsFd) -> Result<(), Errno> {
    let stat = fstat(&handle)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    let mode = Mode::from_raw_mode(stat.st_mode) & Mode::from_raw_mode(0o7777);
    let path = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    chmod(path, mode | Mode::RWXU)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::*;

    fn usage_of(path: &Path, enough: FileUsage) -> Result<FileUsage, MeasureError> {
        let root = fs::File::open(path).unwrap();
        measure(root.as_fd(), enough, &CancelToken::new())
    }

    #[test]
    fn blocks_and_inodes_are_counted_once_and_links_are_not_followed() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |name: &str| directory.path().join(name);
        let empty = usage_of(directory.path(), FileUsage::MAX).unwrap();
        assert_eq!(empty.files, 1);

        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/file"), vec![1; 1 << 20]).unwrap();
        fs::File::open(at("d/file")).unwrap().sync_all().unwrap();
        fs::hard_link(at("d/file"), at("linked")).unwrap();
        symlink("/usr", at("outside")).unwrap();
        fs::File::create(at("sparse")).unwrap().set_len(1 << 40).unwrap();
        let used = usage_of(directory.path(), FileUsage::MAX).unwrap();
        assert_eq!(used.files, 5, "directories, a file, a link and a sparse file");
        let bytes = used.bytes - empty.bytes;
        assert!(((1 << 20)..(1 << 20) + (64 << 10)).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_measurement_ends_at_the_bound() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..500 {
            fs::write(directory.path().join(number.to_string()), "").unwrap();
        }
        let enough = FileUsage { files: 100, ..FileUsage::MAX };
        assert_eq!(usage_of(directory.path(), enough).unwrap().files, 101);
    }

    #[test]
    fn deep_trees_are_not_measured() {
        let directory = tempfile::tempdir().unwrap();
        let path = |depth| directory.path().join("a/b/c").join(vec!["d"; depth].join("/"));
        fs::create_dir_all(path(MAX_MEASURED_DEPTH - 4)).unwrap();
        assert_eq!(usage_of(directory.path(), FileUsage::MAX).unwrap().files, 200);
        fs::create_dir_all(path(MAX_MEASURED_DEPTH - 3)).unwrap();
        let error = usage_of(directory.path(), FileUsage::MAX).unwrap_err();
        assert!(matches!(&error, MeasureError::TooDeep(path) if path == "a/b/c"), "{error:?}");
    }
}
