//! How files are copied, and the names that copies have.

use std::{
    process,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::cli_error::CliError;

/// Longest path that either side takes, in bytes.
pub(super) const MAX_PATH_BYTES: usize = 4095;

/// How files are copied.
#[derive(Debug, Clone)]
pub(super) struct CopyOptions {
    pub(super) recursive: bool,
    pub(super) no_clobber: bool,
    /// Copies what git acts on as well.
    pub(super) with_git: bool,
    pub(super) expected_sha256: Option<String>,
    pub(super) quiet: bool,
}

/// The name that the copy of a path keeps. None for `.` and `..`, however they are written, and for
/// the root: what is in those is meant.
pub(super) fn base_name(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next()?;
    (!matches!(name, "" | "." | "..")).then_some(name)
}

/// There is no name for the copy of a file.
pub(super) fn no_file_name_error() -> CliError {
    CliError::Usage("SRC has no name to keep: name the file in DST".to_owned())
}

/// The path of `name` in the directory at `path` of the workspace.
pub(super) fn join(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{}/{name}", path.trim_end_matches('/')),
    }
}

/// Whether a daemon keeps a name for its own files: `.jig-`, a ULID and `.tmp`, maybe with a `~`
/// behind it. It takes no file of such a name.
pub(super) fn is_reserved_name(name: &str) -> bool {
    let name = name.strip_suffix('~').unwrap_or(name);
    let id = name.strip_prefix(".jig-").and_then(|name| name.strip_suffix(".tmp"));
    let in_alphabet =
        |byte: u8| matches!(byte, b'0'..=b'9' | b'A'..=b'Z') && !b"ILOU".contains(&byte);
    id.is_some_and(|id| id.len() == 26 && id.bytes().all(in_alphabet))
}

/// Something that no other copy has in its name.
pub(super) fn unique_suffix() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos());
    format!("{}-{now}", process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_daemons_keep() {
        for (name, is_kept) in [
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp", true),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp~", true),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAU.tmp", false),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FA.tmp", false),
            (".jig-notes.tmp", false),
            ("", false),
        ] {
            assert_eq!(is_reserved_name(name), is_kept, "{name}");
        }
    }

    #[test]
    fn names_that_copies_keep() {
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
