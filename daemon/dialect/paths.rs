//! Paths as documents name them.

use crate::daemon::error::{Error, LEADS_OUT, Reason};

/// Whether an error says that a path leads out of the workspace.
pub(super) fn is_path_escape(error: &Error) -> bool {
    matches!(error.reason, Reason::PathEscape | Reason::SymlinkBlocked)
}

/// Whether an error is about a symbolic link that, as far as is known, does not lead out of the workspace.
pub(super) fn is_link_within(error: &Error) -> bool {
    let leads_out = || error.metadata.iter().any(|(name, _)| name == LEADS_OUT);
    error.reason == Reason::SymlinkBlocked && !leads_out()
}

/// Whether an error says that nothing is at a path.
pub(super) fn is_not_found(error: &Error) -> bool {
    matches!(error.reason, Reason::FileNotFound | Reason::DirectoryNotFound)
}

/// Whether a path is one of Windows with a drive: outside of every workspace, although its name could be that
/// of a file.
fn has_drive_prefix(path: &str) -> bool {
    let mut characters = path.chars();
    matches!(
        (characters.next(), characters.next(), characters.next()),
        (Some(drive), Some(':'), Some('\\' | '/')) if drive.is_ascii_alphabetic()
    )
}

/// Refuses a path with a drive.
pub(super) fn reject_drive_path(path: &str) -> Result<(), Error> {
    match has_drive_prefix(path) {
        true => Err(Error::new(
            Reason::PathEscape,
            format!(
                "{path:?} has a drive, which no workspace has: give a path below the workspace"
            ),
        )),
        false => Ok(()),
    }
}

/// A path below `directory`, relative to the same as that.
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
    fn drives_are_seen() {
        for (path, has) in [
            (r"C:\Windows\System32", true),
            ("d:/x", true),
            ("c:x", false),
            ("1:/x", false),
            ("src/a", false),
            ("", false),
        ] {
            assert_eq!(has_drive_prefix(path), has, "{path}");
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
