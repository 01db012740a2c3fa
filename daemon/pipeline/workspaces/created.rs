//! Creates workspaces while the daemon runs, and deletes them.
//!
//! ```text
//! create ──▶ stored, not ready ──▶ directory and files ──▶ stored, ready ──▶ calls can name it
//! delete ──▶ stored, not ready; calls cannot name it ──▶ calls, jobs and processes end
//!                                                     ──▶ files and records are removed
//! ```
//!
//! A start of the daemon deletes those that are not ready. Others keep their records if their
//! directory is missing.

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::{
    OwnedWorkspace, Workspaces,
    directories::{assign_project, make_directory, make_persistent, remove_directories},
    projects::Projects,
    unserved::UnservedWorkspaces,
};
use crate::daemon::{
    config::created_workspaces::{CreatedWorkspacesConfig, FileBounds},
    error::{Error, Reason},
    pipeline::state_error::state_database_error,
    sandbox::{plan::CreatedWorkspace, pools::SandboxPools},
    store::{
        unix_millis,
        workspaces::{CreatedWorkspaceTable, StoredWorkspace},
    },
    task,
    tool::WorkspaceContext,
    workspace::{CancelToken, Enforcement, FileUsage, Workspace, fault_injection},
};

/// Letters in a name that the daemon chooses.
const CHOSEN_NAME_LETTERS: usize = 12;

/// Creates workspaces, and removes what is left of deleted ones.
#[derive(Debug)]
pub(crate) struct WorkspaceCreator {
    pub(crate) config: CreatedWorkspacesConfig,
    /// The directory that holds them.
    pub(crate) directory: OwnedFd,
    pub(crate) table: CreatedWorkspaceTable,
    pub(crate) sandboxes: Arc<SandboxPools>,
    /// `None` if the kernel cannot enforce bounds there.
    pub(crate) projects: Option<Projects>,
    /// What all of them have in common. Its own workspace has proven the isolation of commands.
    pub(crate) model: WorkspaceContext,
    /// The directory with the journals of file changes.
    pub(crate) journals: PathBuf,
    /// Cancelled when the daemon kills its calls.
    pub(crate) kill: CancellationToken,
    /// Names of workspaces that are being created or deleted, with their owners.
    pub(crate) busy: Mutex<BTreeMap<String, String>>,
    /// Stored workspaces whose directory is missing.
    pub(crate) unserved: UnservedWorkspaces,
}

/// A workspace to create.
#[derive(Debug)]
pub(crate) struct NewWorkspace {
    /// `None`: the daemon chooses one.
    pub(crate) name: Option<String>,
    /// Name of the principal that creates it.
    pub(crate) owner: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The workspace whose files are copied.
    pub(crate) clone_of: Option<Arc<WorkspaceContext>>,
    /// Bounds, at most those of the operator.
    pub(crate) bounds: FileBounds,
    pub(crate) ttl: Option<Duration>,
    pub(crate) idle_timeout: Option<Duration>,
}

/// The name of a workspace that is being created or deleted. Free again when dropped.
#[derive(Debug)]
pub(in crate::daemon::pipeline) struct BusyName<'a> {
    creator: &'a WorkspaceCreator,
    name: String,
}

impl WorkspaceCreator {
    /// Opens the stored workspaces. Returns those that are not ready.
    pub(in crate::daemon::pipeline) async fn load(
        &self,
        workspaces: &Workspaces,
    ) -> Result<Vec<StoredWorkspace>, Error> {
        let stored = self.table.load_all().await.map_err(|error| state_database_error(&error))?;
        let (ready, incomplete) = stored.into_iter().partition(|workspace| workspace.is_ready);
        let ready: Vec<StoredWorkspace> = ready;
        for workspace in ready {
            if workspaces.named(&workspace.name).is_some() {
                tracing::error!(
                    workspace = workspace.name,
                    owner = workspace.owner,
                    directory = workspace.directory,
                    "a created workspace is not served: the configuration has one of its name. Rename that one to serve both"
                );
                // It counts for its owner's limit, and expires once it is served again.
                self.busy().insert(workspace.name, workspace.owner);
                continue;
            }
            let opened = match self.restore_project(&workspace).await {
                Ok(()) => self.open(&workspace),
                Err(error) => Err(error),
            };
            match opened {
                Ok(context) => {
                    workspaces.insert(OwnedWorkspace::new(context, workspace));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::error!(workspace = workspace.name, %error, "cannot open a workspace");
                    // No other workspace gets its name, or its records.
                    self.busy().insert(workspace.name.clone(), workspace.owner.clone());
                }
                Err(_) => {
                    tracing::warn!(
                        workspace = workspace.name,
                        directory = %self.config.directory.join(&workspace.directory).display(),
                        "a created workspace is not served: its directory is missing. Restore the directory and restart, or delete the workspace"
                    );
                    self.busy().insert(workspace.name.clone(), workspace.owner.clone());
                    self.unserved.insert(workspace);
                }
            }
        }
        Ok(incomplete)
    }

    /// Creates a workspace. Runs to its end even if the caller disconnects.
    pub(in crate::daemon::pipeline) async fn create(
        &self,
        workspaces: &Workspaces,
        new: NewWorkspace,
    ) -> Result<Arc<OwnedWorkspace>, Error> {
        let busy = self.reserve(workspaces, &new)?;
        let now = unix_millis::now();
        let bounds = self.config.bounds.lower(new.bounds);
        let mut stored = StoredWorkspace {
            name: busy.name.clone(),
            directory: Ulid::generate().to_string().to_lowercase(),
            owner: new.owner,
            labels: new.labels,
            is_ready: false,
            created_ms: now,
            last_used_ms: now,
            expires_ms: self.expiry_after(new.ttl),
            idle_timeout_ms: self.idle_timeout_ms(new.idle_timeout),
            max_bytes: bounds.max_bytes.map(to_signed),
            max_files: bounds.max_files.map(to_signed),
            project_id: None,
        };
        if let (Some(projects), Some(limits)) = (&self.projects, self.limits(&stored)) {
            let claimed = projects.claim(limits).await;
            stored.project_id = Some(claimed.map_err(|error| creation_error(&error))?);
        }
        if let Err(error) = self.put(&stored).await {
            self.release_project(&stored).await;
            return Err(error);
        }

        let made = self.make(&mut stored, new.clone_of).await;
        let context = match made {
            Ok(context) => context,
            Err(error) => {
                if let Err(cleanup) = self.remove_rest(&stored).await {
                    tracing::warn!(%cleanup, "an incomplete workspace is removed at the next start");
                    // Another workspace of this name would replace the record of what is left.
                    busy.keep();
                }
                return Err(error);
            }
        };
        context.sandbox_pool.start_initial_slots();
        Ok(workspaces.insert(OwnedWorkspace::new(context, stored)))
    }

    /// How the bounds of new workspaces are enforced.
    pub(crate) fn enforcement(&self) -> Enforcement {
        if self.projects.is_some() { Enforcement::ProjectQuota } else { Enforcement::Watched }
    }

    /// When a workspace expires that should live for `ttl` from now. The operator can set a default
    /// and maximum.
    pub(in crate::daemon::pipeline) fn expiry_after(&self, ttl: Option<Duration>) -> Option<i64> {
        let ttl = at_most(ttl, self.config.ttl)?;
        Some(unix_millis::now().saturating_add(millis(ttl)))
    }

    /// The idle timeout of a workspace, in milliseconds. The operator can set a default and maximum.
    pub(in crate::daemon::pipeline) fn idle_timeout_ms(
        &self,
        timeout: Option<Duration>,
    ) -> Option<i64> {
        at_most(timeout, self.config.idle_timeout).map(millis)
    }

    /// Reserves the name of a workspace, and a place within the limits.
    fn reserve(&self, workspaces: &Workspaces, new: &NewWorkspace) -> Result<BusyName<'_>, Error> {
        let mut busy = self.busy();
        let created = workspaces.created();
        let created: Vec<_> = created
            .iter()
            .filter(|owned| !busy.contains_key(owned.context.workspace.name()))
            .map(|owned| &owned.owner)
            .collect();
        let owners = || created.iter().copied().chain(busy.values());
        let limit = |what: &str, limit: usize| {
            let text = format!(
                "{what} as many workspaces as the operator allows, {limit}: delete one, and retry"
            );
            Error::new(Reason::ResourceExhausted, text)
        };
        if owners().filter(|owner| **owner == new.owner).count() >= self.config.max_per_caller {
            return Err(limit("this caller has", self.config.max_per_caller));
        }
        if owners().count() >= self.config.max_entries {
            return Err(limit("the daemon has", self.config.max_entries));
        }

        let name = new.name.clone().unwrap_or_else(choose_name);
        if busy.contains_key(&name) || workspaces.named(&name).is_some() {
            let text =
                format!("a workspace of the name {name:?} exists: choose another name, or none");
            return Err(Error::new(Reason::WorkspaceExists, text).with_metadata("workspace", name));
        }
        busy.insert(name.clone(), new.owner.clone());
        drop(busy);
        Ok(BusyName { creator: self, name })
    }

    /// Makes the directory of a workspace with its files, opens it, and stores that it is ready.
    async fn make(
        &self,
        stored: &mut StoredWorkspace,
        clone_of: Option<Arc<WorkspaceContext>>,
    ) -> Result<WorkspaceContext, Error> {
        make_directory(&self.directory, &stored.directory)
            .and_then(|()| self.set_project(stored))
            .map_err(|error| creation_error(&error))?;
        let context = self.open(stored).map_err(|error| creation_error(&error))?;
        let filled = self.fill(&context, clone_of).await;
        stored.is_ready = true;
        let made = match filled {
            Ok(()) => self.put(stored).await,
            Err(error) => Err(error),
        };
        if let Err(error) = made {
            self.sandboxes.remove(&context.sandbox_pool);
            return Err(error);
        }
        Ok(context)
    }

    /// Copies files into a new workspace.
    async fn fill(
        &self,
        new: &WorkspaceContext,
        clone_of: Option<Arc<WorkspaceContext>>,
    ) -> Result<(), Error> {
        let Some(source) = clone_of else {
            return Ok(());
        };
        let (target, source) = (Arc::clone(&new.workspace), Arc::clone(&source.workspace));
        let copy = move || target.copy_from(&source, &CancelToken::new());
        let copied = task::spawn_blocking(copy).await.map_err(Error::internal)?;
        copied.map(drop)
    }

    /// Opens a workspace that has its directory. It gets processes with its first command.
    fn open(&self, stored: &StoredWorkspace) -> io::Result<WorkspaceContext> {
        let path = self.config.directory.join(&stored.directory);
        let mount_path = self.model.workspace.mount_path();
        let is_in_place = mount_path == self.model.workspace.path();
        let mount_path = if is_in_place { path.as_path() } else { mount_path };
        let mut workspace = Workspace::open(stored.name.clone(), path.clone(), mount_path)?;
        workspace.sync_changes(self.model.workspace.syncs_changes());
        workspace.open_journals(&self.journals)?;
        let project = stored.project_id.filter(|_| self.projects.is_some());
        let wanted = self.config.common.persistent;
        let (persistent, beside) =
            make_persistent(&self.directory, &stored.directory, wanted, project)?;
        if let Some(limits) = self.limits(stored) {
            let enforcement = project.map_or(Enforcement::Watched, |_| Enforcement::ProjectQuota);
            workspace.limit_files(limits, beside, enforcement)?;
        }

        let created = CreatedWorkspace {
            name: stored.name.clone(),
            directory: stored.directory.clone(),
            file_identity: workspace.identity(),
            persistent,
        };
        let pool = self.sandboxes.add(created);
        pool.assume_level(self.model.isolation.level);
        Ok(WorkspaceContext {
            workspace: Arc::new(workspace),
            sandbox_pool: pool,
            activity: Default::default(),
            deletion: Some(CancellationToken::new()),
            call_end: Some(self.kill.child_token()),
            ..self.model.clone()
        })
    }

    /// Gives the directory of a workspace its project.
    fn set_project(&self, stored: &StoredWorkspace) -> io::Result<()> {
        let Some(project) = stored.project_id else {
            return Ok(());
        };
        assign_project(&self.directory, &stored.directory, project)
    }

    /// Limits the project of a stored workspace again, perhaps to other bounds.
    async fn restore_project(&self, stored: &StoredWorkspace) -> io::Result<()> {
        if let (Some(projects), Some(project)) = (&self.projects, stored.project_id) {
            let limits = self.limits(stored).unwrap_or(FileUsage::MAX);
            projects.restore(project, limits).await?;
            self.set_project(stored)?;
        }
        Ok(())
    }

    /// Frees the project of a workspace without files.
    async fn release_project(&self, stored: &StoredWorkspace) {
        if let (Some(projects), Some(project)) = (&self.projects, stored.project_id)
            && let Err(error) = projects.release(project).await
        {
            tracing::warn!(project, %error, "cannot remove the limits of a project");
        }
    }

    /// The bounds of a workspace: its own, at most those that the operator has set since.
    fn limits(&self, stored: &StoredWorkspace) -> Option<FileUsage> {
        let unsigned = |bound: Option<i64>| bound.and_then(|bound| u64::try_from(bound).ok());
        let own = FileBounds {
            max_bytes: unsigned(stored.max_bytes),
            max_files: unsigned(stored.max_files),
        };
        let bounds = self.config.bounds.lower(own);
        (bounds != FileBounds::default()).then(|| FileUsage {
            bytes: bounds.max_bytes.unwrap_or(u64::MAX),
            files: bounds.max_files.unwrap_or(u64::MAX),
        })
    }

    /// Marks a workspace as being deleted, in memory and in the database.
    pub(in crate::daemon::pipeline) async fn begin_deletion(
        &self,
        workspaces: &Workspaces,
        workspace: &OwnedWorkspace,
    ) -> Result<BusyName<'_>, Error> {
        let mut stored = workspace.stored();
        let name = stored.name.clone();
        {
            let mut names = self.busy();
            if names.contains_key(&name) {
                let text = format!("the workspace {name:?} is being deleted");
                return Err(Error::new(Reason::UnknownWorkspace, text));
            }
            names.insert(name.clone(), stored.owner.clone());
        }
        let busy = BusyName { creator: self, name };
        stored.is_ready = false;
        self.put(&stored).await?;
        workspaces.remove(&stored.name);
        Ok(busy)
    }

    /// Ends the processes of a workspace, and waits until the last one is gone.
    pub(in crate::daemon::pipeline) async fn end_processes(
        &self,
        workspace: &OwnedWorkspace,
    ) -> Result<(), Error> {
        let context = &workspace.context;
        context.activity.wait_until_idle().await;
        context.sandbox_pool.end().await.map_err(Error::internal)?;
        self.sandboxes.remove(&context.sandbox_pool);
        Ok(())
    }

    /// Removes the files of a workspace, and what the database has of it.
    pub(in crate::daemon::pipeline) async fn remove_rest(
        &self,
        stored: &StoredWorkspace,
    ) -> Result<(), Error> {
        let (directory, journals) = (self.directory.try_clone(), self.journals.clone());
        let (name, path) =
            (stored.directory.clone(), self.config.directory.join(&stored.directory));
        let remove = move || {
            match Workspace::open(name.clone(), path, "/") {
                Ok(workspace) => workspace.remove_journals(&journals)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            remove_directories(&directory?, &name)
        };
        let removed = task::spawn_blocking(remove).await.map_err(Error::internal)?;
        removed.map_err(Error::internal)?;
        self.release_project(stored).await;
        let removed = self.table.remove(stored.name.clone()).await;
        fault_injection::step();
        removed.map_err(|error| state_database_error(&error))
    }

    /// Stores the times and labels of a workspace, unless it is being deleted.
    pub(in crate::daemon::pipeline) async fn update(
        &self,
        stored: StoredWorkspace,
    ) -> Result<(), Error> {
        self.table.update(stored).await.map_err(|error| state_database_error(&error))
    }

    /// Stores a workspace.
    async fn put(&self, stored: &StoredWorkspace) -> Result<(), Error> {
        fault_injection::step();
        let put = self.table.put(stored.clone()).await;
        fault_injection::step();
        put.map_err(|error| state_database_error(&error))
    }

    /// Makes the name of a workspace free that was not served.
    pub(in crate::daemon::pipeline) fn release_name(&self, name: &str) {
        self.busy().remove(name);
    }

    fn busy(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BusyName<'_> {
    /// Keeps the name until the daemon ends.
    pub(in crate::daemon::pipeline) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for BusyName<'_> {
    fn drop(&mut self) {
        self.creator.busy().remove(&self.name);
    }
}

fn creation_error(error: &io::Error) -> Error {
    let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    if !is_full {
        return Error::internal(format!("cannot create the directory of the workspace: {error}"));
    }
    let text = "the disk of the workspaces is full: nothing was created. Free space, and retry";
    Error::new(Reason::NoSpace, text)
}

/// `wanted`, but at most `longest`, which is also the default.
fn at_most(wanted: Option<Duration>, longest: Option<Duration>) -> Option<Duration> {
    match (wanted, longest) {
        (Some(wanted), Some(longest)) => Some(wanted.min(longest)),
        (wanted, longest) => wanted.or(longest),
    }
}

/// A name that no workspace has had.
fn choose_name() -> String {
    let id = Ulid::generate().to_string().to_lowercase();
    // The last letters are random, the first ones are a time.
    format!("ws-{}", &id[id.len() - CHOSEN_NAME_LETTERS..])
}

fn to_signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
