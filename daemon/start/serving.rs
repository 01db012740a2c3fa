//! From what was prepared to a daemon that answers calls.

use std::{
    io,
    sync::Arc,
    time::{Instant, SystemTime},
};

use super::{
    error::{StartError, io_error},
    host_sockets::HostSockets,
    isolation::{self, ProbedSandboxes, StartedKeeper},
    protection,
    reload::ConfigReloader,
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
    },
    process::registry::ProcessRegistry,
    sandbox::plan::NetworkMode,
    server::{self, ServerContext, ShutdownTrigger, listener::Listeners, peer},
    store::{
        approvals::ApprovalTable,
        database::{Database, DatabaseError},
        generation,
        requests::RequestTable,
        retention::rows::RetentionLimits,
        rules::RuleTable,
        retention::sessions::run_retention,
        state_dir::StateDir,
    },
    task,
    telemetry::Telemetry,
    tool::{FileLimiters, LimitedFetcher, RunSettings, WorkspaceContext},
    workspace::{Workspace, available_cores},
};

/// What there is before the first call.
pub(super) struct PreparedDaemon {
    pub(super) config: Config,
    /// When the daemon was started.
    pub(super) started: (SystemTime, Instant),
    pub(super) workspaces: Vec<Workspace>,
    pub(super) store: StateDir,
    pub(super) keeper: StartedKeeper,
}

/// Proves the isolation, then answers calls until it is told to end. One for more than one call can be told to
/// `reload` its configuration, and says where it listens.
pub(super) async fn serve(
    prepared: PreparedDaemon,
    listeners: Listeners,
    until: ShutdownTrigger,
    reload: Option<ConfigReloader>,
) -> Result<(), StartError> {
    let announce = reload.is_some();
    let PreparedDaemon {
        config,
        started,
        workspaces,
        store,
        keeper: StartedKeeper { process, environment: found },
    } = prepared;
    let telemetry = Telemetry::start(config.log_calls);
    let catalog = load_catalog(&config)?;
    let ProbedSandboxes { sandboxes, results } =
        isolation::probe_workspaces(process, &found.accounting, &config)
            .await
            .map_err(io_error("talking to the launcher"))?;
    let proxy = build_proxy(&config, listeners.ports());
    let settings = RunSettings {
        path_directories: config.search_path.clone(),
        max_artifact_bytes: config.artifact_bytes,
        max_replay_bytes: config.replay_bytes,
        limits: config.limits,
        network: config.network,
        default_timeout: None,
        proxy: proxy.clone(),
    };
    let files = FileLimiters::new(config.concurrent_file_operations);
    let fetches = Fetcher::new(config.fetch.clone(), listeners.ports()).map(LimitedFetcher::new);
    let mut scenes = Vec::new();
    let mut sockets = HostSockets::default();
    for (index, mut workspace) in workspaces.into_iter().enumerate() {
        let (Some(pool), Some(proven)) = (sandboxes.pool(index), results.get(index)) else {
            continue;
        };
        let isolation = isolation::workspace_isolation(&config, &found, workspace.name(), proven);
        isolation::log_isolation(&isolation, announce);
        if announce {
            protection::log(&config, workspace.name(), isolation.level);
            if let Some(warning) = unwritable::warning(&workspace) {
                warning.log();
            }
            sockets.add(HostSockets::find(
                &config,
                workspace.name(),
                isolation.level,
                isolation.landlock_abi,
            ));
        }
        isolation::set_command_path(&mut workspace, &isolation);
        let name = workspace.name().to_owned();
        scenes.push(WorkspaceContext {
            workspace: Arc::new(workspace),
            sandbox_pool: Arc::clone(pool),
            isolation: Arc::new(isolation),
            run_settings: Arc::new(RunSettings {
                default_timeout: config.run_timeout(&name),
                ..settings.clone()
            }),
            file_limiters: files.clone(),
            fetcher: fetches.clone(),
            activity: Default::default(),
        });
    }
    sockets.warn();
    // What is told about the whole is what is true of its weakest part.
    let weakest = scenes
        .iter()
        .min_by_key(|scene| scene.isolation.level)
        .map(|scene| Arc::clone(&scene.isolation));
    let Some(isolation) = weakest else {
        return Err(StartError::Io {
            what: "starting",
            source: io::Error::other("there is no workspace"),
        });
    };
    let database = open_database(&store, announce)?;
    let mut state_lost = None;
    if announce {
        let files = store.state_files().map_err(io_error("looking at the state directory"))?;
        let files = Arc::new(files);
        database.require_files(Arc::clone(&files));
        state_lost = Some(files.subscribe_lost());
        files.spawn_watch();
    }
    if announce {
        let begun = generation::advance(&database, &store.generation_path()).await;
        begun.map_err(database_read_error)?;
    }
    let drain = Shutdown::default();
    let requests = open_idempotency(database.clone(), config.requests, &drain).await?;
    let jobs = open_jobs(database.clone(), &store, &config, &drain).await?;
    let (access, settings) = load_access(&config, &catalog)?;
    let rules = RuleTable::new(database.clone());
    let policy = RuleStore::open(settings, rules).await.map(Arc::new);
    let policy = policy.map_err(database_read_error)?;
    let log = ApprovalTable::new(database);
    let approvals = PendingApprovals::open(log, Arc::clone(&policy), &store).await;
    let limits = admission::AdmissionLimits {
        max_calls: config.concurrent_calls,
        max_processes: config.concurrent_processes,
        max_queued_per_principal: config.queued_calls,
        queue_timeout: config.queue_wait,
    };
    let pipeline = Arc::new(Pipeline {
        access,
        catalog,
        policy,
        approvals: approvals.map_err(database_read_error)?,
        workspaces: scenes,
        state_dir: store,
        idempotency: requests,
        telemetry: telemetry.clone(),
        admission: AdmissionControl::new(limits, available_cores()),
        shutdown: drain,
        stop_grace: config.stop_grace,
        processes: Arc::new(ProcessRegistry::new(config.process_retention)),
        jobs,
        results: Arc::default(),
    });
    pipeline.keep_headroom();
    pipeline.drop_revoked_replies().await;
    pipeline.start_queued_jobs();
    if let Some(reload) = reload {
        reload.spawn(Arc::clone(&pipeline));
    }
    if announce {
        // One that lives for one call takes what it has kept with it.
        let sessions = Arc::clone(pipeline.state_dir.sessions());
        let end = pipeline.shutdown.draining_token();
        // As long as a job or an answer is kept that may name something of a session.
        let past = config.jobs.retention.max(config.requests.retention);
        let past = past.max(config.sessions.retention);
        task::spawn("retention of sessions", run_retention(sessions, config.sessions, past, end));
    }
    let runs_commands = isolation.is_ready();
    let info = DaemonServiceHandler {
        pipeline: Arc::clone(&pipeline),
        sandboxes: Arc::clone(&sandboxes),
        isolation,
        proxy,
        identities: results.into_iter().map(|found| found.identity).collect(),
        limits: config.limits,
        max_concurrent_runs: config.concurrent_runs,
        started,
    };
    let services = ServerContext {
        pipeline,
        info,
        sandboxes: Arc::clone(&sandboxes),
        runs_commands,
        state_lost,
    };
    let served = server::serve(listeners, services, until, config.drain_timeout, announce).await;
    sandboxes.close();
    telemetry.flush().await;
    tracing::info!("ended");
    served.map_err(io_error("serving"))
}

/// The database: kept in the state directory, or where that is for one call, in memory.
fn open_database(store: &StateDir, is_persistent: bool) -> Result<Database, StartError> {
    let opened = if is_persistent {
        Database::open(&store.database_path(), store.has_records())
    } else {
        Database::in_memory()
    };
    opened.map_err(StartError::Database)
}

/// The request ids.
async fn open_idempotency(
    database: Database,
    config: RequestsConfig,
    drain: &Shutdown,
) -> Result<Arc<Idempotency>, StartError> {
    let bounds = RetentionLimits {
        max_age: config.retention,
        max_rows: config.max_entries,
        max_bytes: config.max_bytes,
    };
    let log = RequestTable::open(database, bounds).await;
    let log = log.map_err(database_read_error)?;
    Ok(Idempotency::new(log, config.detached_timeout, drain))
}

/// The jobs.
async fn open_jobs(
    database: Database,
    store: &StateDir,
    config: &Config,
    drain: &Shutdown,
) -> Result<Arc<JobRegistry>, StartError> {
    let several = config.keys.as_ref().filter(|keys| keys.keys.len() > 1);
    let (params, is_shared) = (store.job_params(), several.is_some());
    let jobs = JobRegistry::open(database, params, config.jobs.clone(), is_shared, drain);
    jobs.await.map_err(|error| StartError::Io {
        what: "reading the jobs",
        source: io::Error::other(error),
    })
}

fn database_read_error(error: DatabaseError) -> StartError {
    StartError::Io { what: "reading the database", source: io::Error::other(error) }
}

/// The tools: those of the contract, and those of the configuration. No dialect has a tool of the name of one
/// of these: rules and lists could not tell them apart.
pub(super) fn load_catalog(config: &Config) -> Result<Catalog, StartError> {
    let catalog = Catalog::load().map_err(|error| StartError::Io {
        what: "reading the tools",
        source: io::Error::other(error),
    })?;
    let taken = config.tools.iter().filter(|tool| is_dialect_tool(&tool.name));
    let mut problems: Vec<_> = taken
        .map(|tool| format!("tools: {:?}: a dialect has a tool of this name", tool.name))
        .collect();
    match catalog.with_custom_tools(config.tools.clone()) {
        Ok(catalog) if problems.is_empty() => return Ok(catalog),
        Ok(_) => {}
        Err(more) => problems.extend(more),
    }
    Err(ConfigError(problems).into())
}

/// Who may call, and what the operator lets in. All that is wrong with either is told.
pub(super) fn load_access(
    config: &Config,
    catalog: &Catalog,
) -> Result<(AccessControl, CompiledPolicy), StartError> {
    let access = AccessControl::new(LocalTrust {
        daemon_uid: peer::own_uid(),
        loopback: config.trust_loopback,
        commands_are_distinguishable: match config.network {
            NetworkMode::None => true,
            // A root daemon's commands are another user's.
            NetworkMode::Host => rustix::process::geteuid().is_root(),
            // What comes from the proxy comes from the daemon's user.
            NetworkMode::Proxy => !config.egress.reaches_loopback(),
        },
    });
    let names = config.workspace_names();
    let settings = CompiledPolicy::new(config.policy.clone(), catalog, &names, config.idle_tools());
    let keys = config.keys.clone();
    let keys = keys.map_or(Ok(()), |keys| access.set_keys(keys, catalog, &names));
    match (settings, keys) {
        (Ok(settings), Ok(())) => Ok((access, settings)),
        (settings, keys) => {
            let problems = settings.err().into_iter().chain(keys.err());
            Err(ConfigError(problems.flatten().collect()).into())
        }
    }
}

/// The proxy, where that is the network of commands. Warns of a network that may not be what was
/// meant.
fn build_proxy(config: &Config, own_ports: Vec<u16>) -> Option<Arc<EgressProxy>> {
    for warning in config.network_warnings() {
        tracing::warn!(warning, "the network of commands is not what is safest");
    }
    let proxy = || Arc::new(EgressProxy::new(config.egress.clone(), own_ports));
    (config.network == NetworkMode::Proxy).then(proxy)
}
