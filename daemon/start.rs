//! Starting a daemon, in an order that cannot be otherwise: what must happen while there is one
//! thread, then the runtime, then the proof that commands are isolated, then answering calls.

mod homes;
mod isolation;

use std::{
    future::Future,
    io,
    num::NonZeroUsize,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Instant, SystemTime},
};

use tokio::runtime::Runtime;

use self::{homes::HomeError, isolation::Probed};
use super::{
    call::{Pipeline, admission::Admission, drain::Drain},
    catalog::Catalog,
    config::{Config, ConfigError, listen::Address},
    door::info::Info,
    egress::proxy::Proxy,
    embedded::{self, Durable},
    privileges,
    process::registry::Registry,
    sandbox::{
        cgroup::{Accounting, Cgroups, NoCgroups},
        launch::KeeperProcess,
        plan::{Bind, Network, Plan, WorkspacePlan},
    },
    server::{
        self, Services, Signals, Until,
        listener::{BindError, Listeners},
    },
    store::state_dir::{OpenError, StateDir},
    sys::landlock,
    telemetry::{Telemetry, logs},
    tool::{RunSettings, Scene},
    workspace::Workspace,
};

/// Threads that may block beside those of the calls: for transfers, output and records.
const SPARE_THREADS: usize = 256;

/// What a daemon is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To serve whoever connects: it is confined to its own files.
    Serving,
    /// For one call of the process it is in: that is a client too, who may be told to send any file,
    /// and whose cgroup is left alone.
    OneCall,
    /// To tell whether it could serve. Another may be doing so: its state is left alone.
    Check,
}

/// Why the daemon did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state directory cannot be held.
    #[error("{}", chain(.0))]
    State(#[from] OpenError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A workspace cannot be opened.
    #[error("--workspace {path}: {source}")]
    Workspace {
        /// The workspace.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A home directory that is to be kept cannot be.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The isolation that was asked for cannot be given. Told by `--check` only: a daemon that
    /// serves says it to its callers.
    #[error("{0}")]
    Isolation(String),
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// What there is before the runtime.
struct Prepared {
    config: Config,
    started: (SystemTime, Instant),
    workspaces: Vec<Workspace>,
    store: StateDir,
    keeper: Keeper,
    runtime: Runtime,
}

/// What makes sandboxes, and what counts what they use.
struct Keeper {
    process: KeeperProcess,
    accounting: Accounting,
}

/// Runs the daemon until a signal ends it.
pub(super) fn run(config: Config) -> Result<(), StartError> {
    logs::start(config.log, config.log_level);
    let keep = |store: &mut StateDir, _: &[Workspace]| store.changes();
    let prepared = prepare(config, Purpose::Serving, keep)?;
    let runtime = Arc::new(prepared.runtime);
    Arc::clone(&runtime).block_on(async {
        // Before the sockets are there: whoever sees one may send a signal, which must not end the
        // process half-way.
        let signals = Signals::catch().map_err(io_error("catching signals"))?;
        let listeners = Listeners::bind(&prepared.config.listen)?;
        let parts = Parts {
            config: prepared.config,
            started: prepared.started,
            workspaces: prepared.workspaces,
            store: prepared.store,
        };
        serve(
            parts,
            prepared.keeper,
            listeners,
            Until::Signals(signals),
            true,
        )
        .await
    })
}

/// Checks the configuration and the sandbox; answers a report.
pub(super) fn check(config: Config) -> Result<String, StartError> {
    logs::start(config.log, tracing::Level::ERROR);
    // Neither the addresses nor the state directory are touched: a daemon may be running on them.
    let (workspaces, keeper, runtime) = prepare_sandboxes(&config, Purpose::Check)?;
    let probed = runtime
        .block_on(isolation::prove(
            keeper.process,
            &keeper.accounting,
            &config,
        ))
        .map_err(io_error("talking to the launcher"))?;
    let mut report = String::from("configuration: ok\n") + &config.network_report();
    for (workspace, found) in workspaces.iter().zip(&probed.results) {
        let isolation = isolation::isolation(&config, &keeper.accounting, workspace.name(), found);
        report += &isolation::report(workspace, &isolation);
        if !isolation.is_ready() {
            return Err(StartError::Isolation(report));
        }
    }
    Ok(report)
}

/// Runs a daemon for the time of one call.
pub(super) fn with_embedded<T, F, Fut>(workspace: PathBuf, call: F) -> Result<T, StartError>
where
    F: FnOnce(String) -> Fut,
    Fut: Future<Output = T>,
{
    let folder = embedded::temporary_folder(&workspace).map_err(io_error(
        "making a temporary folder outside of the workspace, in TMPDIR, /var/tmp or /dev/shm",
    ))?;
    let socket = folder.path().join("jig.sock");
    let args = super::config::args::Args {
        listen: vec![format!("unix:{}", socket.display())],
        workspace: vec![format!("workspace={}", workspace.display())],
        state_dir: Some(folder.path().join("state")),
        ..Default::default()
    };
    let config = Config::load(args)?;
    logs::start(logs::Format::Text, tracing::Level::ERROR);
    let listeners = Listeners::bind(&[Address::Unix(socket.clone())])?;
    let Prepared {
        config,
        started,
        workspaces,
        store,
        keeper,
        runtime,
    } = prepare(config, Purpose::OneCall, |store, workspaces| {
        embedded::keep(Durable::find(&workspace), store, workspaces)
    })?;
    let result = runtime.block_on(async {
        let (end, told) = tokio::sync::oneshot::channel();
        let parts = Parts {
            config,
            started,
            workspaces,
            store,
        };
        let daemon = super::task::spawn(
            "embedded daemon",
            serve(parts, keeper, listeners, Until::Told(told), false),
        );
        // The socket is bound already: the call waits in its backlog until the daemon answers.
        let result = call(format!("unix:{}", socket.display())).await;
        drop(end);
        match daemon.await {
            Ok(served) => served.map(|()| result),
            Err(panic) => Err(StartError::Io {
                what: "embedded daemon",
                source: io::Error::other(panic),
            }),
        }
    });
    runtime.shutdown_background();
    result
}

/// Everything that must be done while the process has one thread: the keeper inherits what the
/// process is, and privileges belong to threads.
///
/// `keep` says where things are kept; it answers the folder for journals.
fn prepare(
    config: Config,
    purpose: Purpose,
    keep: impl FnOnce(&mut StateDir, &[Workspace]) -> PathBuf,
) -> Result<Prepared, StartError> {
    let started = server::now();
    let mut store = StateDir::open(&config.state_dir)?;
    let (mut workspaces, keeper, runtime) = prepare_sandboxes(&config, purpose)?;
    let changes = keep(&mut store, &workspaces);
    mend(&mut workspaces, &changes)?;
    Ok(Prepared {
        config,
        started,
        workspaces,
        store,
        keeper,
        runtime,
    })
}

/// Undoes what a daemon that died has left half done in the workspaces.
fn mend(workspaces: &mut [Workspace], changes: &Path) -> Result<(), StartError> {
    for workspace in workspaces {
        let mended = workspace
            .keep_journals(changes)
            .map_err(io_error("undoing what a daemon before this one has left"))?;
        if mended > 0 {
            tracing::warn!(
                workspace = workspace.name(),
                changes = mended,
                "a daemon died while it changed files: what it had half done was undone"
            );
        }
    }
    Ok(())
}

fn prepare_sandboxes(
    config: &Config,
    purpose: Purpose,
) -> Result<(Vec<Workspace>, Keeper, Runtime), StartError> {
    let mut workspaces = Vec::new();
    for workspace in &config.workspaces {
        let failed = |source| StartError::Workspace {
            path: workspace.path.display().to_string(),
            source,
        };
        let mut opened = Workspace::open(
            workspace.name.clone(),
            workspace.path.clone(),
            workspace.mount_path.clone(),
        )
        .map_err(failed)?;
        if workspace.follow_links {
            opened.follow_links().map_err(failed)?;
        }
        opened.protect(&workspace.protected).map_err(failed)?;
        opened.sync_changes(config.sync_files);
        workspaces.push(opened);
    }
    let directories: Vec<_> = workspaces
        .iter()
        .map(|workspace| workspace.as_fd())
        .collect();
    privileges::raise_descriptor_limit().map_err(io_error("raising the limit of descriptors"))?;
    let homes = match purpose {
        Purpose::Serving | Purpose::OneCall => homes::kept(config, &workspaces)?,
        // Sandboxes have fresh ones; where none could be kept, they say so all the same.
        Purpose::Check => vec![None; workspaces.len()],
    };
    // Before the keeper, which inherits the place.
    let accounting = accounting(config, purpose);
    let process = KeeperProcess::start(plan(config, &workspaces, homes), &directories)
        .map_err(io_error("starting the launcher"))?;
    privileges::give_up().map_err(io_error("giving up privileges"))?;
    if purpose == Purpose::Serving {
        let cgroups = accounting.cgroups().map(|cgroups| cgroups.directory());
        privileges::confine(config, cgroups)
            .map_err(io_error("confining the daemon to its files"))?;
    }
    let keeper = Keeper {
        process,
        accounting,
    };
    // Half the machine: the commands that calls run are what needs it, and a call that is handed
    // from one thread to another waits for a wake-up each time.
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let workers = cores.div_ceil(2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        // One for each call: those that wait for others at the same path must not keep the rest of
        // the calls from theirs.
        .max_blocking_threads(config.concurrent_calls + SPARE_THREADS)
        .thread_name("jigd")
        .enable_all()
        .build()
        .map_err(io_error("starting the runtime"))?;
    Ok((workspaces, keeper, runtime))
}

/// Finds out how the memory of runs can be held.
fn accounting(config: &Config, purpose: Purpose) -> Accounting {
    if purpose == Purpose::OneCall {
        return Accounting::Watchdog(NoCgroups("it lives for one call only".to_owned()));
    }
    let accounting = match Cgroups::claim() {
        Ok(cgroups) => Accounting::Cgroups(Arc::new(cgroups)),
        Err(why) => Accounting::Watchdog(why),
    };
    let holds_cpu = accounting
        .cgroups()
        .is_some_and(|cgroups| cgroups.has_cpu());
    if config.limits.cpu_millis.is_some() && !holds_cpu {
        tracing::warn!(
            remedy = "run the daemon where it may make cgroups of version 2 with the controller cpu, or leave limits.cpus out",
            "limits.cpus cannot be held here"
        );
    }
    accounting
}

fn plan(config: &Config, workspaces: &[Workspace], homes: Vec<Option<Bind>>) -> Plan {
    let workspaces = config
        .workspaces
        .iter()
        .zip(workspaces)
        .zip(homes)
        .enumerate()
        .map(|(index, ((config, workspace), kept_home))| WorkspacePlan {
            index,
            name: config.name.clone(),
            path: config.path.clone(),
            identity: workspace.identity(),
            mount_path: config.mount_path.clone(),
            binds: config.binds.clone(),
            protected: config.protected.clone(),
            keeps_home: config.keeps_home,
            kept_home,
        });
    Plan {
        workspaces: workspaces.collect(),
        limits: config.limits,
        allow_ptrace: config.allow_ptrace,
        landlock_abi: landlock::abi(),
        sandbox_id: config.sandbox_id,
        network: config.network,
        processes: vec![std::process::id()],
        state_dir: config.state_dir.clone(),
        temporary: std::env::temp_dir(),
    }
}

/// What serving takes with it.
struct Parts {
    config: Config,
    started: (SystemTime, Instant),
    workspaces: Vec<Workspace>,
    store: StateDir,
}

async fn serve(
    parts: Parts,
    keeper: Keeper,
    listeners: Listeners,
    until: Until,
    announce: bool,
) -> Result<(), StartError> {
    let Parts {
        config,
        started,
        workspaces,
        store,
    } = parts;
    let telemetry = Telemetry::start();
    let catalog = Catalog::load().map_err(|error| StartError::Io {
        what: "reading the tools",
        source: io::Error::other(error),
    })?;
    let Keeper {
        process,
        accounting,
    } = keeper;
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
    let pipeline = Arc::new(Pipeline {
        catalog,
        scenes,
        store,
        telemetry: telemetry.clone(),
        admission: Admission::new(config.concurrent_calls),
        process_places: Admission::of_processes(config.concurrent_processes),
        drain: Drain::default(),
        grace: config.grace,
        finished: Default::default(),
        processes: Arc::new(Registry::new(config.process_retention)),
    });
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

/// The proxy, where that is the network of commands. Warns of a network that may not be what was
/// meant.
fn proxy(config: &Config) -> Option<Arc<Proxy>> {
    for warning in config.network_warnings() {
        tracing::warn!(warning, "the network of commands is not what is safest");
    }
    let proxy = || Arc::new(Proxy::new(config.egress.clone()));
    (config.network == Network::Proxy).then(proxy)
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::Io { what, source }
}

/// An error with what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
