//! Errors about local files, with the codes and reasons that the daemon uses for workspace files.

use std::{
    io::{self, ErrorKind},
    path::Path,
};

/// Kinds of I/O errors, with gRPC code and reason.
const ERROR_KIND_NAMES: [(ErrorKind, &str, &str); 10] = [
    (ErrorKind::NotFound, "NOT_FOUND", "FILE_NOT_FOUND"),
    (ErrorKind::PermissionDenied, "PERMISSION_DENIED", "PERMISSION_DENIED"),
    (ErrorKind::ReadOnlyFilesystem, "PERMISSION_DENIED", "PERMISSION_DENIED"),
    (ErrorKind::AlreadyExists, "ALREADY_EXISTS", "FILE_EXISTS"),
    (ErrorKind::NotADirectory, "FAILED_PRECONDITION", "NOT_A_DIRECTORY"),
    (ErrorKind::IsADirectory, "FAILED_PRECONDITION", "NOT_A_FILE"),
    (ErrorKind::FileTooLarge, "FAILED_PRECONDITION", "FILE_TOO_LARGE"),
    (ErrorKind::StorageFull, "RESOURCE_EXHAUSTED", "NO_SPACE"),
    (ErrorKind::QuotaExceeded, "RESOURCE_EXHAUSTED", "NO_SPACE"),
    (ErrorKind::InvalidFilename, "INVALID_ARGUMENT", "INVALID_PARAMS"),
];

/// A local file or another local resource that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalError {
    /// Name of the gRPC code.
    pub(crate) code: &'static str,
    /// Reason of the contract, if it has one.
    pub(crate) reason: Option<&'static str>,
    /// What happened, and to which file.
    pub(crate) message: String,
    /// Path of the file, if the error is about a file.
    pub(crate) path: Option<String>,
}

impl LocalError {
    /// A file or directory that cannot be used.
    pub(crate) fn file(path: &Path, error: &io::Error) -> Self {
        Self {
            path: Some(path.display().to_string()),
            ..Self::new(&format!("the local file {path:?} cannot be used"), error)
        }
    }

    /// An existing file that must not be replaced.
    pub(crate) fn file_exists(path: &Path) -> Self {
        let message = format!("the local file {path:?} exists, and --no-clobber was given");
        Self { message, ..Self::file(path, &ErrorKind::AlreadyExists.into()) }
    }

    /// A path that is neither a regular file nor a directory.
    pub(crate) fn not_a_file(path: &Path) -> Self {
        let message = format!("the local file {path:?} is not a regular file");
        Self { message, ..Self::file(path, &ErrorKind::IsADirectory.into()) }
    }

    /// A device or pipe, which a copy would replace instead of writing to it.
    pub(crate) fn not_a_destination(path: &Path) -> Self {
        let regular = Self::not_a_file(path);
        let message = format!("{}: redirect the output of `jig read` to it", regular.message);
        Self { message, ..regular }
    }

    /// A symbolic link as the destination of a copy, whose target is missing.
    pub(crate) fn dangling_symlink(path: &Path) -> Self {
        let message = format!(
            "the local file {path:?} is a symbolic link to a missing file: remove it, or name its target"
        );
        Self { message, ..Self::file(path, &ErrorKind::NotFound.into()) }
    }

    /// A symbolic link inside a destination directory. The user may not know that it is there.
    pub(crate) fn symlink(path: &Path) -> Self {
        Self {
            code: "PERMISSION_DENIED",
            reason: Some("SYMLINK_BLOCKED"),
            message: format!(
                "the local file {path:?} is a symbolic link, and copies of directories do not follow links: remove it, or copy the file by itself"
            ),
            path: Some(path.display().to_string()),
        }
    }

    /// A file in a copied directory that git would act on.
    pub(crate) fn vcs_path(path: &Path, problem: &str) -> Self {
        Self {
            code: "FAILED_PRECONDITION",
            reason: None,
            message: format!(
                "{path:?} {problem}: its configuration may name programs to run; copy it with --with-git if you trust it"
            ),
            path: Some(path.display().to_string()),
        }
    }

    /// Any other error. `problem` says what could not be done.
    pub(crate) fn new(problem: &str, error: &io::Error) -> Self {
        let known = ERROR_KIND_NAMES.iter().find(|(kind, ..)| *kind == error.kind());
        Self {
            code: known.map_or("UNKNOWN", |(_, code, _)| code),
            reason: known.map(|(.., reason)| *reason),
            message: format!("{problem}: {error}"),
            path: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_have_codes_and_reasons_of_the_contract() {
        for (errno, code, reason) in [
            (2, "NOT_FOUND", Some("FILE_NOT_FOUND")),
            (13, "PERMISSION_DENIED", Some("PERMISSION_DENIED")),
            (17, "ALREADY_EXISTS", Some("FILE_EXISTS")),
            (20, "FAILED_PRECONDITION", Some("NOT_A_DIRECTORY")),
            (21, "FAILED_PRECONDITION", Some("NOT_A_FILE")),
            (28, "RESOURCE_EXHAUSTED", Some("NO_SPACE")),
            (30, "PERMISSION_DENIED", Some("PERMISSION_DENIED")),
            (36, "INVALID_ARGUMENT", Some("INVALID_PARAMS")),
            (5, "UNKNOWN", None),
        ] {
            let local = LocalError::file(Path::new("a"), &io::Error::from_raw_os_error(errno));
            assert_eq!((local.code, local.reason), (code, reason), "{local:?}");
            assert!(local.message.starts_with("the local file \"a\" "), "{local:?}");
        }
    }
}
