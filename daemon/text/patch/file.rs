//! What a patch does to one file, as it says itself.

use super::hunk::Hunk;

/// A file of a patch.
#[derive(Debug)]
pub(crate) struct FilePatch<'p> {
    /// Where the file was. Where it is too, unless it is renamed or copied.
    pub(crate) old: String,
    /// Where it is then.
    pub(crate) new: String,
    pub(super) kind: Kind,
    /// Whether it can be executed then; none where the patch does not say.
    pub(super) executable: Option<bool>,
    pub(super) hunks: Vec<Hunk<'p>>,
}

/// What is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Create,
    /// A file that is not there is made, where there is no line that it would have to hold.
    Modify,
    Delete,
    Rename,
    Copy,
}
