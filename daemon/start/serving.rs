//! From what was prepared to a daemon that answers calls.

use std::{
    io,
    sync::Arc,
    time::{Instant, SystemTime},
};

use super::{
    error::{StartError, io_error},
    isolation::{self, Keeper, Probed},
};
use crate::daemon::{
    call::{
        Pipeline,
        access::{Access, Trust},
        admission::{self, Admission},
        drain::Drain,
        idempotency::Idempotency,
        jobs::Jobs,
    },
    catalog::Catalog,
    config::{Config, ConfigError, requests::Requests},
    door::info::Info,
    egress::proxy::Proxy,
    process::registry::Registry,
    sandbox::plan::Network,
    server::{self, Services, Until, listener::Listeners, peer},
    store::{
        database::Database,
        requests::{RequestLog, Retention},
        state_dir::StateDir,
    },
    telemetry::Telemetry,
    tool::{FilePlaces, RunSettings, Scene},
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

/// Proves the isolation, then answers calls until it is told to end.
pub(super) async fn serve(
    prepared: Prepared,
    listeners: Listeners,
    until: Until,
    announce: bool,
) -> Result<(), StartError> {
    let Prepared {
        config,
        started,
        workspaces,
        store,
        keeper: Keeper {
            process,
            accounting,
        },
    } = prepared;
    let telemetry = Telemetry::start();
    let catalog = Catalog::load().map_err(|error| StartError::Io {
        what: "reading the tools",
        source: io::Error::other(error),
    })?;
    let Probed { sandboxes, results } = isolation::prove(process, &accounting, &config)
        .await
        .map_err(io_error("talking to the launcher"))?;
    let proxy = proxy(&config);
    let settings = Arc::new(RunSettings {
        path: config.path.clone(),
        artifact_bytes: config.artifact_bytes,
        replay_bytes: config.replay_bytes,
        limits: config.limits,
        network: config.network,
        proxy: proxy.clone(),
    });
    let files = FilePlaces::new(config.concurrent_file_operations);
    let mut scenes = Vec::new();
    for (index, mut workspace) in workspaces.into_iter().enumerate() {
        let (Some(pool), Some(found)) = (sandboxes.pool(index), results.get(index)) else {
            continue;
        };
        let isolation = isolation::isolation(&config, &accounting, workspace.name(), found);
        isolation::log(&isolation, announce);
        isolation::place(&mut workspace, &isolation);
        scenes.push(Scene {
            workspace: Arc::new(workspace),
            sandboxes: Arc::clone(pool),
            isolation: Arc::new(isolation),
            settings: Arc::clone(&settings),
            files: files.clone(),
        });
    }
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
    let requests = requests(database.clone(), config.requests).await?;
    let jobs = jobs(database, &store, &config).await?;
    let access = access(&config, &catalog)?;
    let limits = admission::Limits {
        calls: config.concurrent_calls,
        processes: config.concurrent_processes,
        queued: config.queued_calls,
        wait: config.queue_wait,
    };
    let pipeline = Arc::new(Pipeline {
        access,
        catalog,
        scenes,
        store,
        requests,
        telemetry: telemetry.clone(),
        admission: Admission::new(limits, cores(), config.keys.is_some()),
        drain: Drain::default(),
        grace: config.grace,
        finished: Default::default(),
        processes: Arc::new(Registry::new(config.process_retention)),
        jobs,
    });
    pipeline.do_jobs();
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
    let services = Services {
        pipeline,
        info,
        sandboxes: Arc::clone(&sandboxes),
        runs_commands,
    };
    let served = server::serve(listeners, services, until, config.drain_timeout, announce).await;
    sandboxes.close();
    telemetry.flush().await;
    tracing::info!("ended");
    served.map_err(io_error("serving"))
}

/// The database: kept in the state directory, or where that is for one call, in memory.
fn database(store: &StateDir, is_kept: bool) -> Result<Database, StartError> {
    let opened = if is_kept {
        Database::open(&store.database())
    } else {
        Database::in_memory()
    };
    opened.map_err(StartError::Database)
}

/// The request ids.
async fn requests(database: Database, config: Requests) -> Result<Arc<Idempotency>, StartError> {
    let log = RequestLog::open(database).await;
    let log = log.map_err(|error| StartError::Io {
        what: "reading the database",
        source: io::Error::other(error),
    })?;
    let retention = Retention {
        age: config.retention,
        number: config.kept,
        bytes: config.kept_bytes,
    };
    Ok(Idempotency::new(log, retention, config.linger))
}

/// The jobs.
async fn jobs(
    database: Database,
    store: &StateDir,
    config: &Config,
) -> Result<Arc<Jobs>, StartError> {
    let jobs = Jobs::open(database, store.job_params(), config.jobs.clone()).await;
    jobs.map_err(|error| StartError::Io {
        what: "reading the jobs",
        source: io::Error::other(error),
    })
}

/// Who may call.
fn access(config: &Config, catalog: &Catalog) -> Result<Access, StartError> {
    let is_root = rustix::process::geteuid().is_root();
    let access = Access::new(Trust {
        own: peer::own_user(),
        loopback: config.trust_loopback,
        // A root daemon's commands are another user's.
        commands_are_apart: is_root || config.network != Network::Host,
    });
    if let Some(keys) = config.keys.clone() {
        let names = config.workspaces.iter().map(|workspace| &*workspace.name);
        let names: Vec<_> = names.collect();
        access
            .set_keys(keys, catalog, &names)
            .map_err(|problems| StartError::Config(ConfigError(problems)))?;
    }
    Ok(access)
}

/// The proxy, where that is the network of commands. Warns of a network that may not be what was
/// meant.
fn proxy(config: &Config) -> Option<Arc<Proxy>> {
    for warning in config.network_warnings() {
        tracing::warn!(warning, "the network of commands is not what is safest");
    }
    let proxy = || Arc::new(Proxy::new(config.egress.clone()));
    (config.network == Network::Proxy).then(proxy)
}
