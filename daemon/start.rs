//! Starts the daemon in a fixed order: single-threaded steps, the runtime, the isolation probe, the
//! server.

mod created_workspaces;
mod embedded;
mod error;
#[cfg(feature = "fleet")]
mod fleet;
mod host_sockets;
mod isolation;
mod observed_metrics;
mod ownership;
mod persistent_directories;
mod privileges;
mod protection;
mod reload;
mod serving;
mod shared_limits;
mod start_mode;
mod tls_reload;
mod unwritable;

use std::{
    future::Future,
    io::{self, Write as _},
    num::NonZeroUsize,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use tempfile::TempDir;
use tokio::{runtime::Runtime, sync::oneshot, task::JoinHandle};

pub use self::embedded::EmbeddedOptions;
pub(super) use self::error::StartError;
use self::{
    embedded::PersistentDirs,
    error::io_error,
    host_sockets::HostSockets,
    isolation::{KeeperEnvironment, StartedKeeper},
    ownership::sandbox_user,
    persistent_directories::create_persistent_directories,
    reload::ConfigReloader,
    serving::PreparedDaemon,
    shared_limits::StartWarning,
    start_mode::StartMode,
};
use super::{
    config::{Config, ConfigError, WorkspaceConfig, args::Args, tools},
    fd_exhaustion,
    sandbox::{
        cgroup::{Cgroups, CgroupsUnavailable, MemoryAccounting},
        host_environment::HostEnvironment,
        keeper_process::KeeperProcess,
        plan::{BindMount, SandboxPlan, WorkspacePlan},
    },
    server::{
        self, ShutdownSignals, ShutdownTrigger, inherited_listeners::InheritedListener,
        listener::Listeners, service_manager::ServiceManager,
    },
    store::state_dir::StateDir,
    sys::landlock,
    task,
    telemetry::logs,
    workspace::Workspace,
};

/// Blocking threads beside one for each call: for transfers, output and records.
const EXTRA_BLOCKING_THREADS: usize = 256;

/// Runs the daemon until a signal ends it.
///
/// `args` are the arguments that `config` was loaded from. A reload loads it from them again.
pub(super) fn run(args: Args, config: Config) -> Result<(), StartError> {
    // Before the keeper starts, which must not inherit them.
    let inherited = InheritedListener::take_all()
        .map_err(io_error("taking the sockets of the service manager"))?;
    logs::init(config.telemetry.log_format, config.telemetry.log_level);
    // Before the daemon is confined to its own files.
    let service_manager = ServiceManager::connect();
    for warning in shared_limits::warnings(&config) {
        warning.log();
    }

    let journals = |store: &mut StateDir, _: &[Workspace]| store.change_journals_dir();
    let (prepared, runtime) = prepare(config, StartMode::Serve, journals)?;

    runtime.block_on(async {
        // Catch signals before the sockets exist: a client that sees a socket may send a signal,
        // which must not kill the process in the middle of its start.
        let signals = ShutdownSignals::catch().map_err(io_error("installing signal handlers"))?;
        let reload = ConfigReloader::install(args, &prepared.config, service_manager.clone())
            .map_err(io_error("installing signal handlers"))?;
        let listeners = Listeners::bind(&prepared.config, inherited)?;
        let shutdown = ShutdownTrigger::Signals(signals);
        serving::serve(prepared, listeners, shutdown, Some(reload), service_manager).await
    })
}

/// Checks the configuration and the isolation of commands, and returns a report.
///
/// Binds no address and does not change the state directory: a daemon may be using them.
pub(super) fn check(config: Config) -> Result<String, StartError> {
    logs::init(config.telemetry.log_format, tracing::Level::ERROR);

    let (workspaces, keeper, runtime) = prepare_sandboxes(&config, StartMode::Check)?;
    let probed = runtime
        .block_on(isolation::probe_workspaces(
            keeper.process,
            &keeper.environment.accounting,
            &config,
        ))
        .map_err(io_error("talking to the keeper"))?;
    serving::load_access(&config, &serving::load_catalog(&config)?)?;

    let mut warnings = shared_limits::warnings(&config);
    warnings.extend(workspaces.iter().filter_map(unwritable::warning));
    let warnings: String = warnings.iter().map(StartWarning::report).collect();
    let mut report = String::from("configuration: ok\n")
        + &warnings
        + &config.network_report()
        + &config.fetch_report()
        + &tools::tools_report(&config.tools);

    for (workspace, probe) in workspaces.iter().zip(&probed.results) {
        let isolation =
            isolation::workspace_isolation(&config, &keeper.environment, workspace.name(), probe);
        let sockets =
            HostSockets::find(&config, workspace.name(), isolation.level, isolation.landlock_abi);
        report += &isolation::isolation_report(workspace, &isolation, probe.identity, &sockets);
        let protection = protection::warning(&config, workspace.name(), isolation.level);
        report.extend(protection.as_ref().map(StartWarning::report));
        if !isolation.is_ready() {
            return Err(StartError::Isolation(report));
        }
    }
    Ok(report)
}

/// Runs an embedded daemon for the duration of `call`, which gets its address.
///
/// Only `call` is generic: the daemon is compiled once, with this crate.
pub(super) fn with_embedded<T, F, Fut>(
    workspace: PathBuf,
    options: EmbeddedOptions,
    call: F,
) -> Result<T, StartError>
where
    F: FnOnce(String) -> Fut,
    Fut: Future<Output = T>,
{
    let daemon = EmbeddedDaemon::start(workspace, options)?;
    let result = daemon.runtime.block_on(call(daemon.address.clone()));
    daemon.stop().map(|()| result)
}

/// A daemon in this process, with its runtime. It serves on a Unix socket in a temporary directory.
#[derive(Debug)]
struct EmbeddedDaemon {
    runtime: Runtime,
    address: String,
    /// The daemon stops when this is dropped.
    stop_sender: oneshot::Sender<()>,
    task: JoinHandle<Result<(), StartError>>,
    _directory: TempDir,
}

impl EmbeddedDaemon {
    fn start(workspace: PathBuf, options: EmbeddedOptions) -> Result<Self, StartError> {
        let Some(path) = workspace.to_str() else {
            let text = format!(
                "the name of the directory {workspace:?} is not UTF-8: rename it, as only names in UTF-8 can be workspaces"
            );
            return Err(ConfigError(vec![text]).into());
        };

        let directory = embedded::create_temp_dir(&workspace).map_err(io_error(
            "creating a temporary directory outside of the workspace, in TMPDIR, /var/tmp or /dev/shm",
        ))?;
        let socket = directory.path().join("jig.sock");
        let address = format!("unix:{}", socket.display());
        let config = Config::load(Args {
            listen: vec![address.clone()],
            workspace: vec![format!("workspace={path}")],
            state_dir: Some(directory.path().join("state")),
            protect: std::env::var("JIG_PROTECT").into_iter().collect(),
            minimum_level: options.minimum_level,
            chown_workspace: options.chown_workspace,
            ..Default::default()
        })?;
        logs::init(logs::LogFormat::Text, tracing::Level::ERROR);

        // Bound before the daemon runs: calls wait in the backlog until it accepts.
        let listeners = Listeners::bind_socket(&socket)?;
        let (prepared, runtime) = prepare(config, StartMode::Embedded, |store, workspaces| {
            embedded::attach_persistent_dirs(PersistentDirs::find(&workspace), store, workspaces)
        })?;

        let (stop_sender, stop_requested) = oneshot::channel();
        let task = {
            let _context = runtime.enter();
            let shutdown = ShutdownTrigger::Channel(stop_requested);
            let manager = ServiceManager::default();
            task::spawn(
                "embedded daemon",
                serving::serve(prepared, listeners, shutdown, None, manager),
            )
        };
        Ok(Self { runtime, address, stop_sender, task, _directory: directory })
    }

    /// Stops the daemon, and waits until it has ended.
    fn stop(self) -> Result<(), StartError> {
        drop(self.stop_sender);
        let result = self.runtime.block_on(self.task).unwrap_or_else(|panic| {
            Err(StartError::Io { what: "embedded daemon", source: io::Error::other(panic) })
        });
        self.runtime.shutdown_background();
        result
    }
}

/// Does everything that must happen while the process has a single thread.
///
/// The keeper inherits the state of the process, and privileges belong to threads. `journals` sets
/// up the state directory and returns the directory for journals.
fn prepare(
    config: Config,
    mode: StartMode,
    journals: impl FnOnce(&mut StateDir, &[Workspace]) -> PathBuf,
) -> Result<(PreparedDaemon, Runtime), StartError> {
    let started = server::start_time();
    let mut store = StateDir::open(&config.state_dir)?;
    let (mut workspaces, keeper, runtime) = prepare_sandboxes(&config, mode)?;
    let journals = journals(&mut store, &workspaces);
    recover_workspaces(&mut workspaces, &journals)?;
    let prepared = PreparedDaemon { config, mode, started, workspaces, store, keeper };
    Ok((prepared, runtime))
}

/// Undoes file changes that a daemon left incomplete when it died.
fn recover_workspaces(workspaces: &mut [Workspace], journals: &Path) -> Result<(), StartError> {
    for workspace in workspaces {
        let undone = workspace
            .open_journals(journals)
            .map_err(io_error("undoing incomplete changes of an earlier daemon"))?;
        if undone > 0 {
            tracing::warn!(
                workspace = workspace.name(),
                changes = undone,
                "undid file changes that an earlier daemon left incomplete when it died"
            );
        }
    }
    Ok(())
}

/// Opens the workspaces, starts the keeper, drops privileges and builds the runtime, in this order.
fn prepare_sandboxes(
    config: &Config,
    mode: StartMode,
) -> Result<(Vec<Workspace>, StartedKeeper, Runtime), StartError> {
    let host_environment = HostEnvironment::detect();
    let workspaces = open_workspaces(config, mode)?;
    privileges::raise_descriptor_limit().map_err(io_error("raising the limit of descriptors"))?;

    let persistent = match mode {
        StartMode::Serve | StartMode::Embedded => {
            create_persistent_directories(config, &workspaces)?
        }
        // A check runs commands with ephemeral directories. The plan still says which are persistent.
        StartMode::Check => vec![Vec::new(); workspaces.len()],
    };
    // Before the keeper starts, which inherits the cgroup.
    let accounting = detect_accounting(config, mode);

    let mut plan = sandbox_plan(config, &workspaces, persistent);
    if config.chown_workspace && mode == StartMode::Check {
        for workspace in &mut plan.workspaces {
            workspace.chowned_to = Some(sandbox_user(config, workspace.index));
        }
    }
    let created = config.created_workspaces.as_ref().map(created_workspaces::open_directory);
    let created = created.transpose()?;
    let directories = workspaces.iter().map(|workspace| workspace.as_fd());
    let directories: Vec<_> = directories.chain(created.as_ref().map(|it| it.as_fd())).collect();
    let process =
        KeeperProcess::start(plan, &directories).map_err(io_error("starting the keeper"))?;

    privileges::drop_privileges().map_err(io_error("dropping privileges"))?;
    if mode == StartMode::Serve {
        privileges::shorten_scheduler_slice();
        let cgroups = accounting.cgroups().map(|cgroups| cgroups.directory());
        privileges::confine(config, cgroups)
            .map_err(io_error("confining the daemon to its files"))?;
    }

    let environment = KeeperEnvironment { accounting, host_environment };
    Ok((workspaces, StartedKeeper { process, environment }, build_runtime(config)?))
}

fn open_workspaces(config: &Config, mode: StartMode) -> Result<Vec<Workspace>, StartError> {
    let mut workspaces = Vec::new();
    for workspace in &config.workspaces {
        let mut opened = open_workspace(workspace).map_err(|source| StartError::Workspace {
            path: workspace.path.display().to_string(),
            source,
        })?;
        opened.sync_changes(config.sync_files);

        if config.chown_workspace && mode != StartMode::Check {
            let note =
                ownership::chown_workspace(&mut opened, sandbox_user(config, workspaces.len()))?;
            if let Some(note) = note.filter(|_| mode == StartMode::Embedded) {
                // An embedded daemon logs errors only. Nothing can be reported on a closed stream.
                let _closed = writeln!(io::stderr(), "jig: {note}");
            }
        }
        workspaces.push(opened);
    }
    Ok(workspaces)
}

fn open_workspace(config: &WorkspaceConfig) -> io::Result<Workspace> {
    let mut workspace =
        Workspace::open(config.name.clone(), config.path.clone(), config.mount_path.clone())?;
    if config.follow_links {
        workspace.follow_links()?;
    }
    workspace.protect(&config.protection.path_names())?;
    Ok(workspace)
}

/// Builds the runtime, with a worker thread for every second core.
fn build_runtime(config: &Config) -> Result<Runtime, StartError> {
    // The other cores are for the commands that calls run. More workers would also hand calls from
    // thread to thread, and each hand-over costs a wake-up.
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.div_ceil(2))
        // One for each call: calls that wait for others at the same path must not take the threads
        // of the other calls.
        .max_blocking_threads(config.concurrent_calls + EXTRA_BLOCKING_THREADS)
        .thread_name("jigd")
        .enable_all()
        .build()
        .map_err(|error| match fd_exhaustion::remedy(&error) {
            Some(remedy) => io::Error::other(format!("{error}: {remedy}")),
            None => error,
        })
        .map_err(io_error("starting the runtime"))
}

/// Detects how the memory of runs can be limited: by cgroups, or else by the watchdog.
fn detect_accounting(config: &Config, mode: StartMode) -> MemoryAccounting {
    if mode == StartMode::Embedded {
        let reason = CgroupsUnavailable("it lives for one call only".to_owned());
        return MemoryAccounting::Watchdog(reason);
    }

    let accounting = match Cgroups::claim() {
        Ok(cgroups) => MemoryAccounting::Cgroups(Arc::new(cgroups)),
        Err(reason) => MemoryAccounting::Watchdog(reason),
    };
    let limits_cpu = accounting.cgroups().is_some_and(|cgroups| cgroups.has_cpu_controller());
    if config.limits.milli_cpus.is_some() && !limits_cpu {
        tracing::warn!(
            remedy = "run the daemon where it may create version 2 cgroups with the cpu controller, or remove limits.cpus",
            "limits.cpus has no effect: the cpu controller is not available"
        );
    }
    accounting
}

fn sandbox_plan(
    config: &Config,
    workspaces: &[Workspace],
    persistent: Vec<Vec<BindMount>>,
) -> SandboxPlan {
    let workspaces = config
        .workspaces
        .iter()
        .zip(workspaces)
        .zip(persistent)
        .zip(&config.sandbox_ids)
        .enumerate()
        .map(|(index, (((config, workspace), persistent_binds), sandbox_id))| WorkspacePlan {
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
            persistent: config.persistent,
            persistent_binds,
        });

    SandboxPlan {
        workspaces: workspaces.collect(),
        created_workspaces: created_workspaces::plan(config),
        limits: config.limits,
        allow_ptrace: config.allow_ptrace,
        recycle_sandboxes: config.recycle_sandboxes,
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
