//! The kernel's errors in the terms of the contract.

use std::{io, time::Duration};

use super::path::RelativePath;
use crate::daemon::{
    error::{Error, Reason},
    fd_exhaustion,
    sys::Errno,
};

/// When to try again: those that rename last about as long.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// What a call hoped to find at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedKind {
    /// A file.
    File,
    /// A directory.
    Directory,
}

/// Why the `wanted` thing at `path` could not be used.
pub(super) fn os_error(errno: Errno, path: &str, wanted: ExpectedKind) -> Error {
    let (reason, message) = match (errno, wanted) {
        (Errno::LOOP, _) => (
            Reason::SymlinkBlocked,
            format!(
                "{path:?} is or passes through a symbolic link: give the path that it leads to"
            ),
        ),
        (Errno::XDEV, _) => (Reason::PathEscape, format!("{path:?} leads out of the workspace")),
        // A name that no file system takes cannot be there either.
        (Errno::NAMETOOLONG, ExpectedKind::File) => {
            (Reason::FileNotFound, name_too_long_message(path))
        }
        (Errno::NAMETOOLONG, ExpectedKind::Directory) => {
            (Reason::DirectoryNotFound, name_too_long_message(path))
        }
        (Errno::NOENT | Errno::NOTDIR, ExpectedKind::File) => (
            Reason::FileNotFound,
            format!("no file is at {path:?}: list its directory to see what is there"),
        ),
        (Errno::NOENT, ExpectedKind::Directory) => (
            Reason::DirectoryNotFound,
            format!("no directory is at {path:?}: list the one above it to see what is there"),
        ),
        (Errno::NOTDIR, ExpectedKind::Directory) => (
            Reason::NotADirectory,
            format!("{path:?} is not a directory, or passes through something that is none"),
        ),
        (Errno::ISDIR, _) => {
            (Reason::NotAFile, format!("{path:?} is a directory: give the path of a file"))
        }
        (Errno::FBIG | Errno::OVERFLOW, _) => (
            Reason::FileTooLarge,
            format!("no file of the size of {path:?} is taken by the file system or the daemon"),
        ),
        (Errno::TOOBIG, _) => (
            Reason::FileTooLarge,
            format!("{path:?} has more than 1 MiB of extended attributes: they cannot be kept"),
        ),
        (Errno::NOTEMPTY, _) => (
            Reason::DirectoryNotEmpty,
            format!("the directory {path:?} holds entries: delete them first"),
        ),
        (Errno::BUSY | Errno::TXTBSY, _) => (
            Reason::PermissionDenied,
            format!(
                "the system uses {path:?}, as a mount point or as a running program: leave it where and as it is"
            ),
        ),
        (Errno::ROFS, _) => (
            Reason::PermissionDenied,
            format!("the file system that holds {path:?} is mounted read-only"),
        ),
        (Errno::ACCESS | Errno::PERM, _) => {
            (Reason::PermissionDenied, format!("the daemon's user has no permission for {path:?}"))
        }
        (Errno::NOSPC | Errno::DQUOT, _) => (
            Reason::NoSpace,
            format!("the disk or the quota that holds {path:?} is full: free some space"),
        ),
        (Errno::MLINK, _) => (
            Reason::NoSpace,
            format!("the directory of {path:?} can hold no more directories: choose another one"),
        ),
        (Errno::MFILE | Errno::NFILE, _) => {
            let error = io::Error::from(errno);
            return fd_exhaustion::fd_exhausted_error(error, &format!("{path:?}"))
                .with_metadata("path", path);
        }
        (Errno::AGAIN, _) => (
            Reason::ResourceExhausted,
            format!("directories are being renamed too quickly to find {path:?}: try again"),
        ),
        // No defect of the daemon, but nothing that the caller could mend either.
        (
            Errno::IO
            | Errno::NXIO
            | Errno::NODEV
            | Errno::NOTCONN
            | Errno::REMOTEIO
            | Errno::STALE
            | Errno::TIMEDOUT
            | Errno::UCLEAN,
            _,
        ) => (
            Reason::Internal,
            format!(
                "the disk or the file system that holds {path:?} has failed: its operator must look at it"
            ),
        ),
        _ => return Error::internal(io::Error::from(errno)).with_metadata("path", path),
    };
    let error =
        Error::new(reason, message).with_metadata("path", path).with_cause(io::Error::from(errno));
    if reason == Reason::ResourceExhausted {
        return error.retry_after(RETRY_DELAY);
    }
    error
}

fn name_too_long_message(path: &str) -> String {
    format!("a name in {path:?} is longer than the file system takes")
}

/// The error for a file that must be there and is not.
pub(crate) fn file_not_found(path: &RelativePath) -> Error {
    os_error(Errno::NOENT, path.as_str(), ExpectedKind::File)
}

/// The error for something that is there and must not be.
pub(super) fn already_exists(path: &RelativePath) -> Error {
    let text = format!(
        "something is at {:?} already: choose another path, or say that it may be replaced",
        path.as_str()
    );
    Error::new(Reason::FileExists, text).with_metadata("path", path.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_errno_has_its_reason() {
        use {ExpectedKind::*, Reason as R};
        for (errno, wanted, reason) in [
            (Errno::LOOP, File, R::SymlinkBlocked),
            (Errno::LOOP, Directory, R::SymlinkBlocked),
            (Errno::XDEV, File, R::PathEscape),
            (Errno::NOENT, File, R::FileNotFound),
            (Errno::NOENT, Directory, R::DirectoryNotFound),
            (Errno::NOTDIR, File, R::FileNotFound),
            (Errno::NOTDIR, Directory, R::NotADirectory),
            (Errno::NAMETOOLONG, File, R::FileNotFound),
            (Errno::NAMETOOLONG, Directory, R::DirectoryNotFound),
            (Errno::ACCESS, File, R::PermissionDenied),
            (Errno::PERM, Directory, R::PermissionDenied),
            (Errno::NOSPC, File, R::NoSpace),
            (Errno::DQUOT, File, R::NoSpace),
            (Errno::MFILE, File, R::ResourceExhausted),
            (Errno::NFILE, Directory, R::ResourceExhausted),
            (Errno::AGAIN, File, R::ResourceExhausted),
            (Errno::ISDIR, File, R::NotAFile),
            (Errno::FBIG, File, R::FileTooLarge),
            (Errno::TOOBIG, File, R::FileTooLarge),
            (Errno::ROFS, File, R::PermissionDenied),
            (Errno::OVERFLOW, File, R::FileTooLarge),
            (Errno::NOTEMPTY, Directory, R::DirectoryNotEmpty),
            (Errno::BUSY, File, R::PermissionDenied),
            (Errno::TXTBSY, File, R::PermissionDenied),
            (Errno::MLINK, Directory, R::NoSpace),
            (Errno::IO, File, R::Internal),
            (Errno::NXIO, File, R::Internal),
            (Errno::NODEV, File, R::Internal),
            (Errno::INVAL, File, R::Internal),
        ] {
            let error = os_error(errno, "a/b", wanted);
            assert_eq!(error.reason, reason, "{errno:?} {wanted:?}");
            assert_eq!(error.retry_after.is_some(), reason == R::ResourceExhausted, "{errno:?}");
            assert_eq!(error.metadata, [("path".into(), "a/b".to_owned())]);
            assert!(error.cause.is_some());
            let is_defect = error.message.contains("defect");
            assert_eq!(is_defect, errno == Errno::INVAL, "{errno:?}: {error}");
        }
    }
}
