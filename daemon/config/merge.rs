//! Putting flags and file together, and finding everything that is wrong with them.

use super::{
    Config, ConfigError, DEFAULT_ARTIFACT_BYTES, DEFAULT_CONCURRENT_CALLS,
    DEFAULT_CONCURRENT_FILE_OPERATIONS, DEFAULT_CONCURRENT_PROCESSES, DEFAULT_CONCURRENT_RUNS,
    DEFAULT_DRAIN_TIMEOUT, DEFAULT_LISTEN_ADDR, DEFAULT_PROCESS_RETENTION, DEFAULT_QUEUE_WAIT,
    DEFAULT_QUEUED_CALLS, DEFAULT_REPLAY_BYTES, DEFAULT_STOP_GRACE,
    args::Args,
    default_state_dir,
    duration::duration_or_default,
    exposure::{check_chown, check_exposure, parse_binds},
    fetch::parse_fetch,
    file::{self, ConfigFile},
    jobs::parse_jobs,
    keys::KeyFile,
    limits::{parse_limits, parse_timeout},
    listen::ListenAddr,
    network::parse_network,
    policy::parse_policy,
    requests::parse_requests,
    sandbox_ids::choose_sandbox_ids,
    sessions::parse_sessions,
    tools::parse_tools,
    workspaces::parse_workspaces,
};
use crate::daemon::{
    netpolicy::rules::NetworkRules,
    sandbox::{level::IsolationLevel, plan::NetworkMode},
    telemetry::logs::LogFormat,
};

/// Bytes that can be kept of what a started command wrote: at least what it may write at once, twice.
const REPLAY_BYTES_RANGE: std::ops::RangeInclusive<usize> = 128 * 1024..=256 << 20;

impl Config {
    /// Reads the file that `args` names, if any, and puts both together.
    pub(crate) fn load(args: Args) -> Result<Self, ConfigError> {
        let args = args.without_empty();
        let path = args.config.clone();
        let read = path.as_deref().map(file::read_file).transpose();
        let (file, fixed) = read.map_err(|problem| ConfigError(vec![problem]))?.unwrap_or_default();
        let config = merge(args, file)?;
        Ok(Self { config_path: path, restart_only: fixed, ..config })
    }
}

/// Puts `args` and `file` together.
fn merge(args: Args, file: ConfigFile) -> Result<Config, ConfigError> {
    let mut problems = Vec::new();
    let key_file = args.keys.or(file.keys);
    let has_keys = key_file.is_some();
    let trust_loopback = args.trust_loopback || file.trust_loopback.unwrap_or(false);
    let keys = key_file
        .as_deref()
        .and_then(|path| KeyFile::read(path).map_err(|found| problems.extend(found)).ok());
    let listen = parse_listen(&args.listen, &file.listen, has_keys, &mut problems);
    let state_dir = args.state_dir.or(file.state_dir).unwrap_or_else(default_state_dir);
    let common = [
        parse_binds(&args.bind, "--bind", true, &mut problems),
        parse_binds(&args.bind_ro, "--bind-ro", false, &mut problems),
        parse_binds(&file.sandbox.bind, "sandbox.bind", true, &mut problems),
        parse_binds(&file.sandbox.bind_ro, "sandbox.bind_ro", false, &mut problems),
    ]
    .concat();
    let run_timeout = file.limits.run_timeout.as_deref();
    let run_timeout = parse_timeout(run_timeout, "limits.run_timeout", "120s", &mut problems);
    let workspaces = parse_workspaces(
        &args.workspace,
        file.workspaces,
        &common,
        file.sandbox.home.as_deref(),
        &args.protect,
        run_timeout,
        &mut problems,
    );
    let files = [(key_file.as_deref(), "--keys"), (args.config.as_deref(), "--config")];
    check_exposure(&workspaces, &state_dir, &listen, files, &mut problems);

    let minimum_level = args.minimum_level.or(file.sandbox.minimum_level);
    let minimum_level = parse_or_default(
        minimum_level.as_deref(),
        IsolationLevel::L3,
        &mut problems,
        |text| match text.parse() {
            Ok(IsolationLevel::L0) => Err(format!(
                "--minimum-level {text} would run commands without isolation, which jigd never does"
            )),
            Ok(level) => Ok(level),
            Err(()) => Err(format!("--minimum-level {text}: give L3, L2 or L1")),
        },
    );
    let chown_workspace = args.chown_workspace || file.sandbox.chown_workspace.unwrap_or(false);
    if chown_workspace {
        check_chown(&workspaces, &mut problems);
    }
    let mode = args.network.or(file.sandbox.network);
    let (network, egress) = parse_network(mode.as_deref(), file.proxy, &mut problems);
    let fetch = parse_fetch(file.fetch, &mut problems);
    let tools = parse_tools(file.tools, &mut problems);
    if trust_loopback {
        check_trust_loopback(has_keys, network, &egress, &mut problems);
    }
    let log = parse_or_default(
        args.log.or(file.log).as_deref(),
        LogFormat::for_stderr(),
        &mut problems,
        |text| match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(format!("--log {text}: give text or json")),
        },
    );
    let log_level = parse_or_default(
        args.log_level.or(file.log_level).as_deref(),
        tracing::Level::INFO,
        &mut problems,
        |text| {
            text.parse()
                .map_err(|_| format!("--log-level {text}: give error, warn, info, debug or trace"))
        },
    );
    let drain_timeout = duration_or_default(
        DEFAULT_DRAIN_TIMEOUT,
        args.drain_timeout.or(file.drain_timeout).as_deref(),
        "--drain-timeout",
        &mut problems,
    );
    let grace = duration_or_default(
        DEFAULT_STOP_GRACE,
        file.sandbox.grace.as_deref(),
        "sandbox.grace",
        &mut problems,
    );
    let path: Vec<String> = args.path.into_iter().chain(file.sandbox.path).collect();
    for directory in
        path.iter().filter(|directory| !directory.starts_with('/') || directory.contains(':'))
    {
        problems.push(format!("--path {directory}: give absolute paths without colons"));
    }
    let policy = parse_policy(file.policy, &file.approvals, &mut problems);
    let limits = parse_limits(&file.limits, &mut problems);
    let requests = parse_requests(&file.requests, &mut problems);
    let jobs = parse_jobs(file.jobs, &mut problems);
    let sessions = parse_sessions(&file.sessions, &mut problems);
    let replay_bytes = file.limits.replay_bytes.unwrap_or(DEFAULT_REPLAY_BYTES);
    if !REPLAY_BYTES_RANGE.contains(&replay_bytes) {
        problems.push(format!(
            "limits.replay_bytes {replay_bytes}: give {} to {} bytes",
            REPLAY_BYTES_RANGE.start(),
            REPLAY_BYTES_RANGE.end()
        ));
    }
    let process_retention = duration_or_default(
        DEFAULT_PROCESS_RETENTION,
        file.limits.process_retention.as_deref(),
        "limits.process_retention",
        &mut problems,
    );
    let concurrent_calls = parse_count(
        file.limits.concurrent_calls,
        DEFAULT_CONCURRENT_CALLS,
        "concurrent_calls",
        &mut problems,
    );
    let concurrent_runs = parse_count(
        file.limits.concurrent_runs,
        DEFAULT_CONCURRENT_RUNS,
        "concurrent_runs",
        &mut problems,
    );
    let concurrent_processes = parse_count(
        file.limits.concurrent_processes,
        DEFAULT_CONCURRENT_PROCESSES,
        "concurrent_processes",
        &mut problems,
    );
    let concurrent_file_operations = parse_count(
        file.limits.concurrent_file_operations,
        DEFAULT_CONCURRENT_FILE_OPERATIONS,
        "concurrent_file_operations",
        &mut problems,
    );
    let queued_calls =
        parse_count(file.limits.queued_calls, DEFAULT_QUEUED_CALLS, "queued_calls", &mut problems);
    let queue_wait = duration_or_default(
        DEFAULT_QUEUE_WAIT,
        file.limits.queue_wait.as_deref(),
        "limits.queue_wait",
        &mut problems,
    );
    let sandbox_ids = choose_sandbox_ids(file.sandbox.uid, workspaces.len(), &mut problems);
    if !problems.is_empty() {
        return Err(ConfigError(problems));
    }
    Ok(Config {
        listen,
        config_path: None,
        restart_only: String::new(),
        policy,
        keys,
        trust_loopback,
        workspaces,
        state_dir,
        minimum_level,
        chown_workspace,
        allow_ptrace: file.sandbox.allow_ptrace.unwrap_or(false),
        network,
        egress,
        fetch,
        tools,
        sandbox_ids,
        search_path: path,
        log_format: log,
        log_level,
        log_calls: args.log_calls || file.log_calls.unwrap_or(false),
        drain_timeout,
        stop_grace: grace,
        limits,
        artifact_bytes: file.limits.artifact_bytes.unwrap_or(DEFAULT_ARTIFACT_BYTES),
        replay_bytes,
        process_retention,
        requests,
        jobs,
        sessions,
        sync_files: file.files.fsync,
        concurrent_calls,
        concurrent_runs,
        concurrent_processes,
        concurrent_file_operations,
        queued_calls,
        queue_wait,
    })
}

fn parse_listen(
    flags: &[String],
    file: &[String],
    has_keys: bool,
    problems: &mut Vec<String>,
) -> Vec<ListenAddr> {
    let default = [DEFAULT_LISTEN_ADDR.to_owned()];
    let texts = match (flags, file) {
        ([], []) => default.as_slice(),
        ([], file) => file,
        (flags, _) => flags,
    };
    let addresses = texts.iter().filter_map(|text| {
        ListenAddr::parse(text)
            .and_then(|address| match address.is_local() || has_keys {
                true => Ok(address),
                false => Err(format!(
                    "--listen {text} can be reached from other machines, and there are no keys to tell callers apart: name a key file with --keys (`jig key new` makes one), or give a loopback address or --listen unix:/path"
                )),
            })
            .map_err(|problem| problems.push(problem))
            .ok()
    });
    addresses.collect()
}

/// Whether everybody who reaches the loopback interface can be let in, as an administrator.
fn check_trust_loopback(
    has_keys: bool,
    network: NetworkMode,
    egress: &NetworkRules,
    problems: &mut Vec<String>,
) {
    if has_keys {
        problems.push(
            "--trust-loopback lets in who shows no key, and --keys nobody without one: leave one of them out".to_owned(),
        );
    }
    if network == NetworkMode::Host || network == NetworkMode::Proxy && egress.reaches_loopback() {
        problems.push(
            "--trust-loopback would let commands in, which reach the loopback interface (--network host, or proxy.allow_addresses that hold it), as administrators: use --keys, or a Unix socket (--listen unix:/path)".to_owned(),
        );
    }
}

fn parse_count(
    written: Option<usize>,
    default: usize,
    key: &str,
    problems: &mut Vec<String>,
) -> usize {
    let count = written.unwrap_or(default);
    if !(1..=1 << 20).contains(&count) {
        problems.push(format!("limits.{key} must be from 1 to 1048576"));
    }
    count
}

fn parse_or_default<T>(
    text: Option<&str>,
    default: T,
    problems: &mut Vec<String>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> T {
    match text.map(parse) {
        None => default,
        Some(Ok(value)) => value,
        Some(Err(problem)) => {
            problems.push(problem);
            default
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
    fn state_and_sockets_cannot_lie_in_a_workspace() {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name);
        let workspace = vec![folder.path().display().to_string()];
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
