//! Settings of the audit log.

use std::path::PathBuf;

/// Settings of `[audit]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuditSettings {
    pub(crate) path: PathBuf,
    /// Size at which the file is rotated. 0: never.
    pub(crate) max_bytes: u64,
    /// Rotated files that are retained.
    pub(crate) max_files: u32,
    /// Whether lines are written through to the disk (fdatasync).
    pub(crate) fsync: bool,
}
