//! Records by workspace that a service has in memory.

use std::fmt::Debug;

/// Records that end with their workspace.
pub(crate) trait WorkspaceRecords: Debug + Send + Sync {
    /// Removes those of a deleted workspace, from the disk too. Blocks.
    fn remove_all_in(&self, workspace: &str);
}
