//! Prepares the creation of workspaces: what the keeper and the pipeline need, and the proof that
//! commands in them are isolated.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, open, statat},
    io::Errno,
};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::{
    error::{StartError, database_read_error, io_error},
    isolation::{self, KeeperEnvironment},
};
use crate::daemon::{
    config::{Config, created_workspaces::CreatedWorkspacesConfig},
    pipeline::workspaces::{
        created::WorkspaceCreator,
        directories::{make_directory, make_persistent, remove_directories},
        projects::Projects,
    },
    sandbox::{
        plan::{CreatedWorkspace, CreatedWorkspacesPlan, DEFAULT_MOUNT_PATH, WorkspacePlan},
        pools::SandboxPools,
    },
    store::{database::Database, workspaces::CreatedWorkspaceTable},
    tool::{FileLimiters, LimitedFetcher, RunSettings, WorkspaceContext},
    workspace::{Workspace, remove_tree},
};

/// Name of the workspace that proves the isolation.
const MODEL_NAME: &str = "workspaces on demand";

/// Prefix of the name of its directory.
const PROBE_PREFIX: &str = ".probe-";

/// What created workspaces share with those of the configuration.
pub(super) struct CommonContext {
    pub(super) run_settings: RunSettings,
    pub(super) file_limiters: FileLimiters,
    pub(super) fetcher: Option<LimitedFetcher>,
}

/// What a [`WorkspaceCreator`] is built from.
pub(super) struct CreatorInputs<'a> {
    pub(super) config: &'a Config,
    pub(super) environment: &'a KeeperEnvironment,
    pub(super) sandboxes: &'a Arc<SandboxPools>,
    pub(super) common: CommonContext,
    pub(super) database: Database,
    pub(super) journals: PathBuf,
    pub(super) kill: CancellationToken,
}

/// Opens the directory that holds created workspaces.
pub(super) fn open_directory(config: &CreatedWorkspacesConfig) -> Result<OwnedFd, StartError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(&config.directory, flags, Mode::empty())
        .map_err(|errno| io_error("opening workspaces_on_demand.directory")(errno.into()))
}

/// Rejects a directory that has none of the stored workspaces, as the mount point of a disk that is
/// not mounted. Names of their directories are never used again.
async fn check_directory(
    directory: &OwnedFd,
    config: &CreatedWorkspacesConfig,
    table: &CreatedWorkspaceTable,
) -> Result<(), StartError> {
    let stored = table.load_all().await.map_err(database_read_error)?;
    let ready: Vec<_> = stored.iter().filter(|workspace| workspace.is_ready).collect();
    let exists = |name: &str| {
        let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        !found.is_err_and(|error| error == Errno::NOENT)
    };
    let Some(first) = ready.first() else {
        return Ok(());
    };
    if ready.iter().any(|workspace| exists(&workspace.directory)) {
        return Ok(());
    }

    let text = format!(
        "{:?} has none of the {} created workspaces of the state directory: mount its disk or restore it, and start again. To give up their files, create the directory {:?}, start, and delete the workspaces",
        config.directory,
        ready.len(),
        config.directory.join(&first.directory),
    );
    Err(io_error("opening workspaces_on_demand.directory")(io::Error::other(text)))
}

/// What the sandboxes of created workspaces are built from.
pub(super) fn plan(config: &Config) -> Option<CreatedWorkspacesPlan> {
    let created = config.created_workspaces.as_ref()?;
    let sandbox_ids = config.sandbox_ids.get(config.workspaces.len()..).unwrap_or_default();
    Some(CreatedWorkspacesPlan {
        model: WorkspacePlan {
            index: config.workspaces.len(),
            name: MODEL_NAME.to_owned(),
            sandbox_id: sandbox_ids.first().copied().unwrap_or_default(),
            path: created.directory.clone(),
            file_identity: directory_identity(created),
            mount_path: DEFAULT_MOUNT_PATH.into(),
            binds: created.common.binds.clone(),
            chowned_to: None,
            protected_paths: Vec::new(),
            requires_protection: false,
            persistent: created.common.persistent,
            persistent_binds: Vec::new(),
        },
        sandbox_ids: sandbox_ids.to_vec(),
        project_ids: created.project_ids.clone(),
    })
}

/// Device and inode of the directory, which the keeper compares with what it opens.
fn directory_identity(config: &CreatedWorkspacesConfig) -> (u64, u64) {
    let stat = rustix::fs::stat(&config.directory);
    stat.map_or((0, 0), |stat| (stat.st_dev, stat.st_ino))
}

/// Removes what daemons left that were killed at their start.
fn remove_old_probes(path: &Path, directory: &OwnedFd) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if let Some(name) = name.to_str().filter(|name| name.starts_with(PROBE_PREFIX)) {
            remove_tree(directory, name)?;
        }
    }
    Ok(())
}

impl CreatorInputs<'_> {
    /// Builds the creator, if the configuration has a directory for workspaces.
    pub(super) async fn build(self) -> Result<Option<WorkspaceCreator>, StartError> {
        let Some(config) = self.config.created_workspaces.clone() else {
            return Ok(None);
        };
        let failed = io_error("preparing workspaces_on_demand.directory");
        let directory = open_directory(&config)?;
        let table = CreatedWorkspaceTable::new(self.database.clone());
        check_directory(&directory, &config, &table).await?;

        remove_old_probes(&config.directory, &directory).map_err(failed)?;
        let name = format!("{PROBE_PREFIX}{}", Ulid::generate());
        make_directory(&directory, &name).map_err(failed)?;
        let model = self.probe(&config, &directory, &name).await;
        let ids = config.project_ids.clone();
        let projects = Projects::prove(self.sandboxes, ids, &directory, &name).await;
        remove_directories(&directory, &name).map_err(failed)?;
        let projects = projects.inspect_err(|error| {
            tracing::info!(%error, "workspaces_on_demand.directory has no project quotas: the daemon watches the bounds of workspaces");
        });

        Ok(Some(WorkspaceCreator {
            directory,
            table,
            sandboxes: Arc::clone(self.sandboxes),
            projects: projects.ok(),
            model: model?,
            journals: self.journals,
            kill: self.kill,
            config,
            busy: Mutex::default(),
            unserved: Default::default(),
        }))
    }

    /// Proves the isolation of commands in a workspace of this directory. Returns what all others
    /// have in common with it.
    async fn probe(
        &self,
        config: &CreatedWorkspacesConfig,
        parent: &OwnedFd,
        directory: &str,
    ) -> Result<WorkspaceContext, StartError> {
        let failed = io_error("proving the isolation of created workspaces");
        let path = config.directory.join(directory);
        let mut workspace =
            Workspace::open(MODEL_NAME, path, DEFAULT_MOUNT_PATH).map_err(failed)?;
        workspace.sync_changes(self.config.sync_files);

        let (persistent, _) =
            make_persistent(parent, directory, config.common.persistent, None).map_err(failed)?;
        let created = CreatedWorkspace {
            name: MODEL_NAME.to_owned(),
            directory: directory.to_owned(),
            file_identity: workspace.identity(),
            persistent,
        };
        let pool = self.sandboxes.add(created);
        let probe = pool.probe_levels(self.config.minimum_level).await;
        pool.end().await.map_err(failed)?;
        self.sandboxes.remove(&pool);

        let isolation =
            isolation::workspace_isolation(self.config, self.environment, MODEL_NAME, &probe);
        isolation::log_isolation(&isolation, true);
        isolation::set_command_path(&mut workspace, &isolation);
        Ok(WorkspaceContext {
            workspace: Arc::new(workspace),
            sandbox_pool: pool,
            isolation: Arc::new(isolation),
            run_settings: Arc::new(RunSettings {
                default_timeout: config.common.run_timeout,
                ..self.common.run_settings.clone()
            }),
            file_limiters: self.common.file_limiters.clone(),
            fetcher: self.common.fetcher.clone(),
            activity: Default::default(),
            deletion: None,
            call_end: None,
        })
    }
}
