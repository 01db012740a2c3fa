//! Starting a daemon, in an order that cannot be otherwise: what must happen while there is one
//! thread, then the runtime, then the proof that commands are isolated, then answering calls.

mod error;
mod homes;
mod host_sockets;
mod isolation;
mod ownership;
mod protection;
mod reload;
mod serving;
mod shared_limits;
mod unwritable;

use std::{
    future::Future,
    io::{self, Write as _},
    num::NonZeroUsize,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::runtime::Runtime;

pub(super) use self::error::StartError;
use self::{
    error::io_error,
    host_sockets::HostSockets,
    isolation::{KeeperEnvironment, StartedKeeper},
    ownership::sandbox_user,
    reload::ConfigReloader,
    serving::PreparedDaemon,
    shared_limits::StartWarning,
};
use super::{
    config::{Config, ConfigError, args::Args, listen::ListenAddr, tools},
    embedded::{self, EmbeddedOptions, PersistentDirs},
    fd_exhaustion, privileges,
    sandbox::{
        cgroup::{Cgroups, CgroupsUnavailable, MemoryAccounting},
        host_environment::HostEnvironment,
        keeper_process::KeeperProcess,
        plan::{BindMount, SandboxPlan, WorkspacePlan},
    },
    server::{self, ShutdownSignals, ShutdownTrigger, listener::Listeners},
    store::state_dir::StateDir,
    sys::landlock,
    telemetry::logs,
    workspace::Workspace,
};

/// Threads that may block beside those of the calls: for transfers, output and records.
const EXTRA_BLOCKING_THREADS: usize = 256;

/// What a daemon is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartMode {
    /// To serve whoever connects: it is confined to its own files.
    Serve,
    /// For one call of the process it is in: that is a client too, who may be told to send any file,
    /// and whose cgroup is left alone.
    Embedded,
    /// To tell whether it could serve. Another may be doing so: its state is left alone.
    Check,
}

/// Runs the daemon until a signal ends it. `args` led to `config`, and lead to what it is when it is read
/// again.
pub(super) fn run(args: Args, config: Config) -> Result<(), StartError> {
    logs::init(config.log_format, config.log_level);
    for warning in shared_limits::warnings(&config) {
        warning.log();
    }
    let keep = |store: &mut StateDir, _: &[Workspace]| store.change_journals_dir();
    let (prepared, runtime) = prepare(config, StartMode::Serve, keep)?;
    runtime.block_on(async {
        // Before the sockets are there: whoever sees one may send a signal, which must not end the
        // process half-way.
        let signals = ShutdownSignals::catch().map_err(io_error("catching signals"))?;
        let reload = ConfigReloader::install(args, &prepared.config)
            .map_err(io_error("catching signals"))?;
        let listeners = Listeners::bind(&prepared.config.listen)?;
        serving::serve(prepared, listeners, ShutdownTrigger::Signals(signals), Some(reload)).await
    })
}

/// Checks the configuration and the sandbox; answers a report.
pub(super) fn check(config: Config) -> Result<String, StartError> {
    logs::init(config.log_format, tracing::Level::ERROR);
    // Neither the addresses nor the state directory are touched: a daemon may be running on them.
    let (workspaces, keeper, runtime) = prepare_sandboxes(&config, StartMode::Check)?;
    let probed = runtime
        .block_on(isolation::probe_workspaces(
            keeper.process,
            &keeper.environment.accounting,
            &config,
        ))
        .map_err(io_error("talking to the launcher"))?;
    serving::load_access(&config, &serving::load_catalog(&config)?)?;
    let mut warnings = shared_limits::warnings(&config);
    warnings.extend(workspaces.iter().filter_map(unwritable::warning));
    let warnings: String = warnings.iter().map(StartWarning::report).collect();
    let mut report = String::from("configuration: ok\n")
        + &warnings
        + &config.network_report()
        + &config.fetch_report()
        + &tools::tools_report(&config.tools);
    for (workspace, found) in workspaces.iter().zip(&probed.results) {
        let isolation =
            isolation::workspace_isolation(&config, &keeper.environment, workspace.name(), found);
        let sockets =
            HostSockets::find(&config, workspace.name(), isolation.level, isolation.landlock_abi);
        report += &isolation::isolation_report(workspace, &isolation, found.identity, &sockets);
        let protection = protection::warning(&config, workspace.name(), isolation.level);
        report.extend(protection.as_ref().map(StartWarning::report));
        if !isolation.is_ready() {
            return Err(StartError::Isolation(report));
        }
    }
    Ok(report)
}

/// Runs a daemon for the time of one call.
pub(super) fn with_embedded<T, F, Fut>(
    workspace: PathBuf,
    options: EmbeddedOptions,
    call: F,
) -> Result<T, StartError>
where
    F: FnOnce(String) -> Fut,
    Fut: Future<Output = T>,
{
    let Some(path) = workspace.to_str() else {
        let text = format!(
            "the name of the directory {workspace:?} is not UTF-8: rename it, as only names in UTF-8 can be workspaces"
        );
        return Err(ConfigError(vec![text]).into());
    };
    let folder = embedded::create_temp_dir(&workspace).map_err(io_error(
        "making a temporary folder outside of the workspace, in TMPDIR, /var/tmp or /dev/shm",
    ))?;
    let socket = folder.path().join("jig.sock");
    let args = Args {
        listen: vec![format!("unix:{}", socket.display())],
        workspace: vec![format!("workspace={path}")],
        state_dir: Some(folder.path().join("state")),
        protect: std::env::var("JIG_PROTECT").into_iter().collect(),
        minimum_level: options.minimum_level,
        chown_workspace: options.chown_workspace,
        ..Default::default()
    };
    let config = Config::load(args)?;
    logs::init(logs::LogFormat::Text, tracing::Level::ERROR);
    let listeners = Listeners::bind(&[ListenAddr::Unix(socket.clone())])?;
    let (prepared, runtime) = prepare(config, StartMode::Embedded, |store, workspaces| {
        embedded::attach_persistent_dirs(PersistentDirs::find(&workspace), store, workspaces)
    })?;
    let result = runtime.block_on(async {
        let (stop_sender, stop_requested) = tokio::sync::oneshot::channel();
        let daemon = super::task::spawn(
            "embedded daemon",
            serving::serve(prepared, listeners, ShutdownTrigger::Channel(stop_requested), None),
        );
        // The socket is bound already: the call waits in its backlog until the daemon answers.
        let result = call(format!("unix:{}", socket.display())).await;
        drop(stop_sender);
        match daemon.await {
            Ok(served) => served.map(|()| result),
            Err(panic) => {
                Err(StartError::Io { what: "embedded daemon", source: io::Error::other(panic) })
            }
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
    purpose: StartMode,
    keep: impl FnOnce(&mut StateDir, &[Workspace]) -> PathBuf,
) -> Result<(PreparedDaemon, Runtime), StartError> {
    let started = server::start_time();
    let mut store = StateDir::open(&config.state_dir)?;
    let (mut workspaces, keeper, runtime) = prepare_sandboxes(&config, purpose)?;
    let changes = keep(&mut store, &workspaces);
    recover_workspaces(&mut workspaces, &changes)?;
    let prepared = PreparedDaemon { config, started, workspaces, store, keeper };
    Ok((prepared, runtime))
}

/// Undoes what a daemon that died has left half done in the workspaces.
fn recover_workspaces(workspaces: &mut [Workspace], changes: &Path) -> Result<(), StartError> {
    for workspace in workspaces {
        let mended = workspace
            .open_journals(changes)
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
    purpose: StartMode,
) -> Result<(Vec<Workspace>, StartedKeeper, Runtime), StartError> {
    let surroundings = HostEnvironment::detect();
    let mut workspaces = Vec::new();
    for workspace in &config.workspaces {
        let failed =
            |source| StartError::Workspace { path: workspace.path.display().to_string(), source };
        let mut opened = Workspace::open(
            workspace.name.clone(),
            workspace.path.clone(),
            workspace.mount_path.clone(),
        )
        .map_err(failed)?;
        if workspace.follow_links {
            opened.follow_links().map_err(failed)?;
        }
        let protected = workspace.protection.path_names();
        opened.protect(&protected).map_err(failed)?;
        opened.sync_changes(config.sync_files);
        if config.chown_workspace && purpose != StartMode::Check {
            let note =
                ownership::chown_workspace(&mut opened, sandbox_user(config, workspaces.len()))?;
            if let Some(note) = note.filter(|_| purpose == StartMode::Embedded) {
                // Its log has errors only. A closed stream loses nothing but the note.
                let _closed = writeln!(io::stderr(), "jig: {note}");
            }
        }
        workspaces.push(opened);
    }
    let directories: Vec<_> = workspaces.iter().map(|workspace| workspace.as_fd()).collect();
    privileges::raise_descriptor_limit().map_err(io_error("raising the limit of descriptors"))?;
    let homes = match purpose {
        StartMode::Serve | StartMode::Embedded => {
            homes::create_persistent_homes(config, &workspaces)?
        }
        // Sandboxes have fresh ones; where none could be kept, they say so all the same.
        StartMode::Check => vec![None; workspaces.len()],
    };
    // Before the keeper, which inherits the place.
    let accounting = detect_accounting(config, purpose);
    let mut plan = sandbox_plan(config, &workspaces, homes);
    if config.chown_workspace && purpose == StartMode::Check {
        for workspace in &mut plan.workspaces {
            workspace.chowned_to = Some(sandbox_user(config, workspace.index));
        }
    }
    let process =
        KeeperProcess::start(plan, &directories).map_err(io_error("starting the launcher"))?;
    privileges::drop_privileges().map_err(io_error("giving up privileges"))?;
    if purpose == StartMode::Serve {
        privileges::shorten_scheduler_slice();
        let cgroups = accounting.cgroups().map(|cgroups| cgroups.directory());
        privileges::confine(config, cgroups)
            .map_err(io_error("confining the daemon to its files"))?;
    }
    let keeper =
        StartedKeeper { process, environment: KeeperEnvironment { accounting, surroundings } };
    // Half the machine: the commands that calls run are what needs it, and a call that is handed
    // from one thread to another waits for a wake-up each time.
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let workers = cores.div_ceil(2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        // One for each call: those that wait for others at the same path must not keep the rest of
        // the calls from theirs.
        .max_blocking_threads(config.concurrent_calls + EXTRA_BLOCKING_THREADS)
        .thread_name("jigd")
        .enable_all()
        .build()
        .map_err(|error| match fd_exhaustion::remedy(&error) {
            Some(remedy) => io::Error::other(format!("{error}: {remedy}")),
            None => error,
        })
        .map_err(io_error("starting the runtime"))?;
    Ok((workspaces, keeper, runtime))
}

/// Finds out how the memory of runs can be held.
fn detect_accounting(config: &Config, purpose: StartMode) -> MemoryAccounting {
    if purpose == StartMode::Embedded {
        return MemoryAccounting::Watchdog(CgroupsUnavailable(
            "it lives for one call only".to_owned(),
        ));
    }
    let accounting = match Cgroups::claim() {
        Ok(cgroups) => MemoryAccounting::Cgroups(Arc::new(cgroups)),
        Err(why) => MemoryAccounting::Watchdog(why),
    };
    let holds_cpu = accounting.cgroups().is_some_and(|cgroups| cgroups.has_cpu_controller());
    if config.limits.cpu_millis.is_some() && !holds_cpu {
        tracing::warn!(
            remedy = "run the daemon where it may make cgroups of version 2 with the controller cpu, or leave limits.cpus out",
            "limits.cpus cannot be held here"
        );
    }
    accounting
}

fn sandbox_plan(
    config: &Config,
    workspaces: &[Workspace],
    homes: Vec<Option<BindMount>>,
) -> SandboxPlan {
    let workspaces = config
        .workspaces
        .iter()
        .zip(workspaces)
        .zip(homes)
        .zip(&config.sandbox_ids)
        .enumerate()
        .map(|(index, (((config, workspace), kept_home), sandbox_id))| WorkspacePlan {
            index,
            sandbox_id: *sandbox_id,
            name: config.name.clone(),
            path: config.path.clone(),
            file_identity: workspace.identity(),
            mount_path: config.mount_path.clone(),
            binds: config.binds.clone(),
            chowned_to: None,
            protected_paths: config.protection.paths.clone(),
            requires_protection: config.protection.required,
            has_persistent_home: config.persistent_home,
            home_bind: kept_home,
        });
    SandboxPlan {
        workspaces: workspaces.collect(),
        limits: config.limits,
        allow_ptrace: config.allow_ptrace,
        landlock_abi: landlock::abi_version(),
        max_processes_of_all_runs: shared_limits::max_processes_of_all_runs(
            config.limits.processes,
        ),
        network: config.network,
        daemon_processes: vec![std::process::id()],
        state_dir: config.state_dir.clone(),
        temporary_directory: std::env::temp_dir(),
    }
}
