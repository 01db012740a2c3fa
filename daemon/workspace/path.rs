//! Parses paths of requests, without file access.

use std::{
    cmp::Ordering,
    ffi::OsStr,
    fmt,
    path::{Component, Path, PathBuf},
};

use crate::daemon::error::{Error, Reason};

/// A path beneath the workspace: relative, without `..`, `.` and empty components.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct RelativePath(String);

impl RelativePath {
    /// Parses a path that is relative to the workspace, or absolute below `mount_path`. `..`
    /// removes the component before it, whatever that is on disk.
    ///
    /// # Errors
    ///
    /// `PATH_ESCAPE` if the path leads out of the workspace.
    pub(crate) fn parse(text: &str, mount_path: &Path) -> Result<Self, Error> {
        if text.contains('\0') {
            return Err(Error::new(
                Reason::InvalidParams,
                format!("{text:?} contains a NUL character, which no path can"),
            )
            .with_metadata("path", text));
        }
        let is_absolute = text.starts_with('/');
        let mut components = Vec::new();
        for component in text.split('/') {
            match component {
                "" | "." => {}
                // The parent of the file system's root is the root. A path above the workspace is
                // outside, even if it comes back.
                ".." => {
                    if components.pop().is_none() && !is_absolute {
                        return Err(path_escape_error(text, mount_path));
                    }
                }
                name => components.push(name),
            }
        }

        let mut relative = components.as_slice();
        if is_absolute {
            for component in mount_path.components() {
                let Component::Normal(name) = component else {
                    continue;
                };
                relative = match relative.split_first() {
                    Some((first, rest)) if OsStr::new(first) == name => rest,
                    _ => return Err(path_escape_error(text, mount_path)),
                };
            }
        }
        Ok(Self(relative.join("/")))
    }

    /// Returns the path as text, `.` for the workspace itself.
    pub(crate) fn as_str(&self) -> &str {
        if self.0.is_empty() { "." } else { &self.0 }
    }

    /// Returns the components joined by slashes. Empty for the workspace itself.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns the components: for the workspace itself, one empty component.
    pub(super) fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// Whether one of the two paths is at or below the other.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.is_at_or_below(other) || other.is_at_or_below(self)
    }

    /// Whether this path is `other` or below it.
    pub(crate) fn is_at_or_below(&self, other: &Self) -> bool {
        other.0.is_empty()
            || self
                .0
                .strip_prefix(&other.0)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Returns the parent directory and the name in it. `None` for the workspace itself.
    pub(crate) fn split(&self) -> Option<(Self, &str)> {
        if self.0.is_empty() {
            return None;
        }
        let (directory, name) = self.0.rsplit_once('/').unwrap_or(("", &self.0));
        Some((Self(directory.to_owned()), name))
    }

    /// Like [`Self::split`], but fails with `NOT_A_FILE` for the workspace itself.
    pub(super) fn split_file(&self) -> Result<(Self, &str), Error> {
        self.split().ok_or_else(|| {
            let text = "that is the workspace itself: name a file in it";
            Error::new(Reason::NotAFile, text).with_metadata("path", self.as_str())
        })
    }

    /// Returns the path of `name` in this directory.
    pub(super) fn join(&self, name: &str) -> Self {
        match self.0.as_str() {
            "" => Self(name.to_owned()),
            directory => Self(format!("{directory}/{name}")),
        }
    }

    /// Returns the path as commands see it.
    pub(crate) fn absolute(&self, mount_path: &Path) -> PathBuf {
        if self.0.is_empty() {
            return mount_path.to_owned();
        }
        mount_path.join(&self.0)
    }
}

impl Ord for RelativePath {
    /// Compares component by component, so that all paths below a path follow it directly.
    fn cmp(&self, other: &Self) -> Ordering {
        self.components().cmp(other.components())
    }
}

impl PartialOrd for RelativePath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn path_escape_error(text: &str, mount_path: &Path) -> Error {
    Error::new(
        Reason::PathEscape,
        format!(
            "{text:?} leads out of the workspace: give a path relative to it, or an absolute one below {mount_path:?}"
        ),
    )
    .with_metadata("path", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_beneath_the_workspace_are_normalized() {
        for (text, expected) in [
            ("", "."),
            (".", "."),
            ("./", "."),
            ("a", "a"),
            ("a/", "a"),
            ("a//b", "a/b"),
            ("./a/./b/.", "a/b"),
            ("a/../b", "b"),
            ("a/..", "."),
            ("missing/../b", "b"),
            ("..a/b..", "..a/b.."),
            ("...", "..."),
            ("a b\n/\u{202e}c", "a b\n/\u{202e}c"),
            ("/work/space", "."),
            ("/work/space/", "."),
            ("//work///space//a", "a"),
            ("/work/./space/a/../b", "b"),
            ("/../work/space/a", "a"),
            ("/work/space/../space/a", "a"),
            ("/work/space/work/space/a", "work/space/a"),
            ("work/space/a", "work/space/a"),
        ] {
            let path = RelativePath::parse(text, Path::new("/work/space")).unwrap();
            assert_eq!(path.as_str(), expected, "{text:?}");
            assert_eq!(path.to_string(), expected);
        }
    }

    #[test]
    fn paths_that_leave_the_workspace_are_rejected() {
        for text in [
            "..",
            "../a",
            "a/../..",
            "a/../../b",
            "../space/a",
            "/",
            "/a",
            "/etc/passwd",
            "/work",
            "/work/spac",
            "/work/spaces",
            "/work/spaces/a",
            "/work/space/..",
            "/work/space/../x",
            "/work/space/../../etc/passwd",
        ] {
            let error = RelativePath::parse(text, Path::new("/work/space")).unwrap_err();
            assert_eq!(error.reason, Reason::PathEscape, "{text:?}");
            assert_eq!(error.metadata, [("path".into(), text.to_owned())]);
            assert!(error.message.contains(&format!("{text:?}")), "{error}");
            assert!(error.message.contains("below \"/work/space\""), "{error}");
        }
        let error = RelativePath::parse("a\0b", Path::new("/work/space")).unwrap_err();
        assert_eq!(error.reason, Reason::InvalidParams);
    }

    #[test]
    fn absolute_path_is_below_the_mount_path() {
        for (text, expected) in [(".", "/work/space"), ("a/b", "/work/space/a/b")] {
            let path = RelativePath::parse(text, Path::new("/work/space")).unwrap();
            let absolute = path.absolute(Path::new("/work/space"));
            assert_eq!(absolute.as_os_str(), expected);
        }
    }
}
