//! Merges flags, environment variables and the configuration file, and checks the result.

use std::{
    collections::BTreeMap,
    mem,
    path::{Path, PathBuf},
};

use super::{
    Config, ConfigError, DEFAULT_STOP_GRACE, WorkspaceConfig,
    agent_sandbox::{AgentSandboxSettings, parse_agent_sandbox},
    args::Args,
    created_workspaces::{
        CommonSettings, OtherDirectories, parse_created_workspaces, sandbox_id_count,
    },
    daemon_limits::parse_daemon_limits,
    default_state_dir,
    duration::duration_or_default,
    exposure::{CredentialFile, check_chown, check_exposure, exposes_host, parse_binds},
    fetch::parse_fetch,
    file::{self, AgentSandboxTable, ConfigFile, FleetTable, ParsedFile},
    fleet::{FleetConfig, FleetContext, parse_fleet},
    http::parse_http,
    jobs::parse_jobs,
    keys::KeyFile,
    lifetimes::{parse_connection_age, parse_shutdown_times},
    limits::{parse_limits, parse_timeout},
    listen::{
        ListenAddr, ListenerConfig, ListenerProtocol, ListenerSettings, RemoteAccess,
        inherited_descriptors, parse_listeners,
    },
    network::parse_network,
    parse_or_default::parse_or_default,
    persistent_directories::parse_persistent_directories,
    policy::parse_policy,
    requests::parse_requests,
    sandbox_ids::choose_sandbox_ids,
    sessions::parse_sessions,
    telemetry::{TelemetryConfig, parse_telemetry},
    tls::{TlsFiles, TlsPaths},
    tools::parse_tools,
    workspaces::{WorkspaceDefaults, parse_workspaces},
};
use crate::daemon::{
    netpolicy::rules::NetworkRules,
    sandbox::{
        level::IsolationLevel,
        plan::{NetworkMode, PersistentDirectories},
    },
};

impl Config {
    /// Reads the file that `args` names, if any, and merges both.
    pub(crate) fn load(args: Args) -> Result<Self, ConfigError> {
        let args = args.without_empty();
        let config_path = args.config.clone();

        let parsed = config_path.as_deref().map(file::read_file).transpose();
        let ParsedFile { content, restart_only, renamed_keys } =
            parsed.map_err(|problem| ConfigError(vec![problem]))?.unwrap_or_default();

        let config = merge(args, content)?;
        Ok(Self { config_path, restart_only, renamed_keys, ..config })
    }
}

/// Settings that are checked against each other: who can reach the daemon, and what its commands
/// can reach.
struct Exposure {
    workspaces: Vec<WorkspaceConfig>,
    common: CommonSettings,
    state_dir: PathBuf,
    listeners: Vec<ListenerConfig>,
    agent_sandbox_metadata: BTreeMap<String, String>,
    health_listener: Option<ListenAddr>,
    metrics_listener: Option<ListenAddr>,
    tls: Option<TlsFiles>,
    remote_access: RemoteAccess,
    key_file: Option<PathBuf>,
    trust_loopback: bool,
    chown_workspace: bool,
    network: NetworkMode,
    egress: NetworkRules,
    telemetry: TelemetryConfig,
}

/// Merges `args` and `file`. Flags override the file.
fn merge(mut args: Args, mut file: ConfigFile) -> Result<Config, ConfigError> {
    let mut problems = Vec::new();
    let exposure = merge_exposure(&mut args, &mut file, &mut problems);

    let connection_age = parse_connection_age(&args, &file, &mut problems);
    let shutdown_times = parse_shutdown_times(&args, &file, &mut problems);
    let daemon_limits = parse_daemon_limits(&file.limits, &mut problems);
    let minimum_level = args.minimum_level.or(file.sandbox.minimum_level);
    let binds = exposure.workspaces.iter().flat_map(|workspace| &workspace.binds);
    let paths = exposure.workspaces.iter().map(|workspace| workspace.path.as_path());
    let paths = paths.chain(binds.map(|bind| bind.source.as_path()));
    let others = OtherDirectories {
        paths: paths.chain([exposure.state_dir.as_path()]).collect(),
        exposes_host,
    };
    let created_workspaces =
        parse_created_workspaces(file.workspaces_on_demand, exposure.common, others, &mut problems);
    let mut config = Config {
        listeners: exposure.listeners,
        health_listener: exposure.health_listener,
        metrics_listener: exposure.metrics_listener,
        connection_age,
        tls: exposure.tls,
        remote_access: exposure.remote_access,
        config_path: None,
        restart_only: String::new(),
        renamed_keys: Vec::new(),
        policy: parse_policy(file.policy, &file.approvals, &mut problems),
        keys: exposure.key_file.and_then(|path| read_keys(&path, &mut problems)),
        trust_loopback: exposure.trust_loopback,
        state_dir: exposure.state_dir,
        minimum_level: parse_minimum_level(minimum_level.as_deref(), &mut problems),
        chown_workspace: exposure.chown_workspace,
        allow_ptrace: file.sandbox.allow_ptrace.unwrap_or(false),
        recycle_sandboxes: file.sandbox.recycle.unwrap_or(true),
        warm_shells: file.sandbox.warm_shells.unwrap_or(true),
        network: exposure.network,
        egress: exposure.egress,
        fetch: parse_fetch(file.fetch, &mut problems),
        tools: parse_tools(file.tools, &mut problems),
        sandbox_ids: choose_sandbox_ids(
            file.sandbox.uid,
            exposure.workspaces.len() + created_workspaces.as_ref().map_or(0, sandbox_id_count),
            &mut problems,
        ),
        workspaces: exposure.workspaces,
        created_workspaces,
        search_path: args.path.into_iter().chain(file.sandbox.path).collect(),
        telemetry: exposure.telemetry,
        http: parse_http(file.http, &mut problems),
        agent_sandbox_metadata: exposure.agent_sandbox_metadata,
        shutdown_times,
        stop_grace: duration_or_default(
            DEFAULT_STOP_GRACE,
            file.sandbox.stop_grace.as_deref(),
            "sandbox.stop_grace",
            &mut problems,
        ),
        limits: parse_limits(&file.limits, &mut problems),
        artifact_bytes: daemon_limits.artifact_bytes,
        replay_bytes: daemon_limits.replay_bytes,
        process_retention: daemon_limits.process_retention,
        requests: parse_requests(&file.requests, &mut problems),
        jobs: parse_jobs(file.jobs, &mut problems),
        fleet: None,
        sessions: parse_sessions(&file.sessions, &mut problems),
        sync_files: file.files.fsync,
        concurrent_calls: daemon_limits.concurrent_calls,
        concurrent_runs: daemon_limits.concurrent_runs,
        concurrent_processes: daemon_limits.concurrent_processes,
        concurrent_file_operations: daemon_limits.concurrent_file_operations,
        queued_calls: daemon_limits.queued_calls,
        queue_timeout: daemon_limits.queue_timeout,
    };
    check_search_path(&config.search_path, &mut problems);
    config.fleet = file.fleet.map(|table| merge_fleet(table, &config, &mut problems));

    if problems.is_empty() { Ok(config) } else { Err(ConfigError(problems)) }
}

/// Checks the fleet, with the workspaces, keys and queues that it shares.
fn merge_fleet(table: FleetTable, config: &Config, problems: &mut Vec<String>) -> FleetConfig {
    let keys = config.keys.as_ref();
    let keys: Option<Vec<_>> =
        keys.map(|keys| keys.keys.iter().map(|key| (key.name.as_str(), key.role)).collect());
    let context = FleetContext {
        jobs: &config.jobs,
        workspaces: &config.workspace_names(),
        creates_workspaces: config.created_workspaces.is_some(),
        keys: keys.as_deref(),
        allow_plaintext: config.remote_access.allow_plaintext,
    };
    parse_fleet(table, context, problems)
}

/// Merges the settings of [`Exposure`], and checks that they fit together.
fn merge_exposure(args: &mut Args, file: &mut ConfigFile, problems: &mut Vec<String>) -> Exposure {
    let (workspaces, common) = merge_workspaces(args, file, problems);

    let key_file = args.keys.take().or(file.keys.take());
    let has_keys = key_file.is_some();
    let allow_plaintext = args.allow_plaintext || file.allow_plaintext.unwrap_or(false);
    let remote_access = RemoteAccess { has_keys, allow_plaintext };
    let tls = merge_tls(args, file, problems);
    let settings = ListenerSettings {
        flags: &args.listen,
        list: &file.listen,
        tables: mem::take(&mut file.listeners),
        tls: tls.as_ref(),
        has_inherited: !inherited_descriptors().is_empty(),
    };
    let mut listeners = parse_listeners(settings, remote_access, problems);
    let table = file.agent_sandbox.take();
    let table = table.or_else(|| args.agent_sandbox.then(AgentSandboxTable::default));
    let AgentSandboxSettings { listeners: agent_sandbox, metadata: agent_sandbox_metadata } =
        table.map(|table| parse_agent_sandbox(table, remote_access, problems)).unwrap_or_default();
    listeners.extend(agent_sandbox);
    check_tls_files(&listeners, tls.as_ref(), has_keys, problems);
    let health = args.health_listen.take().or(file.health_listen.take());
    let health_listener = parse_open_listener(ListenerProtocol::Health, health, problems);
    let telemetry = parse_telemetry(args, file, problems);
    let metrics = args.metrics_listen.take().or(file.metrics_listen.take());
    let metrics_listener = parse_open_listener(ListenerProtocol::Metrics, metrics, problems);

    let state_dir =
        args.state_dir.take().or(file.state_dir.take()).unwrap_or_else(default_state_dir);
    let tls_files = listeners.iter().filter_map(|listener| listener.tls.as_ref()).chain(&tls);
    let mut files = CredentialFile::all(key_file.as_deref(), args.config.as_deref(), tls_files);
    files.extend(file.fleet.iter().flat_map(CredentialFile::of_fleet));
    let probes = health_listener.iter().map(|address| (address, ListenerProtocol::Health));
    let metrics = metrics_listener.iter().map(|address| (address, ListenerProtocol::Metrics));
    let addresses = addresses_by_setting(&listeners, probes.chain(metrics));
    let audit_log = telemetry.audit.as_ref().map(|audit| audit.path.as_path());
    check_exposure(&workspaces, (&state_dir, audit_log), &addresses, &files, problems);

    let chown_workspace = args.chown_workspace || file.sandbox.chown_workspace.unwrap_or(false);
    if chown_workspace {
        check_chown(&workspaces, problems);
    }

    let mode = args.network.take().or(file.sandbox.network.take());
    let (network, egress) = parse_network(mode.as_deref(), file.proxy.take(), problems);
    let trust_loopback = args.trust_loopback || file.trust_loopback.unwrap_or(false);
    if trust_loopback {
        check_trust_loopback(has_keys, network, &egress, problems);
    }

    Exposure {
        workspaces,
        common,
        state_dir,
        listeners,
        agent_sandbox_metadata,
        health_listener,
        metrics_listener,
        tls,
        remote_access,
        key_file,
        trust_loopback,
        chown_workspace,
        network,
        egress,
        telemetry,
    }
}

/// The addresses of all listeners, with the setting that each is from.
fn addresses_by_setting<'a>(
    listeners: &'a [ListenerConfig],
    others: impl Iterator<Item = (&'a ListenAddr, ListenerProtocol)>,
) -> Vec<(&'a ListenAddr, &'static str)> {
    let listeners = listeners.iter().map(|listener| (&listener.address, listener.protocol));
    listeners.chain(others).map(|(address, protocol)| (address, protocol.setting())).collect()
}

/// Checks the workspaces with the binds, protected paths and timeouts that all of them share.
fn merge_workspaces(
    args: &Args,
    file: &mut ConfigFile,
    problems: &mut Vec<String>,
) -> (Vec<WorkspaceConfig>, CommonSettings) {
    let sandbox = &file.sandbox;
    let binds = [
        parse_binds(&args.bind, "--bind", true, problems),
        parse_binds(&args.bind_ro, "--bind-ro", false, problems),
        parse_binds(&sandbox.bind, "sandbox.bind", true, problems),
        parse_binds(&sandbox.bind_ro, "sandbox.bind_ro", false, problems),
    ];
    let binds = binds.concat();
    let run_timeout = file.limits.run_timeout.as_deref();
    let defaults = WorkspaceDefaults {
        binds: &binds,
        protected: (!args.protect.is_empty()).then_some(&args.protect),
        persistent: parse_persistent_directories(
            [sandbox.home.as_deref(), sandbox.tmp.as_deref()],
            "sandbox.",
            PersistentDirectories::default(),
            problems,
        ),
        run_timeout: parse_timeout(run_timeout, "limits.run_timeout", "120s", problems),
    };
    let tables = mem::take(&mut file.workspaces);
    let workspaces = parse_workspaces(&args.workspace, tables, &defaults, problems);
    let WorkspaceDefaults { run_timeout, persistent, .. } = defaults;
    (workspaces, CommonSettings { binds, run_timeout, persistent })
}

fn read_keys(path: &Path, problems: &mut Vec<String>) -> Option<KeyFile> {
    KeyFile::read(path).map_err(|found| problems.extend(found)).ok()
}

/// Merges the files of TLS for listeners without a table.
fn merge_tls(
    args: &mut Args,
    file: &mut ConfigFile,
    problems: &mut Vec<String>,
) -> Option<TlsFiles> {
    let paths = TlsPaths {
        cert: args.tls_cert.take().or(file.tls_cert.take()),
        key: args.tls_key.take().or(file.tls_key.take()),
        client_ca: args.tls_client_ca.take().or(file.tls_client_ca.take()),
    };
    paths.complete(|part| format!("--tls-{part}"), problems)
}

/// Checks the address for health checks or metrics. It needs neither keys nor TLS: nothing else is
/// served there.
fn parse_open_listener(
    protocol: ListenerProtocol,
    text: Option<String>,
    problems: &mut Vec<String>,
) -> Option<ListenAddr> {
    let address = ListenAddr::parse(protocol.setting(), &text?);
    address.map_err(|problem| problems.push(problem)).ok()
}

/// Reads the files of TLS once, so that a start and `--check` report their problems.
fn check_tls_files(
    listeners: &[ListenerConfig],
    tls: Option<&TlsFiles>,
    has_keys: bool,
    problems: &mut Vec<String>,
) {
    let mut checked: Vec<&TlsFiles> = Vec::new();
    for files in listeners.iter().filter_map(|listener| listener.tls.as_ref()).chain(tls) {
        if checked.contains(&files) {
            continue;
        }
        checked.push(files);
        problems.extend(files.read().err().into_iter().flatten());
        if let Some(client_ca) = files.client_ca.as_deref().filter(|_| !has_keys) {
            problems.push(format!(
                "--tls-client-ca {} needs --keys: entries of the key file say what client certificates may do (`jig key new --certificate`)",
                client_ca.display()
            ));
        }
    }
}

/// Checks that no key file and no command could conflict with `--trust-loopback`.
fn check_trust_loopback(
    has_keys: bool,
    network: NetworkMode,
    egress: &NetworkRules,
    problems: &mut Vec<String>,
) {
    if has_keys {
        problems.push(
            "--trust-loopback accepts callers without a key, and --keys rejects them: remove one of the two".to_owned(),
        );
    }
    if network == NetworkMode::Host || network == NetworkMode::Proxy && egress.reaches_loopback() {
        problems.push(
            "--trust-loopback would accept commands as administrators, because they reach the loopback interface (--network host, or proxy.allow_addresses with loopback addresses): use --keys, or a Unix socket (--listen unix:/path)".to_owned(),
        );
    }
}

fn parse_minimum_level(text: Option<&str>, problems: &mut Vec<String>) -> IsolationLevel {
    parse_or_default(text, IsolationLevel::L3, problems, |text| match text.parse() {
        Ok(IsolationLevel::L0) => Err(format!(
            "--minimum-level {text} would run commands without isolation, which jigd never does"
        )),
        Ok(level) => Ok(level),
        Err(()) => Err(format!("--minimum-level {text}: give L3, L2 or L1")),
    })
}

fn check_search_path(search_path: &[String], problems: &mut Vec<String>) {
    for directory in search_path {
        if !directory.starts_with('/') || directory.contains(':') {
            problems.push(format!("--path {directory}: give absolute paths without colons"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::merge;
    use crate::daemon::config::{args::Args, file::ConfigFile};

    #[test]
    fn every_problem_is_reported() {
        let strings =
            |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let args = Args {
            listen: strings(&["0.0.0.0:1", "nonsense"]),
            workspace: strings(&["/", "/nowhere"]),
            minimum_level: Some("L0".to_owned()),
            network: Some("bridge".to_owned()),
            bind: strings(&["/proc", "/usr:/tmp/x"]),
            drain_timeout: Some("soon".to_owned()),
            log: Some("xml".to_owned()),
            ..Args::default()
        };

        let problems = merge(args, ConfigFile::default()).unwrap_err().0;
        for part in [
            "0.0.0.0:1",
            "nonsense",
            "--workspace /:",
            "/nowhere",
            "L0",
            "bridge",
            "/proc",
            "/tmp/x",
            "soon",
            "xml",
        ] {
            assert!(
                problems.iter().any(|problem| problem.contains(part)),
                "{part} in {problems:#?}"
            );
        }
    }

    #[test]
    fn a_workspace_cannot_contain_the_state_or_a_socket() {
        let directory = tempfile::tempdir().unwrap();
        let inside = |name: &str| directory.path().join(name);
        let workspace = vec![directory.path().display().to_string()];
        let args = Args {
            workspace: workspace.clone(),
            state_dir: Some(inside("state")),
            ..Args::default()
        };
        assert!(
            merge(args, ConfigFile::default()).unwrap_err().to_string().contains("--state-dir")
        );

        let args = Args {
            workspace,
            state_dir: Some("/nowhere/state".into()),
            listen: vec![format!("unix:{}", inside("sock").display())],
            ..Args::default()
        };
        assert!(merge(args, ConfigFile::default()).unwrap_err().to_string().contains("--listen"));
    }
}
