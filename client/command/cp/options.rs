//! Options of a copy, and rules for names of copies.

use std::{
    process,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::cli_error::CliError;

/// Maximum length of a path on both sides.
pub(super) const MAX_PATH_BYTES: usize = 4095;

/// Options of a copy.
#[derive(Debug, Clone)]
pub(super) struct CopyOptions {
    pub(super) recursive: bool,
    pub(super) no_clobber: bool,
    /// Whether to copy files that git acts on.
    pub(super) with_git: bool,
    pub(super) expected_sha256: Option<String>,
    pub(super) quiet: bool,
}

/// Returns the name that a copy of `path` keeps. `None` for the root and any form of `.` and `..`,
/// which stand for their content.
pub(super) fn base_name(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next()?;
    (!matches!(name, "" | "." | "..")).then_some(name)
}

/// Error for a source without a name to keep.
pub(super) fn no_file_name_error() -> CliError {
    CliError::Usage("SRC has no name to keep: name the file in DST".to_owned())
}

/// Joins a workspace directory and a name.
pub(super) fn join(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{}/{name}", path.trim_end_matches('/')),
    }
}

/// Returns whether the daemon reserves a name for its own files: `.jig-`, a ULID and `.tmp`,
/// optionally with a trailing `~`.
pub(super) fn is_reserved_name(name: &str) -> bool {
    let name = name.strip_suffix('~').unwrap_or(name);
    let id = name.strip_prefix(".jig-").and_then(|name| name.strip_suffix(".tmp"));

    let in_alphabet =
        |byte: u8| matches!(byte, b'0'..=b'9' | b'A'..=b'Z') && !b"ILOU".contains(&byte);
    id.is_some_and(|id| id.len() == 26 && id.bytes().all(in_alphabet))
}

/// Returns a suffix that no other copy uses.
pub(super) fn unique_suffix() -> String {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since_epoch.map_or(0, |time| time.as_nanos());
    format!("{}-{nanos}", process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_names_are_recognized() {
        for (name, is_reserved) in [
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp", true),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp~", true),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAU.tmp", false),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FA.tmp", false),
            (".jig-notes.tmp", false),
            ("", false),
        ] {
            assert_eq!(is_reserved_name(name), is_reserved, "{name}");
        }
    }

    #[test]
    fn copies_keep_the_last_name_of_a_path() {
        for (path, name) in [
            ("a", Some("a")),
            ("a/b/", Some("b")),
            ("./:a", Some(":a")),
            ("..a", Some("..a")),
            ("", None),
            ("/", None),
            (".", None),
            ("./", None),
            ("a/.", None),
            ("a/../", None),
        ] {
            assert_eq!(base_name(path), name, "{path}");
        }
        assert_eq!(join("", "a"), "a");
        assert_eq!(join("a/", "b"), "a/b");
        assert_eq!(join("/", "a"), "/a");
    }
}
