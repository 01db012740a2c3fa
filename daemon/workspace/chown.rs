//! Changes the owner of root's files in a workspace to the user that commands run as.
//!
//! Nothing outside the workspace is changed, whatever the workspace contains, and even if commands
//! change it at the same time. Each entry is opened without following links or entering mounts (openat2(2)),
//! and the checked descriptor is the changed one. Files with several hard links, which may have a
//! name elsewhere, and devices, which give access to hardware, stay unchanged.

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fstat, openat2},
    io::retry_on_intr,
};

use crate::daemon::sys::Errno;

/// How entries are resolved.
const RESOLVE_FLAGS: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV);
/// Flags for a handle to an entry. A symbolic link is opened itself.
const ENTRY_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flags for listing a directory.
const LIST_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Result of a recursive change of the owner.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ChownSummary {
    /// Files, directories and symbolic links that were changed.
    pub(crate) changed: u64,
    /// Entries of root that were not changed.
    pub(crate) skipped: u64,
    /// One skipped entry, and the reason.
    pub(crate) skipped_example: Option<String>,
}

/// Changes the owner of `root` and of everything of root's in it to `owner`. Groups other than
/// root's stay. Fails if the directory `root` itself cannot be changed.
pub(super) fn chown_all(root: BorrowedFd<'_>, owner: (u32, u32)) -> Result<ChownSummary, Errno> {
    let mut summary = ChownSummary::default();
    let top = open(root, b".", ENTRY_FLAGS)?;
    chown_entry(&top, owner, b".", &mut summary)?;
    let mut pending = vec![Vec::new()];
    while let Some(path) = pending.pop() {
        let at = if path.is_empty() { b"." } else { &*path };
        let entries = open(root, at, LIST_FLAGS).and_then(|directory| {
            let entries = Dir::read_from(&directory)?;
            Ok((directory, entries))
        });
        let (directory, entries) = match entries {
            Ok(opened) => opened,
            Err(errno) => {
                summary.record_skipped(at, &errno_reason(errno));
                continue;
            }
        };

        for entry in entries {
            let name = match &entry {
                Ok(entry) => entry.file_name().to_bytes(),
                Err(errno) => {
                    summary.record_skipped(at, &errno_reason(*errno));
                    break;
                }
            };
            if matches!(name, b"." | b"..") {
                continue;
            }
            let mut path = path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            let changed = open(directory.as_fd(), name, ENTRY_FLAGS)
                .and_then(|entry| chown_entry(&entry, owner, &path, &mut summary));
            match changed {
                Ok(FileType::Directory) => pending.push(path),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => summary.record_skipped(&path, &errno_reason(errno)),
            }
        }
    }
    Ok(summary)
}

/// Changes the owner of one entry, if root owns it and its type allows that. Returns its type.
fn chown_entry(
    entry: &OwnedFd,
    (user, group): (u32, u32),
    path: &[u8],
    summary: &mut ChownSummary,
) -> Result<FileType, Errno> {
    let stat = fstat(entry)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if stat.st_uid != 0 {
        return Ok(kind);
    }
    match kind {
        FileType::Directory => {}
        FileType::RegularFile | FileType::Symlink if stat.st_nlink == 1 => {}
        FileType::RegularFile | FileType::Symlink => {
            summary.record_skipped(path, "it has several hard links, which may be elsewhere");
            return Ok(kind);
        }
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => {
            summary.record_skipped(path, "it is neither a file nor a directory");
            return Ok(kind);
        }
    }

    let group = (stat.st_gid == 0).then(|| Gid::from_raw(group));
    chownat(entry, "", Some(Uid::from_raw(user)), group, AtFlags::EMPTY_PATH)?;
    summary.changed += 1;
    Ok(kind)
}

fn open(at: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| openat2(at, OsStr::from_bytes(path), flags, Mode::empty(), RESOLVE_FLAGS))
}

fn errno_reason(errno: Errno) -> String {
    match errno {
        Errno::XDEV => "another file system is mounted there".to_owned(),
        errno => io::Error::from(errno).to_string(),
    }
}

impl ChownSummary {
    fn record_skipped(&mut self, path: &[u8], reason: &str) {
        self.skipped += 1;
        self.skipped_example
            .get_or_insert_with(|| format!("{:?}: {reason}", String::from_utf8_lossy(path)));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
        path::Path,
    };

    use super::*;

    const USER: u32 = 61_000;

    fn owners(path: &Path) -> (u32, u32) {
        let metadata = fs::symlink_metadata(path).unwrap();
        (metadata.uid(), metadata.gid())
    }

    #[test]
    fn only_files_of_root_change_their_owner() {
        assert!(rustix::process::geteuid().is_root(), "this test must run as root");
        let temp_dir = tempfile::tempdir().unwrap();
        let path = |name: &str| temp_dir.path().join(name);
        for directory in ["work/a/b", "outside"] {
            fs::create_dir_all(path(directory)).unwrap();
        }
        for file in ["work/a/b/file", "work/set", "work/other", "work/group", "outside/file"] {
            fs::write(path(file), "").unwrap();
        }
        fs::set_permissions(path("work/set"), fs::Permissions::from_mode(0o4755)).unwrap();
        chown(path("work/other"), Some(5), Some(6)).unwrap();
        chown(path("work/group"), None, Some(6)).unwrap();
        fs::hard_link(path("outside/file"), path("work/linked")).unwrap();
        symlink(path("outside/file"), path("work/out")).unwrap();
        symlink(path("outside"), path("work/way-out")).unwrap();
        let pipe = path("work/pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();

        let work = fs::File::open(path("work")).unwrap();
        let summary = chown_all(work.as_fd(), (USER, USER)).unwrap();
        // The directory, two in it, three files and two links.
        assert_eq!((summary.changed, summary.skipped), (8, 2), "{summary:?}");
        for changed in
            ["work", "work/a", "work/a/b", "work/a/b/file", "work/set", "work/out", "work/way-out"]
        {
            assert_eq!(owners(&path(changed)), (USER, USER), "{changed}");
        }
        assert_eq!(owners(&path("work/group")), (USER, 6));
        assert_eq!(owners(&path("work/other")), (5, 6));
        for unchanged in ["outside", "outside/file", "work/linked", "work/pipe"] {
            assert_eq!(owners(&path(unchanged)), (0, 0), "{unchanged}");
        }
        let mode = path("work/set").metadata().unwrap().mode();
        assert_eq!(mode & 0o7000, 0, "no set-user-ID program for the user of commands");

        let again = chown_all(work.as_fd(), (USER + 1, USER + 1)).unwrap();
        assert_eq!((again.changed, again.skipped), (0, 2), "{again:?}");
        assert_eq!(owners(&path("work")), (USER, USER));
    }
}
