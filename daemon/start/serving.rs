//! From what was prepared to a daemon that answers calls.

use std::{
    io,
    sync::Arc,
    time::{Instant, SystemTime},
};

use super::{
    error::{StartError, io_error},
    host_sockets::HostSockets,
    isolation::{self, Keeper, Probed},
    protection,
    reload::Reload,
    unwritable,
};
use crate::daemon::{
    call::{
        Pipeline,
        access::{Access, Trust},
        admission::{self, Admission},
        approval::pending::Approvals,
        drain::Drain,
        idempotency::Idempotency,
        jobs::Jobs,
        policy::{book::RuleBook, decision::Settings},
    },
    catalog::Catalog,
    config::{Config, ConfigError, requests::Requests},
    dialect::is_tool,
    door::info::Info,
    egress::proxy::Proxy,
    fetch::Fetcher,
    process::registry::Registry,
    sandbox::plan::Network,
    server::{self, Services, Until, listener::Listeners, peer},
    store::{
        approvals::ApprovalLog,
        database::{Database, DatabaseError},
        keeping::Bounds,
        life,
        requests::RequestLog,
        retention::retain_in_time,
        rules::RuleLog,
        state_dir::StateDir,
    },
    task,
    telemetry::Telemetry,
    tool::{Fetches, FilePlaces, RunSettings, Scene},
    workspace::{Workspace, cores},
};

/// What there is before the first call.
pub(super) struct Prepared {
    pub(super) config: Config,
    /// When the daemon was started.
    pub(super) started: (SystemTime, Instant),
    pub(super) workspaces: Vec<Workspace>,
    pub(super) store: StateDir,
    pub(super) keeper: Keeper,
}

/// Proves the isolation, then answers calls until it is told to end. One for more than one call can be told to
/// `reload` its configuration, and says where it listens.
pub(super) async fn serve(
    prepared: Prepared,
    listeners: Listeners,
    until: Until,
    reload: Option<Reload>,
) -> Result<(), StartError> {
    let announce = reload.is_some();
    let Prepared { config, started, workspaces, store, keeper: Keeper { process, found } } =
        prepared;
    let telemetry = Telemetry::start(config.log_calls);
    let catalog = catalog(&config)?;
    let Probed { sandboxes, results } = isolation::prove(process, &found.accounting, &config)
        .await
        .map_err(io_error("talking to the launcher"))?;
    let proxy = proxy(&config, listeners.ports());
    let settings = RunSettings {
        path: config.path.clone(),
        artifact_bytes: config.artifact_bytes,
        replay_bytes: config.replay_bytes,
        limits: config.limits,
        network: config.network,
        timeout: None,
        proxy: proxy.clone(),
    };
    let files = FilePlaces::new(config.concurrent_file_operations);
    let fetches = Fetcher::new(config.fetch.clone(), listeners.ports()).map(Fetches::new);
    let mut scenes = Vec::new();
    let mut sockets = HostSockets::default();
    for (index, mut workspace) in workspaces.into_iter().enumerate() {
        let (Some(pool), Some(proven)) = (sandboxes.pool(index), results.get(index)) else {
            continue;
        };
        let isolation = isolation::isolation(&config, &found, workspace.name(), proven);
        isolation::log(&isolation, announce);
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
        isolation::place(&mut workspace, &isolation);
        let name = workspace.name().to_owned();
        scenes.push(Scene {
            workspace: Arc::new(workspace),
            sandboxes: Arc::clone(pool),
            isolation: Arc::new(isolation),
            settings: Arc::new(RunSettings {
                timeout: config.run_timeout(&name),
                ..settings.clone()
            }),
            files: files.clone(),
            fetches: fetches.clone(),
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
    let database = database(&store, announce)?;
    let mut state_lost = None;
    if announce {
        let files = store.files().map_err(io_error("looking at the state directory"))?;
        let files = Arc::new(files);
        database.depend_on(Arc::clone(&files));
        state_lost = Some(files.are_lost());
        files.watch();
    }
    if announce {
        let begun = life::begin(&database, &store.life()).await;
        begun.map_err(unreadable)?;
    }
    let drain = Drain::default();
    let requests = requests(database.clone(), config.requests, &drain).await?;
    let jobs = jobs(database.clone(), &store, &config, &drain).await?;
    let (access, settings) = callers(&config, &catalog)?;
    let rules = RuleLog::new(database.clone());
    let policy = RuleBook::open(settings, rules).await.map(Arc::new);
    let policy = policy.map_err(unreadable)?;
    let log = ApprovalLog::new(database);
    let approvals = Approvals::open(log, Arc::clone(&policy), &store).await;
    let limits = admission::Limits {
        calls: config.concurrent_calls,
        processes: config.concurrent_processes,
        queued: config.queued_calls,
        wait: config.queue_wait,
    };
    let pipeline = Arc::new(Pipeline {
        access,
        catalog,
        policy,
        approvals: approvals.map_err(unreadable)?,
        scenes,
        store,
        requests,
        telemetry: telemetry.clone(),
        admission: Admission::new(limits, cores()),
        drain,
        grace: config.grace,
        processes: Arc::new(Registry::new(config.process_retention)),
        jobs,
        results: Arc::default(),
    });
    pipeline.share();
    pipeline.drop_revoked_answers().await;
    pipeline.do_jobs();
    if let Some(reload) = reload {
        reload.watch(Arc::clone(&pipeline));
    }
    if announce {
        // One that lives for one call takes what it has kept with it.
        let sessions = Arc::clone(pipeline.store.sessions());
        let end = pipeline.drain.begun_token();
        // As long as a job or an answer is kept that may name something of a session.
        let past = config.jobs.retention.max(config.requests.retention);
        let past = past.max(config.sessions.retention);
        task::spawn("retention of sessions", retain_in_time(sessions, config.sessions, past, end));
    }
    let runs_commands = isolation.is_ready();
    let info = Info {
        pipeline: Arc::clone(&pipeline),
        sandboxes: Arc::clone(&sandboxes),
        isolation,
        proxy,
        identities: results.into_iter().map(|found| found.identity).collect(),
        limits: config.limits,
        concurrent_runs: config.concurrent_runs,
        started,
    };
    let services =
        Services { pipeline, info, sandboxes: Arc::clone(&sandboxes), runs_commands, state_lost };
    let served = server::serve(listeners, services, until, config.drain_timeout, announce).await;
    sandboxes.close();
    telemetry.flush().await;
    tracing::info!("ended");
    served.map_err(io_error("serving"))
}

/// The database: kept in the state directory, or where that is for one call, in memory.
fn database(store: &StateDir, is_kept: bool) -> Result<Database, StartError> {
    let opened = if is_kept {
        Database::open(&store.database(), store.has_records())
    } else {
        Database::in_memory()
    };
    opened.map_err(StartError::Database)
}

/// The request ids.
async fn requests(
    database: Database,
    config: Requests,
    drain: &Drain,
) -> Result<Arc<Idempotency>, StartError> {
    let bounds = Bounds { age: config.retention, number: config.kept, bytes: config.kept_bytes };
    let log = RequestLog::open(database, bounds).await;
    let log = log.map_err(unreadable)?;
    Ok(Idempotency::new(log, config.linger, drain))
}

/// The jobs.
async fn jobs(
    database: Database,
    store: &StateDir,
    config: &Config,
    drain: &Drain,
) -> Result<Arc<Jobs>, StartError> {
    let several = config.keys.as_ref().filter(|keys| keys.keys.len() > 1);
    let (params, is_shared) = (store.job_params(), several.is_some());
    let jobs = Jobs::open(database, params, config.jobs.clone(), is_shared, drain);
    jobs.await.map_err(|error| StartError::Io {
        what: "reading the jobs",
        source: io::Error::other(error),
    })
}

fn unreadable(error: DatabaseError) -> StartError {
    StartError::Io { what: "reading the database", source: io::Error::other(error) }
}

/// The tools: those of the contract, and those of the configuration. No dialect has a tool of the name of one
/// of these: rules and lists could not tell them apart.
pub(super) fn catalog(config: &Config) -> Result<Catalog, StartError> {
    let catalog = Catalog::load().map_err(|error| StartError::Io {
        what: "reading the tools",
        source: io::Error::other(error),
    })?;
    let taken = config.tools.iter().filter(|tool| is_tool(&tool.name));
    let mut problems: Vec<_> = taken
        .map(|tool| format!("tools: {:?}: a dialect has a tool of this name", tool.name))
        .collect();
    match catalog.with_tools(config.tools.clone()) {
        Ok(catalog) if problems.is_empty() => return Ok(catalog),
        Ok(_) => {}
        Err(more) => problems.extend(more),
    }
    Err(ConfigError(problems).into())
}

/// Who may call, and what the operator lets in. All that is wrong with either is told.
pub(super) fn callers(
    config: &Config,
    catalog: &Catalog,
) -> Result<(Access, Settings), StartError> {
    let access = Access::new(Trust {
        own: peer::own_user(),
        loopback: config.trust_loopback,
        commands_are_apart: match config.network {
            Network::None => true,
            // A root daemon's commands are another user's.
            Network::Host => rustix::process::geteuid().is_root(),
            // What comes from the proxy comes from the daemon's user.
            Network::Proxy => !config.egress.reaches_loopback(),
        },
    });
    let names = config.workspace_names();
    let settings = Settings::new(config.policy.clone(), catalog, &names, config.idle_tools());
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
fn proxy(config: &Config, own_ports: Vec<u16>) -> Option<Arc<Proxy>> {
    for warning in config.network_warnings() {
        tracing::warn!(warning, "the network of commands is not what is safest");
    }
    let proxy = || Arc::new(Proxy::new(config.egress.clone(), own_ports));
    (config.network == Network::Proxy).then(proxy)
}
