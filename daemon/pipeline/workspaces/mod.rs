//! The workspaces that calls can name: those of the configuration, and those that were created
//! while the daemon runs.

pub(crate) mod created;
pub(crate) mod directories;
pub(crate) mod projects;
pub(crate) mod unserved;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicI64, AtomicU64},
    },
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
    /// Finished calls when the last pass of [`super::workspace_expiry`] looked.
    pub(in crate::daemon::pipeline) seen_calls: AtomicU64,
    /// `last_used_ms` in the database.
    pub(in crate::daemon::pipeline) saved_use_ms: AtomicI64,
}

impl OwnedWorkspace {
    pub(super) fn new(context: WorkspaceContext, stored: StoredWorkspace) -> Self {
        Self {
            context: Arc::new(context),
            owner: stored.owner.clone(),
            seen_calls: AtomicU64::default(),
            saved_use_ms: stored.last_used_ms.into(),
            stored: Mutex::new(stored),
        }
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

    /// The workspaces that `principal` may see, those of the configuration first.
    pub(crate) fn visible_to(&self, principal: &Principal) -> Vec<Arc<WorkspaceContext>> {
        let created = self.read();
        let created = created.values().filter(|owned| principal.can_see_created(&owned.owner));
        self.visible_configured(principal)
            .chain(created.map(|owned| &owned.context))
            .cloned()
            .collect()
    }

    /// The workspaces of the configuration that `principal` may see, in its order.
    pub(crate) fn visible_configured(
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
        let owned = self.find_created(principal, name)?;
        Some(Arc::clone(&owned.context))
    }

    /// The created workspace of this name, if `principal` may see it.
    pub(crate) fn find_created(
        &self,
        principal: &Principal,
        name: &str,
    ) -> Option<Arc<OwnedWorkspace>> {
        let found = self.read().get(name).cloned();
        found.filter(|owned| principal.can_see_created(&owned.owner))
    }

    /// The workspace of this name, for all principals.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<WorkspaceContext>> {
        let mut configured = self.configured.iter();
        let found = configured.find(|context| context.workspace.name() == name).cloned();
        found.or_else(|| self.read().get(name).map(|owned| Arc::clone(&owned.context)))
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
