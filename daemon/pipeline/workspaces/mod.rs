//! The workspaces that calls can name: those of the configuration, and those that were created
//! while the daemon runs.

pub(crate) mod created;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use super::access::principal::Principal;
use crate::daemon::{store::workspaces::StoredWorkspace, tool::WorkspaceContext};

/// All workspaces of the daemon.
#[derive(Debug)]
pub(crate) struct Workspaces {
    /// In the order of the configuration. The first one that a caller sees is its default.
    configured: Vec<Arc<WorkspaceContext>>,
    /// Created workspaces by name.
    created: RwLock<BTreeMap<String, Arc<OwnedWorkspace>>>,
}

/// A created workspace.
#[derive(Debug)]
pub(crate) struct OwnedWorkspace {
    pub(crate) context: Arc<WorkspaceContext>,
    /// Name of the principal that created it.
    pub(crate) owner: String,
    stored: Mutex<StoredWorkspace>,
}

impl OwnedWorkspace {
    pub(super) fn new(context: WorkspaceContext, stored: StoredWorkspace) -> Self {
        Self { context: Arc::new(context), owner: stored.owner.clone(), stored: Mutex::new(stored) }
    }

    /// What the database has of it, except that `last_used_ms` may be later.
    pub(crate) fn stored(&self) -> StoredWorkspace {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes it in memory. Returns the result.
    pub(in crate::daemon::pipeline) fn change(
        &self,
        change: impl FnOnce(&mut StoredWorkspace),
    ) -> StoredWorkspace {
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut stored);
        stored.clone()
    }
}

impl Workspaces {
    pub(crate) fn new(configured: Vec<WorkspaceContext>) -> Self {
        let configured = configured.into_iter().map(Arc::new).collect();
        Self { configured, created: RwLock::default() }
    }

    /// The workspaces of the configuration, in its order.
    pub(crate) fn configured(&self) -> &[Arc<WorkspaceContext>] {
        &self.configured
    }

    /// All workspaces, those of the configuration first.
    pub(crate) fn all(&self) -> Vec<Arc<WorkspaceContext>> {
        let created = self.read();
        let created = created.values().map(|owned| &owned.context);
        self.configured.iter().chain(created).cloned().collect()
    }

    /// The workspaces that `principal` may see, those of the configuration first.
    pub(crate) fn visible_to(&self, principal: &Principal) -> Vec<Arc<WorkspaceContext>> {
        let created = self.read();
        let created = created.values().filter(|owned| principal.can_see_created(&owned.owner));
        self.visible_configured(principal)
            .chain(created.map(|owned| &owned.context))
            .cloned()
            .collect()
    }

    fn visible_configured(
        &self,
        principal: &Principal,
    ) -> impl Iterator<Item = &Arc<WorkspaceContext>> {
        let all = self.configured.iter();
        all.filter(|context| principal.can_see_workspace(context.workspace.name()))
    }

    /// The workspace of this name, if `principal` may see it. Without a name, its default.
    pub(super) fn find(
        &self,
        principal: &Principal,
        name: Option<&str>,
    ) -> Option<Arc<WorkspaceContext>> {
        let mut configured = self.visible_configured(principal);
        let Some(name) = name else {
            return configured.next().cloned();
        };
        if let Some(found) = configured.find(|context| context.workspace.name() == name) {
            return Some(Arc::clone(found));
        }
        let created = self.read();
        let owned = created.get(name)?;
        principal.can_see_created(&owned.owner).then(|| Arc::clone(&owned.context))
    }

    /// The created workspaces that `principal` may see, by name.
    pub(crate) fn created_visible_to(&self, principal: &Principal) -> Vec<Arc<OwnedWorkspace>> {
        let created = self.read();
        let visible = created.values().filter(|owned| principal.can_see_created(&owned.owner));
        visible.cloned().collect()
    }

    /// All created workspaces.
    pub(in crate::daemon::pipeline) fn created(&self) -> Vec<Arc<OwnedWorkspace>> {
        self.read().values().cloned().collect()
    }

    /// Whether a workspace has this name.
    pub(super) fn is_used(&self, name: &str) -> bool {
        self.configured.iter().any(|context| context.workspace.name() == name)
            || self.read().contains_key(name)
    }

    /// Adds a created workspace. From here on, calls can name it.
    pub(super) fn insert(&self, workspace: OwnedWorkspace) -> Arc<OwnedWorkspace> {
        let workspace = Arc::new(workspace);
        let name = workspace.context.workspace.name().to_owned();
        self.write().insert(name, Arc::clone(&workspace));
        workspace
    }

    /// Removes a created workspace. From here on, calls cannot name it.
    pub(super) fn remove(&self, name: &str) {
        self.write().remove(name);
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Arc<OwnedWorkspace>>> {
        self.created.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Arc<OwnedWorkspace>>> {
        self.created.write().unwrap_or_else(PoisonError::into_inner)
    }
}
