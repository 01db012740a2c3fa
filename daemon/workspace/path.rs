//! What a request's path may be, decided from its text alone.

use std::{
    cmp::Ordering,
    ffi::OsStr,
    fmt,
    path::{Component, Path, PathBuf},
};

use crate::daemon::error::{Error, Reason};

/// A path beneath the workspace: no `..`, no `.`, no empty component, not absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct RelativePath(String);

impl RelativePath {
    /// Understands a path relative to the workspace, or absolute below `mount_path`. `..` takes
    /// back the component before it, whatever that is on disk.
    pub(crate) fn parse(text: &str, mount_path: &Path) -> Result<Self, Error> {
        if text.contains('\0') {
            return Err(Error::new(
                Reason::InvalidParams,
                format!("{text:?} holds a NUL character: no path can"),
            )
            .with_metadata("path", text));
        }
        let absolute = text.starts_with('/');
        let mut components = Vec::new();
        for component in text.split('/') {
            match component {
                "" | "." => {}
                // Above the root of everything is the root; above the workspace is outside of it,
                // even when the path comes back.
                ".." => {
                    if components.pop().is_none() && !absolute {
                        return Err(path_escape_error(text, mount_path));
                    }
                }
                name => components.push(name),
            }
        }
        let mut below = components.as_slice();
        if absolute {
            for component in mount_path.components() {
                let Component::Normal(name) = component else {
                    continue;
                };
                below = match below.split_first() {
                    Some((first, rest)) if OsStr::new(first) == name => rest,
                    _ => return Err(path_escape_error(text, mount_path)),
                };
            }
        }
        Ok(Self(below.join("/")))
    }

    /// The path as text; `.` is the workspace itself.
    pub(crate) fn as_str(&self) -> &str {
        if self.0.is_empty() { "." } else { &self.0 }
    }

    /// The path as components joined by slashes; empty for the workspace itself.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The names that it is made of; for the workspace itself, one that is empty.
    pub(super) fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// Whether one of the two is the other or lies below it.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.is_at_or_below(other) || other.is_at_or_below(self)
    }

    /// Whether this is `other` or lies below it.
    pub(crate) fn is_at_or_below(&self, other: &Self) -> bool {
        other.0.is_empty()
            || self
                .0
                .strip_prefix(&other.0)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The directory that it lies in, and its name there; nothing for the workspace itself.
    pub(crate) fn split(&self) -> Option<(Self, &str)> {
        if self.0.is_empty() {
            return None;
        }
        let (directory, name) = self.0.rsplit_once('/').unwrap_or(("", &self.0));
        Some((Self(directory.to_owned()), name))
    }

    /// As [`Self::split`], for the path of a file: `NOT_A_FILE` for the workspace itself.
    pub(super) fn split_file(&self) -> Result<(Self, &str), Error> {
        self.split().ok_or_else(|| {
            let text = "that is the workspace itself: name a file in it";
            Error::new(Reason::NotAFile, text).with_metadata("path", self.as_str())
        })
    }

    /// The path of something in the directory that this is the path of.
    pub(super) fn join(&self, name: &str) -> Self {
        match self.0.as_str() {
            "" => Self(name.to_owned()),
            directory => Self(format!("{directory}/{name}")),
        }
    }

    /// The path as commands see it.
    pub(crate) fn absolute(&self, mount_path: &Path) -> PathBuf {
        if self.0.is_empty() {
            return mount_path.to_owned();
        }
        mount_path.join(&self.0)
    }
}

impl Ord for RelativePath {
    /// Component by component: what lies below a path stands right behind it.
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
    fn paths_beneath_the_workspace_are_normalised() {
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
    fn whatever_leaves_the_workspace_is_refused() {
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
    fn commands_see_it_below_the_mount_path() {
        for (text, expected) in [(".", "/work/space"), ("a/b", "/work/space/a/b")] {
            let path = RelativePath::parse(text, Path::new("/work/space")).unwrap();
            let absolute = path.absolute(Path::new("/work/space"));
            assert_eq!(absolute.as_os_str(), expected);
        }
    }
}
