//! Builds the pipeline from a prepared daemon, and serves calls until shutdown.

use std::{
    io,
    sync::Arc,
    time::{Instant, SystemTime},
};

use tokio::sync::watch;

use super::{
    created_workspaces::{CommonContext, CreatorInputs},
    error::{StartError, database_read_error, io_error},
    host_sockets::HostSockets,
    isolation::{self, KeeperEnvironment, ProbedSandboxes, StartedKeeper},
    observed_metrics, protection,
    reload::ConfigReloader,
    start_mode::StartMode,
    unwritable,
};
use crate::daemon::{
    catalog::Catalog,
    config::{Config, ConfigError, requests::RequestsConfig},
    dialect::is_dialect_tool,
    egress::proxy::EgressProxy,
    fetch::Fetcher,
    grpc::info::DaemonServiceHandler,
    pipeline::{
        Pipeline,
        access::{AccessControl, LocalTrust},
        admission::{self, AdmissionControl},
        approval::pending::PendingApprovals,
        idempotency::Idempotency,
        jobs::JobRegistry,
        policy::{decision::CompiledPolicy, store::RuleStore},
        shutdown::Shutdown,
        workspaces::{Workspaces, created::WorkspaceCreator},
    },
    process::registry::ProcessRegistry,
    sandbox::{level::Isolation, plan::NetworkMode},
    server::{
        self, ServerContext, ShutdownTrigger, listener::Listeners, peer,
        service_manager::ServiceManager,
    },
    store::{
        approvals::ApprovalTable, database::Database, generation, requests::RequestTable,
        retention::rows::RetentionLimits, retention::sessions::run_retention, rules::RuleTable,
        state_dir::StateDir,
    },
    task::{self, available_cores},
    telemetry::{
        Telemetry, TelemetrySettings,
        audit::{AuditEvent, AuditLog},
    },
    tool::{FileLimiters, LimitedFetcher, RunSettings, WorkspaceContext},
    workspace::Workspace,
};

/// Everything that was prepared while the process had a single thread.
pub(super) struct PreparedDaemon {
    pub(super) config: Config,
    pub(super) mode: StartMode,
    /// When the daemon was started, by both clocks.
    pub(super) started: (SystemTime, Instant),
    pub(super) workspaces: Vec<Workspace>,
    pub(super) store: StateDir,
    pub(super) keeper: StartedKeeper,
}

/// Proves the isolation of commands, then serves calls until `shutdown`.
///
/// An embedded daemon has no `reload`. It logs less, prints no addresses, and stores its database
/// and its sessions for its own lifetime only.
pub(super) async fn serve(
    prepared: PreparedDaemon,
    listeners: Listeners,
    shutdown: ShutdownTrigger,
    reload: Option<ConfigReloader>,
    service_manager: ServiceManager,
) -> Result<(), StartError> {
    let PreparedDaemon { config, mode, started, workspaces, store, keeper } = prepared;
    let is_embedded = mode == StartMode::Embedded;
    let StartedKeeper { process, environment } = keeper;
    let audit = open_audit_log(&config)?;
    let telemetry = Telemetry::start(TelemetrySettings {
        audit,
        capture: config.telemetry.capture,
        remote_context: config.telemetry.remote_context,
        logs_calls: config.telemetry.log_calls,
        serves_metrics: config.metrics_listener.is_some(),
        started: started.1,
    });
    let catalog = load_catalog(&config)?;

    let probed = isolation::probe_workspaces(process, &environment.accounting, &config)
        .await
        .map_err(io_error("talking to the keeper"))?;
    let proxy = build_proxy(&config, listeners.ports());
    let contexts = ContextBuilder {
        run_settings: run_settings(&config, proxy.clone()),
        fetcher: Fetcher::new(config.fetch.clone(), listeners.ports()).map(LimitedFetcher::new),
        file_limiters: FileLimiters::new(config.concurrent_file_operations),
        config: &config,
        environment: &environment,
        probed: &probed,
        is_embedded,
    };
    let common = contexts.common_context();
    let workspaces = contexts.build_all(workspaces);
    let isolation = weakest_isolation(&workspaces)?;

    let (database, state_lost) = open_state(&store, is_embedded).await?;
    let shutdown_signals = Shutdown::default();
    let creator = CreatorInputs {
        config: &config,
        environment: &environment,
        sandboxes: &probed.sandboxes,
        common,
        database: database.clone(),
        journals: store.change_journals_dir(),
        kill: shutdown_signals.kill_token(),
    };
    let creator = creator.build().await?;
    let parts = (workspaces, creator);
    let telemetry_of = telemetry.clone();
    let pipeline =
        open_pipeline(&config, catalog, parts, store, database, telemetry_of, shutdown_signals)
            .await?;
    // A start that fails is no crash: it has neither line.
    telemetry.audit().report(
        AuditEvent::DaemonStarted,
        [("version", env!("CARGO_PKG_VERSION").into()), ("pid", std::process::id().into())],
    );
    pipeline.reserve_headroom();
    pipeline.drop_revoked_replies().await;
    pipeline.open_created_workspaces().await.map_err(|error| StartError::Io {
        what: "opening the created workspaces",
        source: io::Error::other(error),
    })?;
    // Before queued jobs start: it holds those of the fleet.
    #[cfg(feature = "fleet")]
    super::fleet::join(&config, &pipeline).await?;
    pipeline.start_queued_jobs();
    if let Some(reload) = reload {
        reload.spawn(Arc::clone(&pipeline), listeners.tls());
    }
    // The sessions of an embedded daemon are removed together with its state directory.
    if !is_embedded {
        spawn_session_retention(&config, &pipeline);
    }

    let sandboxes = Arc::clone(&probed.sandboxes);
    observed_metrics::observe(&pipeline, &sandboxes);
    let context = server_context(&config, pipeline, probed, isolation, proxy, started, state_lost);
    let served = server::serve(
        listeners,
        context,
        shutdown,
        config.shutdown_times,
        !is_embedded,
        service_manager,
    )
    .await;

    sandboxes.close();
    telemetry.flush().await;
    tracing::info!("ended");
    served.map_err(io_error("serving"))
}

/// Opens the audit log, if there is one.
fn open_audit_log(config: &Config) -> Result<AuditLog, StartError> {
    let Some(settings) = config.telemetry.audit.clone() else {
        return Ok(AuditLog::default());
    };
    let path = settings.path.clone();
    AuditLog::open(settings).map_err(|source| StartError::AuditLog { path, source })
}

fn server_context(
    config: &Config,
    pipeline: Arc<Pipeline>,
    probed: ProbedSandboxes,
    isolation: Arc<Isolation>,
    proxy: Option<Arc<EgressProxy>>,
    started: (SystemTime, Instant),
    state_lost: Option<watch::Receiver<bool>>,
) -> ServerContext {
    let ProbedSandboxes { sandboxes, results } = probed;
    let can_run_commands = isolation.is_ready();
    let info = DaemonServiceHandler {
        pipeline: Arc::clone(&pipeline),
        sandboxes: Arc::clone(&sandboxes),
        isolation,
        proxy,
        identities: results.into_iter().map(|probe| probe.identity).collect(),
        limits: config.limits,
        max_concurrent_runs: config.concurrent_runs,
        started,
    };
    ServerContext {
        pipeline,
        info,
        http: config.http.clone(),
        agent_sandbox_metadata: config.agent_sandbox_metadata.clone(),
        connection_age: config.connection_age,
        sandboxes,
        can_run_commands,
        state_lost,
    }
}

/// Settings that all runs share.
fn run_settings(config: &Config, proxy: Option<Arc<EgressProxy>>) -> RunSettings {
    RunSettings {
        path_directories: config.search_path.clone(),
        max_artifact_bytes: config.artifact_bytes,
        max_replay_bytes: config.replay_bytes,
        limits: config.limits,
        network: config.network,
        default_timeout: None,
        proxy,
    }
}

/// Builds the context of each workspace, and logs what the operator should know about it.
struct ContextBuilder<'a> {
    config: &'a Config,
    environment: &'a KeeperEnvironment,
    probed: &'a ProbedSandboxes,
    run_settings: RunSettings,
    file_limiters: FileLimiters,
    fetcher: Option<LimitedFetcher>,
    is_embedded: bool,
}

impl ContextBuilder<'_> {
    /// What created workspaces share with those of the configuration.
    fn common_context(&self) -> CommonContext {
        CommonContext {
            run_settings: self.run_settings.clone(),
            file_limiters: self.file_limiters.clone(),
            fetcher: self.fetcher.clone(),
        }
    }

    fn build_all(self, workspaces: Vec<Workspace>) -> Vec<WorkspaceContext> {
        let mut contexts = Vec::new();
        let mut sockets = HostSockets::default();
        for (index, mut workspace) in workspaces.into_iter().enumerate() {
            let pool = self.probed.sandboxes.pool(index);
            let (Some(pool), Some(probe)) = (pool, self.probed.results.get(index)) else {
                continue;
            };
            let (config, name) = (self.config, workspace.name().to_owned());
            let isolation = isolation::workspace_isolation(config, self.environment, &name, probe);
            isolation::log_isolation(&isolation, !self.is_embedded);
            if !self.is_embedded {
                protection::log(config, &name, isolation.level);
                if let Some(warning) = unwritable::warning(&workspace) {
                    warning.log();
                }
                let (level, landlock_abi) = (isolation.level, isolation.landlock_abi);
                sockets.add(HostSockets::find(config, &name, level, landlock_abi));
            }

            isolation::set_command_path(&mut workspace, &isolation);
            contexts.push(WorkspaceContext {
                workspace: Arc::new(workspace),
                sandbox_pool: pool,
                isolation: Arc::new(isolation),
                run_settings: Arc::new(RunSettings {
                    default_timeout: config.run_timeout(&name),
                    ..self.run_settings.clone()
                }),
                file_limiters: self.file_limiters.clone(),
                fetcher: self.fetcher.clone(),
                activity: Default::default(),
                deletion: None,
                call_end: None,
            });
        }
        sockets.warn();
        contexts
    }
}

/// The isolation that the daemon reports for itself: that of the workspace with the lowest level.
fn weakest_isolation(workspaces: &[WorkspaceContext]) -> Result<Arc<Isolation>, StartError> {
    let weakest = workspaces.iter().min_by_key(|context| context.isolation.level);
    weakest.map(|context| Arc::clone(&context.isolation)).ok_or_else(|| StartError::Io {
        what: "starting",
        source: io::Error::other("there is no workspace"),
    })
}

/// Opens the database, and watches the files of the state directory. An embedded daemon has neither
/// files nor a generation.
async fn open_state(
    store: &StateDir,
    is_embedded: bool,
) -> Result<(Database, Option<watch::Receiver<bool>>), StartError> {
    let database = open_database(store, is_embedded)?;
    if is_embedded {
        return Ok((database, None));
    }

    let state_lost = watch_state_files(store, &database)?;
    generation::advance(&database, &store.generation_path()).await.map_err(database_read_error)?;
    Ok((database, Some(state_lost)))
}

/// Opens the database: a file in the state directory, or in memory for an embedded daemon.
fn open_database(store: &StateDir, is_embedded: bool) -> Result<Database, StartError> {
    let opened = if is_embedded {
        Database::in_memory()
    } else {
        Database::open(&store.database_path(), store.has_records())
    };
    opened.map_err(StartError::Database)
}

/// Watches the files of the state directory. The receiver holds true while they are lost.
fn watch_state_files(
    store: &StateDir,
    database: &Database,
) -> Result<watch::Receiver<bool>, StartError> {
    let files = store.state_files().map_err(io_error("checking the state directory"))?;
    let files = Arc::new(files);
    database.require_files(Arc::clone(&files));
    let state_lost = files.subscribe_lost();
    files.spawn_watch();
    Ok(state_lost)
}

/// Opens the stored state and builds the pipeline.
async fn open_pipeline(
    config: &Config,
    catalog: Catalog,
    (workspaces, workspace_creator): (Vec<WorkspaceContext>, Option<WorkspaceCreator>),
    store: StateDir,
    database: Database,
    telemetry: Telemetry,
    shutdown: Shutdown,
) -> Result<Arc<Pipeline>, StartError> {
    let idempotency = open_idempotency(database.clone(), config.requests, &shutdown).await?;
    let jobs = open_jobs(database.clone(), &store, config, &shutdown).await?;

    let (access, policy) = load_access(config, &catalog)?;
    let rules = RuleTable::new(database.clone());
    let policy = RuleStore::open(policy, rules).await.map_err(database_read_error)?;
    let policy = Arc::new(policy);
    let approvals =
        PendingApprovals::open(ApprovalTable::new(database), Arc::clone(&policy), &store)
            .await
            .map_err(database_read_error)?;

    let limits = admission::AdmissionLimits {
        max_calls: config.concurrent_calls,
        max_processes: config.concurrent_processes,
        max_queued_per_principal: config.queued_calls,
        queue_timeout: config.queue_timeout,
    };
    Ok(Arc::new(Pipeline {
        access,
        catalog,
        policy,
        approvals,
        workspaces: Workspaces::new(workspaces),
        workspace_creator,
        state_dir: store,
        upload_sessions: Default::default(),
        fleet_jobs: Default::default(),
        held_jobs: Default::default(),
        idempotency,
        telemetry,
        admission: AdmissionControl::new(limits, available_cores()),
        shutdown,
        stop_grace: config.stop_grace,
        processes: Arc::new(ProcessRegistry::new(config.process_retention)),
        jobs,
        results: Arc::default(),
    }))
}

/// Opens the idempotency keys (request ids) and their stored results.
async fn open_idempotency(
    database: Database,
    config: RequestsConfig,
    shutdown: &Shutdown,
) -> Result<Arc<Idempotency>, StartError> {
    let limits = RetentionLimits {
        max_age: config.retention,
        max_rows: config.max_entries,
        max_bytes: config.max_bytes,
    };
    let table = RequestTable::open(database, limits).await.map_err(database_read_error)?;
    Ok(Idempotency::new(table, config.detached_timeout, shutdown))
}

async fn open_jobs(
    database: Database,
    store: &StateDir,
    config: &Config,
    shutdown: &Shutdown,
) -> Result<Arc<JobRegistry>, StartError> {
    let has_several_keys = config.keys.as_ref().is_some_and(|keys| keys.keys.len() > 1);
    JobRegistry::open(database, store.job_params(), config.jobs.clone(), has_several_keys, shutdown)
        .await
        .map_err(|error| StartError::Io {
            what: "reading the jobs",
            source: io::Error::other(error),
        })
}

/// Removes old sessions in the background, until the daemon drains.
fn spawn_session_retention(config: &Config, pipeline: &Pipeline) {
    let sessions = Arc::clone(pipeline.state_dir.sessions());
    let shutdown = pipeline.shutdown.draining_token();
    // Remember removed sessions as long as a stored job or result may refer to them.
    let tombstone_age =
        config.jobs.retention.max(config.requests.retention).max(config.sessions.retention);
    let retention = run_retention(sessions, config.sessions, tombstone_age, shutdown);
    task::spawn("retention of sessions", retention);
}

/// Loads the canonical tools and those of the configuration.
///
/// Rejects custom tools with the name of a dialect's tool: rules and key permissions could not
/// distinguish the two.
pub(super) fn load_catalog(config: &Config) -> Result<Catalog, StartError> {
    let catalog = Catalog::load().map_err(|error| StartError::Io {
        what: "reading the tools",
        source: io::Error::other(error),
    })?;

    let conflicting = config.tools.iter().filter(|tool| is_dialect_tool(&tool.name));
    let mut problems: Vec<_> = conflicting
        .map(|tool| format!("tools: {:?}: a dialect has a tool of this name", tool.name))
        .collect();
    match catalog.with_custom_tools(config.tools.clone()) {
        Ok(catalog) if problems.is_empty() => return Ok(catalog),
        Ok(_) => {}
        Err(more) => problems.extend(more),
    }
    Err(ConfigError(problems).into())
}

/// Loads keys and policy. Reports the problems of both.
pub(super) fn load_access(
    config: &Config,
    catalog: &Catalog,
) -> Result<(AccessControl, CompiledPolicy), StartError> {
    let access = AccessControl::new(LocalTrust {
        daemon_uid: peer::own_uid(),
        loopback: config.trust_loopback,
        commands_are_distinguishable: match config.network {
            NetworkMode::None => true,
            // A root daemon runs commands as another user.
            NetworkMode::Host => rustix::process::geteuid().is_root(),
            // Connections through the proxy come from the daemon's own user.
            NetworkMode::Proxy => !config.egress.reaches_loopback(),
        },
    });

    let names = config.workspace_names();
    let policy =
        CompiledPolicy::new(config.policy.clone(), catalog, &names, config.unconfigured_tools());
    let keys = match config.keys.clone() {
        Some(keys) => access.set_keys(keys, catalog, &names),
        None => Ok(()),
    };
    match (policy, keys) {
        (Ok(policy), Ok(())) => Ok((access, policy)),
        (policy, keys) => {
            let problems = policy.err().into_iter().chain(keys.err());
            Err(ConfigError(problems.flatten().collect()).into())
        }
    }
}

/// Creates the egress proxy if commands use it, and logs warnings about the network configuration.
fn build_proxy(config: &Config, own_ports: Vec<u16>) -> Option<Arc<EgressProxy>> {
    for warning in config.network_warnings() {
        tracing::warn!("{warning}");
    }
    let proxy = || Arc::new(EgressProxy::new(config.egress.clone(), own_ports));
    (config.network == NetworkMode::Proxy).then(proxy)
}
