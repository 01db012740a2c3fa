//! Copies the files of one workspace into another, empty one, while commands may change the first.
//!
//! The traversal uses descriptors only, and follows no symbolic link. It needs two descriptors for
//! each level of the tree.

use std::{
    ffi::CStr,
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd as _, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Timespec, Timestamps, fchmod, fchown,
        fstat, futimens, ioctl_ficlone, mkdirat, openat, readlinkat, seek, statat, symlinkat,
        utimensat,
    },
    process::{Gid, Uid},
};

use super::{
    Workspace,
    cancel::CancelToken,
    fault_injection,
    file_quota::{FileReservation, is_about_bounds},
    file_usage::{FileUsage, disk_bytes},
    temporary::is_temporary,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Most levels of directories. Deeper trees would use up the descriptors of the daemon.
const MAX_DEPTH: usize = 200;

/// A directory that is being copied.
struct CopyLevel {
    source: OwnedFd,
    entries: Dir,
    target: OwnedFd,
}

/// A copy in progress.
struct TreeCopy<'a> {
    target: &'a Workspace,
    /// Owner to give to new files; `None` if they get the right one by themselves.
    owner: Option<(Uid, Gid)>,
    cancel: &'a CancelToken,
}

/// What a copy has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CopySummary {
    /// Files, directories and symbolic links.
    pub(crate) entries: u64,
    /// Sockets, FIFOs, devices, and entries that vanished or cannot be read.
    pub(crate) skipped: u64,
}

impl Workspace {
    /// Copies all files of `source`, except the daemon's temporary ones. Files share their content
    /// where the file system can do that. Hard links become files of their own.
    ///
    /// Fails with `NO_SPACE` if they exceed the bounds of this workspace.
    pub(crate) fn copy_from(
        &self,
        source: &Self,
        cancel: &CancelToken,
    ) -> Result<CopySummary, Error> {
        let copy = TreeCopy { target: self, owner: self.files_owner(), cancel };
        let copied = copy.run(open_level(source.as_fd(), self.as_fd())?).and_then(|summary| {
            // Files may have grown while they were copied.
            let measured = self.quota.as_ref().map(|quota| quota.current_usage(cancel));
            measured.transpose()?;
            self.check_room(FileUsage::default(), cancel).map(|()| summary)
        });
        copied.map_err(|error| match &self.quota {
            Some(quota) if is_about_bounds(&error) => {
                let (name, bounds) = (source.name(), quota.bounds());
                let text = format!(
                    "the files of the workspace {name:?} exceed the bounds of the new one ({bounds}): nothing was created. Delete files there, or create a workspace with higher bounds"
                );
                Error { message: text.into(), ..error }
            }
            _ => error,
        })
    }

    /// Owner to give to new files; `None` if they get the right one by themselves.
    fn files_owner(&self) -> Option<(Uid, Gid)> {
        let (uid, gid) = (Uid::from_raw(self.owner.0), Gid::from_raw(self.owner.1));
        let is_own = uid == rustix::process::geteuid() && gid == rustix::process::getegid();
        (!is_own && rustix::process::geteuid().is_root()).then_some((uid, gid))
    }
}

impl TreeCopy<'_> {
    fn run(&self, first: CopyLevel) -> Result<CopySummary, Error> {
        let mut summary = CopySummary::default();
        let mut levels = vec![first];
        while let Some(level) = levels.last_mut() {
            self.cancel.check()?;
            let entry = match level.entries.next() {
                None => {
                    levels.pop();
                    continue;
                }
                Some(entry) => entry.map_err(copy_error)?,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || is_temporary(name.to_bytes()) {
                continue;
            }

            let _reservation = self.reserve(level, name)?;
            let owner = self.owner;
            let copied = match entry.file_type() {
                FileType::Directory | FileType::Unknown => copy_directory(level, name, owner),
                FileType::RegularFile => copy_file(level, name, owner).map(|()| None),
                FileType::Symlink => copy_link(level, name, owner).map(|()| None),
                FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice => Err(Errno::NXIO),
            };
            match copied {
                Ok(next) => {
                    fault_injection::step();
                    summary.entries += 1;
                    levels.extend(next);
                    if levels.len() > MAX_DEPTH {
                        let text = format!(
                            "the workspace has more than {MAX_DEPTH} levels of directories: copy a part of it instead"
                        );
                        return Err(Error::new(Reason::InvalidParams, text));
                    }
                }
                // It vanished, changed its kind, is no file, or is not for the daemon.
                Err(
                    Errno::NOENT
                    | Errno::NOTDIR
                    | Errno::LOOP
                    | Errno::NXIO
                    | Errno::ACCESS
                    | Errno::PERM
                    | Errno::NODEV
                    | Errno::INVAL,
                ) => summary.skipped += 1,
                Err(errno) => return Err(copy_error(errno)),
            }
        }
        Ok(summary)
    }

    /// Reserves what the copy of an entry takes, if the target has bounds.
    fn reserve(&self, level: &CopyLevel, name: &CStr) -> Result<Option<FileReservation>, Error> {
        if self.target.quota.is_none() {
            return Ok(None);
        }
        let Ok(stat) = statat(&level.source, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(None); // the copy skips it
        };
        let growth = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => FileUsage::of_directory(),
            FileType::RegularFile => FileUsage::of_file(disk_bytes(&stat)),
            FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => FileUsage::of_file(1),
        };
        self.target.reserve(growth, self.cancel)
    }
}

fn open_level(
    source: std::os::fd::BorrowedFd<'_>,
    target: std::os::fd::BorrowedFd<'_>,
) -> Result<CopyLevel, Error> {
    // The workspaces themselves are open with O_PATH.
    let source = open_directory(source, c".").map_err(copy_error)?;
    let target = open_directory(target, c".").map_err(copy_error)?;
    let entries = Dir::read_from(&source).map_err(copy_error)?;
    Ok(CopyLevel { source, entries, target })
}

fn open_directory(parent: impl std::os::fd::AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Makes a directory in the copy. Returns what is needed to copy its entries.
fn copy_directory(
    level: &CopyLevel,
    name: &CStr,
    owner: Option<(Uid, Gid)>,
) -> Result<Option<CopyLevel>, Errno> {
    let source = open_directory(&level.source, name)?;
    let mode = permissions(&source)?;
    mkdirat(&level.target, name, Mode::RWXU)?;
    let target = open_directory(&level.target, name)?;
    set_owner(&target, owner)?;
    // The daemon's user must be able to enter it, and so must commands.
    fchmod(&target, mode | Mode::RWXU)?;
    let entries = Dir::read_from(&source)?;
    Ok(Some(CopyLevel { source, entries, target }))
}

fn copy_file(level: &CopyLevel, name: &CStr, owner: Option<(Uid, Gid)>) -> Result<(), Errno> {
    // O_NONBLOCK: it may have become a FIFO.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let source = openat(&level.source, name, flags, Mode::empty())?;
    let stat = fstat(&source)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::NXIO);
    }

    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = openat(&level.target, name, flags, Mode::RUSR | Mode::WUSR)?;
    fault_injection::step();
    let (mut source, mut target) = (File::from(source), File::from(target));
    if ioctl_ficlone(&target, &source).is_err() {
        copy_content(&mut source, &mut target, stat.st_size)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    }
    set_owner(target.as_fd(), owner)?;
    fchmod(&target, permissions(&source)?)?;
    futimens(&target, &times(&stat))
}

/// Copies the data of a file and leaves its holes (lseek(2)). In the kernel, where the file systems
/// can do that (copy_file_range(2)).
fn copy_content(source: &mut File, target: &mut File, size: i64) -> io::Result<()> {
    let size = u64::try_from(size).unwrap_or(0);
    target.set_len(size)?;
    let mut position = 0;
    while position < size {
        let start = match seek(&*source, SeekFrom::Data(position)) {
            Err(Errno::NXIO) => break, // the rest is a hole
            start => start?,
        };
        let end = seek(&*source, SeekFrom::Hole(start))?;
        seek(&*source, SeekFrom::Start(start))?;
        seek(&*target, SeekFrom::Start(start))?;
        io::copy(&mut source.take(end - start), target)?;
        position = end;
    }
    Ok(())
}

fn copy_link(level: &CopyLevel, name: &CStr, owner: Option<(Uid, Gid)>) -> Result<(), Errno> {
    let destination = readlinkat(&level.source, name, Vec::new())?;
    symlinkat(&destination, &level.target, name)?;
    if let Some((uid, gid)) = owner {
        rustix::fs::chownat(&level.target, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    let stat = statat(&level.source, name, AtFlags::SYMLINK_NOFOLLOW)?;
    utimensat(&level.target, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW)
}

/// Permission bits without set-user-id, set-group-id and sticky bit.
fn permissions(file: impl std::os::fd::AsFd) -> Result<Mode, Errno> {
    Ok(Mode::from_raw_mode(fstat(file)?.st_mode) & (Mode::RWXU | Mode::RWXG | Mode::RWXO))
}

fn set_owner(file: impl std::os::fd::AsFd, owner: Option<(Uid, Gid)>) -> Result<(), Errno> {
    owner.map_or(Ok(()), |(uid, gid)| fchown(file, Some(uid), Some(gid)))
}

fn times(stat: &rustix::fs::Stat) -> Timestamps {
    let nanoseconds = |value: u64| i64::try_from(value).unwrap_or_default();
    Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: nanoseconds(stat.st_atime_nsec) },
        last_modification: Timespec {
            tv_sec: stat.st_mtime,
            tv_nsec: nanoseconds(stat.st_mtime_nsec),
        },
    }
}

fn copy_error(errno: Errno) -> Error {
    match errno {
        Errno::NOSPC | Errno::DQUOT => Error::new(
            Reason::NoSpace,
            "the disk of the workspaces is full: nothing was created. Free space, and retry",
        ),
        errno => Error::internal(format!("cannot copy the files of the workspace: {errno}")),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
        path::Path,
    };

    use super::*;

    fn workspace(path: &Path) -> Workspace {
        Workspace::open("w", path, "/workspace").unwrap()
    }

    #[test]
    fn a_copy_has_files_links_and_modes_and_nothing_else() {
        let [source, target] = [0, 1].map(|_| tempfile::tempdir().unwrap());
        let at = |name: &str| source.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/script"), "text").unwrap();
        fs::set_permissions(at("a/b/script"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::hard_link(at("a/b/script"), at("hard")).unwrap();
        symlink("/etc/passwd", at("outside")).unwrap();
        symlink("a", at("inside")).unwrap();
        fs::write(at(".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp"), "").unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("fifo"),
            FileType::Fifo,
            Mode::RWXU,
            rustix::fs::makedev(0, 0),
        )
        .unwrap();

        let copied = workspace(target.path())
            .copy_from(&workspace(source.path()), &CancelToken::new())
            .unwrap();
        assert_eq!(copied, CopySummary { entries: 6, skipped: 1 });
        let script = fs::metadata(target.path().join("a/b/script")).unwrap();
        assert_eq!(script.mode() & 0o7777, 0o755);
        assert_eq!(
            script.modified().unwrap(),
            fs::metadata(at("hard")).unwrap().modified().unwrap()
        );
        assert_eq!(fs::read_to_string(target.path().join("hard")).unwrap(), "text");
        let link = fs::read_link(target.path().join("outside")).unwrap();
        assert_eq!(link, Path::new("/etc/passwd"));
        assert_eq!(fs::read_dir(target.path()).unwrap().count(), 4);
    }

    #[test]
    fn deep_trees_are_rejected() {
        let [source, target] = [0, 1].map(|_| tempfile::tempdir().unwrap());
        let mut path = source.path().to_owned();
        for _ in 0..MAX_DEPTH {
            path.push("d");
        }
        fs::create_dir_all(&path).unwrap();
        let copied =
            workspace(target.path()).copy_from(&workspace(source.path()), &CancelToken::new());
        assert_eq!(copied.unwrap_err().reason, Reason::InvalidParams);
    }
}
