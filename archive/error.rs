//! Why an archive is rejected.

/// Why an archive is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ArchiveError {
    /// Kind of the error.
    pub kind: ArchiveErrorKind,
    /// What is wrong, for people.
    pub message: String,
    /// Name of the member, as far as it is known.
    pub member: Option<String>,
}

/// Kind of an [`ArchiveError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArchiveErrorKind {
    /// The archive is malformed, ambiguous, or has a kind of member that is not accepted.
    Invalid,
    /// A name or a link leads out of the tree.
    Escape,
    /// The archive exceeds a limit.
    TooLarge,
}

impl ArchiveError {
    pub(super) fn new(kind: ArchiveErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), member: None }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ArchiveErrorKind::Invalid, message)
    }

    /// Names the member, unless the error names one already.
    pub(super) fn at(mut self, member: &[u8]) -> Self {
        let name = || String::from_utf8_lossy(member).into_owned();
        self.member.get_or_insert_with(name);
        self
    }
}
