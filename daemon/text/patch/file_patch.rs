//! What a patch does to one file, as it says itself.

use super::hunk::Hunk;

/// What stands where a file is not.
pub(super) const DEV_NULL: &str = "/dev/null";

/// A file of a patch.
#[derive(Debug)]
pub(crate) struct FilePatch<'p> {
    /// Where the file was. Where it is too, unless it is renamed or copied.
    pub(crate) old: String,
    /// Where it is then.
    pub(crate) new: String,
    pub(super) kind: FilePatchKind,
    /// Whether it can be executed then; none where the patch does not say.
    pub(super) executable: Option<bool>,
    pub(super) hunks: Vec<Hunk<'p>>,
}

impl FilePatch<'_> {
    /// Whether a name of it leads back, and so may end somewhere else than it seems to.
    pub(crate) fn has_parent_component(&self) -> bool {
        let mut names = [&self.old, &self.new].into_iter();
        names.any(|name| name.split('/').any(|part| part == ".."))
    }

    /// The lines that name the file, as git writes them, but without quotes: whoever looks for a name finds it.
    /// Those of a group follow each other.
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

/// What is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilePatchKind {
    Create,
    /// A file that is not there is made, where there is no line that it would have to hold.
    Modify,
    Delete,
    Rename,
    Copy,
}
