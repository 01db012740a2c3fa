//! Members of an archive, with checked names and link targets.

use super::{
    error::{ArchiveError, ArchiveErrorKind},
    limits::{MAX_MEMBER_DEPTH, MAX_MEMBER_PATH_BYTES},
};

/// Latest time of a member: the end of the year 9999.
const MAX_SECONDS: i64 = 253_402_300_799;

/// A member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Path in the tree: components without `.` and `..`, joined by slashes. Empty for the top.
    pub path: String,
    /// Type of the member.
    pub kind: MemberKind,
    /// Permission bits, without set-user-id, set-group-id and sticky bits.
    pub mode: u32,
    /// Time of the last change of the content, if the archive has a valid one.
    pub modified: Option<ModifyTime>,
}

/// Type of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberKind {
    /// A regular file of this size in bytes.
    File(u64),
    /// A directory.
    Directory,
    /// A symbolic link with this target, which stays in the tree.
    Symlink(String),
    /// Another name of the file at this path of the tree.
    HardLink(String),
}

/// A time that file systems can store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModifyTime {
    seconds: i64,
    nanos: u32,
}

impl ModifyTime {
    /// Takes seconds and nanoseconds since 1970. `None` outside of about ten thousand years.
    #[must_use]
    pub fn new((seconds, nanos): (i64, u32)) -> Option<Self> {
        let is_valid = seconds.abs() <= MAX_SECONDS && nanos < 1_000_000_000;
        is_valid.then_some(Self { seconds, nanos })
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.seconds
    }

    /// Nanoseconds beyond the seconds.
    #[must_use]
    pub fn nanos(self) -> u32 {
        self.nanos
    }
}

/// Checks the name of a member and normalizes it. Removes `.` and empty components.
pub(super) fn member_path(name: &[u8]) -> Result<String, ArchiveError> {
    let text = checked_text(name, "name")?;
    if text.starts_with('/') {
        return Err(escape("the name is absolute"));
    }

    let mut components = Vec::new();
    for component in text.split('/') {
        match component {
            "" | "." => {}
            ".." => return Err(escape("the name has a `..` component")),
            component => components.push(component),
        }
    }
    if components.len() > MAX_MEMBER_DEPTH {
        let text = format!(
            "the name has {} components, and at most {MAX_MEMBER_DEPTH} are accepted",
            components.len()
        );
        return Err(ArchiveError::new(ArchiveErrorKind::TooLarge, text));
    }
    Ok(components.join("/"))
}

/// Checks the target of the symbolic link at `path`: it must stay in the tree, whatever other links
/// it passes through.
///
/// `..` is accepted only at the start, where it leads up from a directory of the tree. After
/// another component, `..` would lead up from the target of a link.
pub(super) fn symlink_target(path: &str, target: &[u8]) -> Result<String, ArchiveError> {
    let text = checked_text(target, "target")?;
    if text.is_empty() {
        return Err(ArchiveError::invalid("the symbolic link has no target"));
    }
    if text.starts_with('/') {
        return Err(escape(format!("the target {text:?} is absolute")));
    }

    let components = || text.split('/').filter(|component| !matches!(*component, "" | "."));
    let depth = path.split('/').count() - 1;
    let leading = components().take_while(|component| *component == "..").count();
    if leading > depth {
        return Err(escape(format!("the target {text:?} leads out of the tree")));
    }
    if components().skip(leading).any(|component| component == "..") {
        let text = format!("the target {text:?} has a `..` component after a name");
        return Err(escape(text));
    }
    Ok(text.to_owned())
}

/// Checks that a name or target is text of a bounded length, without NUL.
fn checked_text<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, ArchiveError> {
    if bytes.len() > MAX_MEMBER_PATH_BYTES {
        let text = format!(
            "the {what} has {} bytes, and at most {MAX_MEMBER_PATH_BYTES} are accepted",
            bytes.len()
        );
        return Err(ArchiveError::new(ArchiveErrorKind::TooLarge, text));
    }
    if bytes.contains(&0) {
        return Err(ArchiveError::invalid(format!("the {what} has a NUL character")));
    }
    str::from_utf8(bytes).map_err(|_| ArchiveError::invalid(format!("the {what} is not UTF-8")))
}

fn escape(message: impl Into<String>) -> ArchiveError {
    ArchiveError::new(ArchiveErrorKind::Escape, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normalized_and_stay_in_the_tree() {
        use ArchiveErrorKind as K;
        let deep = "a/".repeat(MAX_MEMBER_DEPTH + 1);
        let long = "n".repeat(MAX_MEMBER_PATH_BYTES + 1);
        for (name, expected) in [
            (&b"a"[..], Ok("a")),
            (b"./a/./b//c/", Ok("a/b/c")),
            (b"./", Ok("")),
            (b"..a/b..", Ok("..a/b..")),
            (b"/etc/passwd", Err(K::Escape)),
            (b"../a", Err(K::Escape)),
            (b"a/../b", Err(K::Escape)),
            (b"a/..", Err(K::Escape)),
            (b"a\0b", Err(K::Invalid)),
            (b"\xff", Err(K::Invalid)),
            (deep.as_bytes(), Err(K::TooLarge)),
            (long.as_bytes(), Err(K::TooLarge)),
        ] {
            let path = member_path(name).map_err(|error| error.kind);
            assert_eq!(path.as_deref(), expected.as_ref().copied(), "{name:?}");
        }
    }

    #[test]
    fn symbolic_links_stay_in_the_tree() {
        for (path, target, is_accepted) in [
            ("a", "b", true),
            ("a", "./b/c", true),
            ("a", ".", true),
            ("d/a", "..", true),
            ("d/a", "../b", true),
            ("d/e/a", "../../b", true),
            ("a", "..", false),
            ("d/a", "../../b", false),
            ("a", "/etc/passwd", false),
            ("a", "", false),
            ("a", "b\0", false),
            // Lexically inside. But if `b` is a link to the top, this leads out.
            ("d/a", "b/..", false),
            ("d/a", "../b/../..", false),
            ("d/a", ".././b", true),
        ] {
            let target = symlink_target(path, target.as_bytes());
            assert_eq!(target.is_ok(), is_accepted, "{path} -> {target:?}");
        }
    }
}
