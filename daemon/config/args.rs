//! Flags and their environment variables, as they were written. An empty variable counts as not set.
//! A variable for a flag that can be given several times holds one value, but for `JIG_LISTEN`
//! (separated by commas) and `JIG_PATH` (by colons).

use std::path::PathBuf;

use clap::Parser;

/// Serves sandboxed tool calls on a workspace to remote agents, over gRPC.
#[derive(Debug, Clone, Default, Parser)]
#[command(
    version,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 ended as asked, 64 wrong flags, 78 configuration or sandbox, 1 anything else."
)]
pub(crate) struct Args {
    /// Where to listen: 127.0.0.1:50051 (the default), `[::1]:50051`, unix:/path. Port 0 picks a
    /// free one. Can be given several times
    #[arg(long, value_name = "ADDR", env = "JIG_LISTEN", value_delimiter = ',')]
    pub(crate) listen: Vec<String>,

    /// A workspace to serve; the first one is the default of calls that name none. Without any, the
    /// current directory. Can be given several times
    #[arg(long, value_name = "[NAME=]PATH", env = "JIG_WORKSPACE")]
    pub(crate) workspace: Vec<String>,

    /// File of keys that callers must show, made by `jig key new`. Without it, only the daemon's own
    /// user and root may call
    #[arg(long, value_name = "FILE", env = "JIG_KEYS")]
    pub(crate) keys: Option<PathBuf>,

    /// Let everybody call who reaches the loopback interface, whatever user: for pods whose
    /// containers share it. Not beside --keys, nor where commands reach that interface
    /// (--network host)
    #[arg(long, env = "JIG_TRUST_LOOPBACK", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) trust_loopback: bool,

    /// Directory for the daemon's state. Default: $XDG_STATE_HOME/jig, else ~/.local/state/jig, for
    /// root /var/lib/jig
    #[arg(long, value_name = "DIR", env = "JIG_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "JIG_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// Isolation below which no command is run: L3 (the default), L2 or L1. The daemon gives the
    /// highest that this host allows, and says why it is not higher
    #[arg(long, value_name = "LEVEL", env = "JIG_MINIMUM_LEVEL")]
    pub(crate) minimum_level: Option<String>,

    /// Give what belongs to root in the workspaces to the user that commands run as (chown, at each
    /// start). For a root daemon that cannot map owners, as in most containers. Left as they are:
    /// files of other users, files with several names, devices, and what is mounted inside
    #[arg(long, env = "JIG_CHOWN_WORKSPACE", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) chown_workspace: bool,

    /// Network of commands: none (the default), host (the daemon's own), or proxy (HTTP and HTTPS to
    /// the hosts that proxy.allow_hosts of the file lists)
    #[arg(long, value_name = "MODE", env = "JIG_NETWORK")]
    pub(crate) network: Option<String>,

    /// What neither file tools nor commands may change in workspaces: a path, @git (what makes git run
    /// programs), @agent-configs (what editors and agents take commands from), or none. Default:
    /// @git where the workspace is a repository. Can be given several times
    #[arg(long, value_name = "WHAT", env = "JIG_PROTECT")]
    pub(crate) protect: Vec<String>,

    /// A directory or file that commands see, read-only, at the same path or at DEST. Can be given
    /// several times
    #[arg(long, value_name = "PATH[:DEST]", env = "JIG_BIND_RO")]
    pub(crate) bind_ro: Vec<String>,

    /// A directory or file that commands see and may change. Can be given several times
    #[arg(long, value_name = "PATH[:DEST]", env = "JIG_BIND")]
    pub(crate) bind: Vec<String>,

    /// A directory, as commands see it, in which programs are looked up before the usual ones. Can
    /// be given several times
    #[arg(long, value_name = "DIR", env = "JIG_PATH", value_delimiter = ':')]
    pub(crate) path: Vec<String>,

    /// How to write logs: text or json. Default: text on a terminal
    #[arg(long, value_name = "FORMAT", env = "JIG_LOG")]
    pub(crate) log: Option<String>,

    /// Most detailed level of logs: error, warn, info (the default), debug, trace
    #[arg(long, value_name = "LEVEL", env = "JIG_LOG_LEVEL")]
    pub(crate) log_level: Option<String>,

    /// Write a line for each call, at the level info: its method, tool, caller, session, status and
    /// duration. Health checks and reflection have none
    #[arg(long, env = "JIG_LOG_CALLS", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) log_calls: bool,

    /// How long running calls may go on when the daemon is told to end: 25s (the default), 500ms,
    /// 2m
    #[arg(long, value_name = "TIME", env = "JIG_DRAIN_TIMEOUT")]
    pub(crate) drain_timeout: Option<String>,

    /// Check the configuration, build a sandbox and run the probe in it, say what was found, and
    /// exit
    #[arg(long)]
    pub(crate) check: bool,
}

impl Args {
    /// Drops what is empty.
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
            &mut self.drain_timeout,
        ] {
            value.take_if(|value| value.is_empty());
        }
        for path in [&mut self.keys, &mut self.state_dir, &mut self.config] {
            path.take_if(|path| path.as_os_str().is_empty());
        }
        self
    }
}
