//! The patch of one file.

use super::hunk::Hunk;

/// Name that a header has in place of a file that does not exist.
pub(super) const DEV_NULL: &str = "/dev/null";

#[derive(Debug)]
pub(crate) struct FilePatch<'p> {
    /// Path before the patch. Equals `new`, except for renames and copies.
    pub(crate) old: String,
    /// Path after the patch.
    pub(crate) new: String,
    pub(super) kind: FilePatchKind,
    /// Whether the file becomes executable. `None` if the patch does not change it.
    pub(super) executable: Option<bool>,
    pub(super) hunks: Vec<Hunk<'p>>,
}

impl FilePatch<'_> {
    /// Whether a name contains `..`, and so may name another file than its prefix suggests.
    pub(crate) fn has_parent_component(&self) -> bool {
        let mut names = [&self.old, &self.new].into_iter();
        names.any(|name| name.split('/').any(|part| part == ".."))
    }

    /// Returns the header lines that name the file, in git's form but unquoted, so that policy
    /// rules can match the names. Lines of a group are adjacent.
    pub(crate) fn header_lines(&self) -> Vec<String> {
        let Self { old, new, .. } = self;
        let (from, to) = (format!("a/{old}"), format!("b/{new}"));
        let mut groups = vec![format!("diff --git {from} {to}\n")];
        match self.kind {
            FilePatchKind::Rename => groups.push(format!("rename from {old}\nrename to {new}\n")),
            FilePatchKind::Copy => groups.push(format!("copy from {old}\ncopy to {new}\n")),
            FilePatchKind::Create | FilePatchKind::Modify | FilePatchKind::Delete => {}
        }
        let from = if self.kind == FilePatchKind::Create { DEV_NULL } else { &from };
        let to = if self.kind == FilePatchKind::Delete { DEV_NULL } else { &to };
        groups.push(format!("--- {from}\n+++ {to}\n"));
        groups
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilePatchKind {
    Create,
    /// Creates a missing file if the patch has only added lines.
    Modify,
    Delete,
    Rename,
    Copy,
}
