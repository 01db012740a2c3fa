//! Path errors and path syntax as the source documents of dialects treat them.

use crate::daemon::error::{Error, LEADS_OUT, Reason};

/// Whether the error is about a path outside the workspace, or a symbolic link.
pub(super) fn is_path_escape(error: &Error) -> bool {
    matches!(error.reason, Reason::PathEscape | Reason::SymlinkBlocked)
}

/// Whether the error is about a symbolic link that is not known to lead out of the workspace.
pub(super) fn is_link_within(error: &Error) -> bool {
    let leads_out = || error.metadata.iter().any(|(name, _)| name == LEADS_OUT);
    error.reason == Reason::SymlinkBlocked && !leads_out()
}

/// Whether the error is about a missing file or directory.
pub(super) fn is_not_found(error: &Error) -> bool {
    matches!(error.reason, Reason::FileNotFound | Reason::DirectoryNotFound)
}

/// Whether a path starts with a Windows drive. Such a path is outside every workspace, although it
/// could be a file name.
fn has_drive_prefix(path: &str) -> bool {
    let mut characters = path.chars();
    matches!(
        (characters.next(), characters.next(), characters.next()),
        (Some(drive), Some(':'), Some('\\' | '/')) if drive.is_ascii_alphabetic()
    )
}

/// Rejects a path that starts with a Windows drive.
pub(super) fn reject_drive_path(path: &str) -> Result<(), Error> {
    if has_drive_prefix(path) {
        return Err(Error::new(
            Reason::PathEscape,
            format!(
                "{path:?} has a drive, which no workspace has: give a path below the workspace"
            ),
        ));
    }
    Ok(())
}

/// Joins a path to `directory`, which may be relative or absolute.
pub(super) fn join_relative(directory: &str, path: &str) -> String {
    let directory = directory.trim_start_matches("./").trim_end_matches('/');
    match directory {
        "" | "." => path.to_owned(),
        directory => format!("{directory}/{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drive_prefixes_are_detected() {
        for (path, expected) in [
            (r"C:\Windows\System32", true),
            ("d:/x", true),
            ("c:x", false),
            ("1:/x", false),
            ("src/a", false),
            ("", false),
        ] {
            assert_eq!(has_drive_prefix(path), expected, "{path}");
        }
    }

    #[test]
    fn paths_are_joined() {
        for (directory, path) in [
            (".", "a.txt"),
            ("./", "a.txt"),
            ("", "a.txt"),
            ("src", "src/a.txt"),
            ("./src/", "src/a.txt"),
            ("/workspace/src", "/workspace/src/a.txt"),
        ] {
            assert_eq!(join_relative(directory, "a.txt"), path);
        }
    }
}
