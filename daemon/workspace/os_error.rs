//! Maps errors of the kernel to reasons of the contract.

use std::{io, time::Duration};

use super::path::RelativePath;
use crate::daemon::{
    error::{Error, Reason},
    fd_exhaustion,
    sys::Errno,
};

/// Delay before a retry: about as long as concurrent renames last.
const OS_LIMIT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The kind of file that a call expects at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedKind {
    File,
    Directory,
}

/// Builds the error about the `expected` file at `path`. Unknown errors are internal.
pub(super) fn os_error(errno: Errno, path: &str, expected: ExpectedKind) -> Error {
    if matches!(errno, Errno::MFILE | Errno::NFILE) {
        let error = io::Error::from(errno);
        return fd_exhaustion::fd_exhausted_error(error, &format!("{path:?}"))
            .with_metadata("path", path);
    }
    let Some((reason, message)) = classify(errno, path, expected) else {
        return Error::internal(io::Error::from(errno)).with_metadata("path", path);
    };

    let error =
        Error::new(reason, message).with_metadata("path", path).with_cause(io::Error::from(errno));
    if reason == Reason::ResourceExhausted {
        return error.with_retry_after(OS_LIMIT_RETRY_DELAY);
    }
    error
}

/// Returns the reason and the message for an error number. `None` for one that should not occur.
fn classify(errno: Errno, path: &str, expected: ExpectedKind) -> Option<(Reason, String)> {
    classify_path(errno, path, expected).or_else(|| classify_file(errno, path))
}

/// Classifies errors about the path itself.
fn classify_path(errno: Errno, path: &str, expected: ExpectedKind) -> Option<(Reason, String)> {
    Some(match (errno, expected) {
        (Errno::LOOP, _) => (
            Reason::SymlinkBlocked,
            format!(
                "{path:?} is or passes through a symbolic link: give the path that it leads to"
            ),
        ),
        (Errno::XDEV, _) => (Reason::PathEscape, format!("{path:?} leads out of the workspace")),
        // No file can have a name that no file system accepts.
        (Errno::NAMETOOLONG, ExpectedKind::File) => {
            (Reason::FileNotFound, name_too_long_message(path))
        }
        (Errno::NAMETOOLONG, ExpectedKind::Directory) => {
            (Reason::DirectoryNotFound, name_too_long_message(path))
        }
        (Errno::NOENT | Errno::NOTDIR, ExpectedKind::File) => (
            Reason::FileNotFound,
            format!("{path:?} does not exist: list its directory for the existing names"),
        ),
        (Errno::NOENT, ExpectedKind::Directory) => (
            Reason::DirectoryNotFound,
            format!("there is no directory {path:?}: list its parent for the existing names"),
        ),
        (Errno::NOTDIR, ExpectedKind::Directory) => (
            Reason::NotADirectory,
            format!("{path:?} is not a directory, or a part of its path is not"),
        ),
        (Errno::ISDIR, _) => {
            (Reason::NotAFile, format!("{path:?} is a directory: give the path of a file"))
        }
        _ => return None,
    })
}

/// Classifies errors about the file, its file system and its permissions.
fn classify_file(errno: Errno, path: &str) -> Option<(Reason, String)> {
    Some(match errno {
        Errno::FBIG | Errno::OVERFLOW => (
            Reason::FileTooLarge,
            format!("{path:?} is larger than the file system or the daemon supports"),
        ),
        Errno::TOOBIG => (
            Reason::FileTooLarge,
            format!(
                "{path:?} has more than 1 MiB of extended attributes: they cannot be preserved"
            ),
        ),
        Errno::NOTEMPTY => (
            Reason::DirectoryNotEmpty,
            format!("the directory {path:?} is not empty: delete its entries first"),
        ),
        Errno::BUSY | Errno::TXTBSY => (
            Reason::PermissionDenied,
            format!(
                "{path:?} is in use, as a mount point or as a running program: it cannot be changed"
            ),
        ),
        Errno::ROFS => (
            Reason::PermissionDenied,
            format!("the file system that holds {path:?} is mounted read-only"),
        ),
        Errno::ACCESS | Errno::PERM => {
            (Reason::PermissionDenied, format!("the daemon's user has no permission for {path:?}"))
        }
        Errno::NOSPC | Errno::DQUOT => (
            Reason::NoSpace,
            format!("the disk or the quota that holds {path:?} is full: free some space"),
        ),
        Errno::MLINK => (
            Reason::NoSpace,
            format!("the directory of {path:?} can hold no more directories: choose another one"),
        ),
        Errno::AGAIN => (
            Reason::ResourceExhausted,
            format!("directories are being renamed too quickly to find {path:?}: try again"),
        ),
        // Not a defect of the daemon, and nothing that the caller could fix.
        Errno::IO
        | Errno::NXIO
        | Errno::NODEV
        | Errno::NOTCONN
        | Errno::REMOTEIO
        | Errno::STALE
        | Errno::TIMEDOUT
        | Errno::UCLEAN => (
            Reason::Internal,
            format!(
                "the disk or the file system that holds {path:?} has failed: the operator must check it"
            ),
        ),
        _ => return None,
    })
}

fn name_too_long_message(path: &str) -> String {
    format!("a name in {path:?} is longer than the file system takes")
}

/// Builds the error for a file that does not exist.
pub(crate) fn file_not_found_error(path: &RelativePath) -> Error {
    os_error(Errno::NOENT, path.as_str(), ExpectedKind::File)
}

/// Builds the error for a path that must not exist.
pub(super) fn already_exists_error(path: &RelativePath) -> Error {
    let text = format!(
        "{:?} already exists: choose another path, or allow it to be replaced",
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
            let is_internal = error.message.starts_with("internal error");
            assert_eq!(is_internal, errno == Errno::INVAL, "{errno:?}: {error}");
        }
    }
}
