//! Flags of `jigd` and their environment variables, before their values are checked.
//!
//! An empty variable counts as unset. A variable holds one value, even where the flag is
//! repeatable. Two variables are lists: `JIG_LISTEN` is separated by commas, and `JIG_PATH` by
//! colons.

use std::path::PathBuf;

use clap::Parser;

/// Serves sandboxed tool calls on a workspace to AI agents over gRPC.
#[derive(Debug, Clone, Default, Parser)]
#[command(
    version = env!("JIG_VERSION"),
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 success, 64 wrong flags, 78 wrong configuration or no sandbox, 1 other failures."
)]
pub(crate) struct Args {
    /// Address to listen on: 127.0.0.1:50051 (default), `[::1]:50051` or unix:/path. Port 0 picks a
    /// free port. Repeatable
    #[arg(long, value_name = "ADDR", env = "JIG_LISTEN", value_delimiter = ',')]
    pub(crate) listen: Vec<String>,

    /// Address for health checks alone, in plaintext and without keys: gRPC health, /healthz and
    /// /readyz. Other machines may reach it
    #[arg(long, value_name = "ADDR", env = "JIG_HEALTH_LISTEN")]
    pub(crate) health_listen: Option<String>,

    /// Address for metrics alone, in plaintext and without keys: GET /metrics in the text format of
    /// Prometheus. Other machines may reach it
    #[arg(long, value_name = "ADDR", env = "JIG_METRICS_LISTEN")]
    pub(crate) metrics_listen: Option<String>,

    /// PEM file with the certificate of the TCP listeners, followed by its intermediates. They then
    /// speak TLS 1.2 and 1.3. The daemon reads the files of TLS again when they change
    #[arg(long, value_name = "FILE", env = "JIG_TLS_CERT")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// PEM file with the private key of --tls-cert. Other users must have no access to it
    #[arg(long, value_name = "FILE", env = "JIG_TLS_KEY")]
    pub(crate) tls_key: Option<PathBuf>,

    /// PEM file with the CA certificates of clients. Entries of the key file can then name client
    /// certificates
    #[arg(long, value_name = "FILE", env = "JIG_TLS_CLIENT_CA")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// Allow addresses without TLS that other machines can reach, for connections that a proxy or a
    /// private network protects
    #[arg(long, env = "JIG_ALLOW_PLAINTEXT", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) allow_plaintext: bool,

    /// Serve the API of the Kubernetes agent-sandbox runtime too: gRPC on 127.0.0.1:9090 and REST on
    /// 127.0.0.1:8080, or on the addresses of `[agent_sandbox]` in the file
    #[arg(long, env = "JIG_AGENT_SANDBOX", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) agent_sandbox: bool,

    /// Directory to serve. The first one is the default workspace of calls. Default: the current
    /// directory. Repeatable
    #[arg(long, value_name = "[NAME=]PATH", env = "JIG_WORKSPACE")]
    pub(crate) workspace: Vec<String>,

    /// File of API keys, created by `jig key new`. Callers must send one of them. Without a key
    /// file, only the daemon's own user and root may call
    #[arg(long, value_name = "FILE", env = "JIG_KEYS")]
    pub(crate) keys: Option<PathBuf>,

    /// Accept every caller on the loopback interface as an administrator, for pods whose containers
    /// share it. Excludes --keys, and networks in which commands reach that interface
    /// (--network host)
    #[arg(long, env = "JIG_TRUST_LOOPBACK", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) trust_loopback: bool,

    /// State directory: sessions, artifacts and the database. Default: $XDG_STATE_HOME/jig,
    /// otherwise ~/.local/state/jig, for root /var/lib/jig
    #[arg(long, value_name = "DIR", env = "JIG_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "JIG_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// Minimum isolation level of commands: L3 (default), L2 or L1. The daemon uses the highest
    /// level that this host allows and reports why higher ones failed
    #[arg(long, value_name = "LEVEL", env = "JIG_MINIMUM_LEVEL")]
    pub(crate) minimum_level: Option<String>,

    /// Give files of root in the workspaces to the user that commands run as (chown, at each
    /// start). For a root daemon that cannot map owners, as in most containers. Skips files of
    /// other users, files with several hard links, devices and mounts inside
    #[arg(long, env = "JIG_CHOWN_WORKSPACE", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) chown_workspace: bool,

    /// Network of commands: none (default), host (the daemon's own), or proxy (HTTP and HTTPS to
    /// the hosts in proxy.allow_hosts of the file)
    #[arg(long, value_name = "MODE", env = "JIG_NETWORK")]
    pub(crate) network: Option<String>,

    /// Protected path that neither file tools nor commands can change: a path, @git (files that
    /// make git run programs), @agent-configs (configurations of editors and agents), or none.
    /// Default: @git in a repository. Repeatable
    #[arg(long, value_name = "WHAT", env = "JIG_PROTECT")]
    pub(crate) protect: Vec<String>,

    /// Directory or file that commands see read-only, at the same path or at DEST. Repeatable
    #[arg(long, value_name = "PATH[:DEST]", env = "JIG_BIND_RO")]
    pub(crate) bind_ro: Vec<String>,

    /// Directory or file that commands can change. Repeatable
    #[arg(long, value_name = "PATH[:DEST]", env = "JIG_BIND")]
    pub(crate) bind: Vec<String>,

    /// Directory, as commands see it, before the others in their PATH. Repeatable
    #[arg(long, value_name = "DIR", env = "JIG_PATH", value_delimiter = ':')]
    pub(crate) path: Vec<String>,

    /// Log format: text or json. Default: text on a terminal, otherwise json
    #[arg(long, value_name = "FORMAT", env = "JIG_LOG")]
    pub(crate) log: Option<String>,

    /// Most detailed log level: error, warn, info (default), debug or trace
    #[arg(long, value_name = "LEVEL", env = "JIG_LOG_LEVEL")]
    pub(crate) log_level: Option<String>,

    /// Write one log line per call at level info: method, tool, caller, session, status and
    /// duration. Health checks and reflection write none
    #[arg(long, env = "JIG_LOG_CALLS", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) log_calls: bool,

    /// File of the audit log: one JSON line for each call and each decision. `[audit]` in the file
    /// has its size and rotation
    #[arg(long, value_name = "FILE", env = "JIG_AUDIT_LOG")]
    pub(crate) audit_log: Option<PathBuf>,

    /// Trace context of callers: parent (default) continues their traces, link starts new traces
    /// with a link to the caller's span, ignore starts new traces
    #[arg(long, value_name = "MODE", env = "JIG_TRUST_REMOTE_CONTEXT")]
    pub(crate) trust_remote_context: Option<String>,

    /// Content of calls in spans, for debugging: off (default), truncated (4 KiB for each
    /// attribute) or full (64 KiB). Commands and their output can contain secrets
    #[arg(long, value_name = "MODE", env = "JIG_CAPTURE_CONTENT")]
    pub(crate) capture_content: Option<String>,

    /// Age at which a connection gets no new calls, give or take 10 %: its client connects again.
    /// 0 (default) sets no limit
    #[arg(long, value_name = "TIME", env = "JIG_MAX_CONNECTION_AGE")]
    pub(crate) max_connection_age: Option<String>,

    /// Time that the calls of a connection have after its maximum age. 0 (default) lets them end by
    /// themselves
    #[arg(long, value_name = "TIME", env = "JIG_MAX_CONNECTION_AGE_GRACE")]
    pub(crate) max_connection_age_grace: Option<String>,

    /// Time after SIGTERM in which the daemon reports that it is not ready and still takes calls.
    /// Load balancers need it to stop sending new ones. Default: 0s
    #[arg(long, value_name = "TIME", env = "JIG_SHUTDOWN_DELAY")]
    pub(crate) shutdown_delay: Option<String>,

    /// Time that running calls have after SIGTERM, such as 500ms or 2m. Default: 25s
    #[arg(long, value_name = "TIME", env = "JIG_DRAIN_TIMEOUT")]
    pub(crate) drain_timeout: Option<String>,

    /// Check the configuration, run a probe in a sandbox of each workspace, print a report and exit
    #[arg(long)]
    pub(crate) check: bool,
}

impl Args {
    /// Removes empty values: an empty environment variable counts as unset.
    pub(super) fn without_empty(mut self) -> Self {
        for list in [
            &mut self.listen,
            &mut self.workspace,
            &mut self.protect,
            &mut self.bind_ro,
            &mut self.bind,
            &mut self.path,
        ] {
            list.retain(|value| !value.is_empty());
        }
        for value in [
            &mut self.minimum_level,
            &mut self.network,
            &mut self.log,
            &mut self.log_level,
            &mut self.health_listen,
            &mut self.metrics_listen,
            &mut self.trust_remote_context,
            &mut self.capture_content,
            &mut self.max_connection_age,
            &mut self.max_connection_age_grace,
            &mut self.shutdown_delay,
            &mut self.drain_timeout,
        ] {
            value.take_if(|value| value.is_empty());
        }
        for path in [
            &mut self.tls_cert,
            &mut self.tls_key,
            &mut self.tls_client_ca,
            &mut self.keys,
            &mut self.audit_log,
            &mut self.state_dir,
            &mut self.config,
        ] {
            path.take_if(|path| path.as_os_str().is_empty());
        }
        self
    }
}
