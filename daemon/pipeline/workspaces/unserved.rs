//! Created workspaces whose directory is missing. Calls cannot name them, and they keep their records
//! until they are deleted or expire.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use crate::daemon::store::workspaces::StoredWorkspace;

/// The workspaces by name.
#[derive(Debug, Default)]
pub(crate) struct UnservedWorkspaces(Mutex<BTreeMap<String, StoredWorkspace>>);

impl UnservedWorkspaces {
    pub(in crate::daemon::pipeline) fn insert(&self, workspace: StoredWorkspace) {
        let mut workspaces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        workspaces.insert(workspace.name.clone(), workspace);
    }

    /// Removes and returns those that `is_wanted` selects.
    pub(in crate::daemon::pipeline) fn take(
        &self,
        is_wanted: impl Fn(&StoredWorkspace) -> bool,
    ) -> Vec<StoredWorkspace> {
        let mut workspaces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = workspaces.extract_if(.., |_, workspace| is_wanted(workspace));
        taken.map(|(_, workspace)| workspace).collect()
    }
}
