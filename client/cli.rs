//! Command-line definition, and the report of usage errors.

use std::{ffi::OsString, process::ExitCode};

use clap::{
    ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
    error::ErrorKind,
};

use crate::{
    bench::BenchArgs,
    cli_error::CliError,
    command::{self, exec::ExecArgs, run::RunArgs},
    escape, exit,
    global::GlobalArgs,
    output,
};

/// Runs sandboxed tool calls through a jig daemon, or serves them.
///
/// Without --address, jig uses a daemon that you or root run at $XDG_RUNTIME_DIR/jig.sock or
/// 127.0.0.1:50051. `run`, `exec`, `call`, `tools`, `info` and the file commands use it only if it
/// serves the current directory, or with --workspace. Otherwise they start a daemon for this one
/// call, with the current directory as its workspace. Standard error names the daemon in use.
#[derive(Debug, Parser)]
#[command(name = "jig", version = env!("JIG_VERSION"), propagate_version = false)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    Run(RunArgs),
    Exec(ExecArgs),
    Attach(command::exec::AttachArgs),
    Ps(command::processes::PsArgs),
    Kill(command::processes::KillArgs),
    Forward(command::forward::ForwardArgs),
    Read(command::read::ReadArgs),
    #[command(visible_alias = "list")]
    Ls(command::ls::LsArgs),
    Cp(command::cp::CpArgs),
    Write(command::write::WriteArgs),
    Edit(command::edit::EditArgs),
    Patch(command::patch::PatchArgs),
    Search(command::search::SearchArgs),
    Stat(command::stat::StatArgs),
    Mkdir(command::path_changes::MkdirArgs),
    Mv(command::path_changes::MvArgs),
    Rm(command::path_changes::RmArgs),
    Watch(command::watch::FileWatchArgs),
    #[command(alias = "nb")]
    Notebook(command::notebook::NotebookArgs),
    /// Show the daemon's version, isolation level, limits and current load.
    Info,
    Health(command::health::HealthArgs),
    Events(command::events::EventsArgs),
    Sessions(command::events::SessionsArgs),
    #[command(alias = "last")]
    LastCommand(command::last_command::LastCommandArgs),
    Artifacts(command::last_command::ArtifactsArgs),
    Artifact(command::artifact::ArtifactArgs),
    Tools(command::tools::ToolsArgs),
    Call(command::call::CallArgs),
    Batch(command::batch::BatchArgs),
    Job(command::job::JobArgs),
    Mcp(command::mcp::McpArgs),
    Approvals(command::approvals::ApprovalsArgs),
    Rules(command::rules::RulesArgs),
    Workspace(command::workspace::WorkspaceArgs),
    Key(command::key::KeyArgs),
    /// Start a daemon for the current directory. See `jig serve --help` for its flags.
    #[command(disable_help_flag = true)]
    Serve(ServeArgs),
    Bench(BenchArgs),
    Explain(command::explain::ExplainArgs),
    Completions(command::shell::CompletionsArgs),
    Man(command::shell::ManArgs),
}

/// Groups of commands in `jig --help`.
const COMMAND_GROUPS: [(&str, &[&str]); 4] = [
    (
        "Run",
        &[
            "run",
            "exec",
            "attach",
            "ps",
            "kill",
            "forward",
            "last-command",
            "artifacts",
            "artifact",
        ],
    ),
    (
        "Files",
        &[
            "read", "write", "edit", "patch", "search", "ls", "stat", "mkdir", "mv", "rm",
            "notebook", "cp", "watch",
        ],
    ),
    ("Tools for models", &["tools", "call", "batch", "job", "mcp"]),
    (
        "Operate",
        &[
            "serve",
            "info",
            "health",
            "approvals",
            "rules",
            "workspace",
            "key",
            "sessions",
            "events",
            "explain",
            "bench",
            "completions",
            "man",
        ],
    ),
];

/// Builds the command-line definition. Its help lists the commands in groups.
pub(crate) fn cli_command() -> clap::Command {
    let command = Cli::command();
    let about = |name: &str| {
        let about = command.find_subcommand(name).and_then(clap::Command::get_about);
        about.map(ToString::to_string).unwrap_or_default()
    };

    let groups = COMMAND_GROUPS.iter().map(|(title, names)| {
        let lines = names.iter().map(|name| format!("  {name:<13} {}\n", about(name)));
        format!("{title}:\n{}\n", lines.collect::<String>())
    });
    let groups: String = groups.collect();

    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    ))
}

/// Which daemon a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DaemonRequirement {
    /// A running daemon with the state that the command asks for.
    Running,
    /// A running daemon that serves the current directory, because the command works in it and goes
    /// on when `jig` has ended.
    RunningHere,
    /// Any daemon. Without a running one, jig starts one for this call in the current directory.
    Any,
    /// No daemon, or one that the command starts itself.
    NoDaemon,
}

impl CliCommand {
    /// Returns whether the command runs a program in a sandbox.
    pub(crate) fn runs_command(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Exec(_) | Self::Mcp(_))
    }

    /// Returns which daemon the command needs.
    pub(crate) fn daemon_requirement(&self) -> DaemonRequirement {
        match self {
            Self::Attach(_)
            | Self::Ps(_)
            | Self::Kill(_)
            | Self::Forward(_)
            | Self::Health(_)
            | Self::Events(_)
            | Self::Sessions(_)
            | Self::LastCommand(_)
            | Self::Artifacts(_)
            | Self::Artifact(_)
            | Self::Approvals(_)
            | Self::Rules(_)
            | Self::Workspace(_) => DaemonRequirement::Running,
            Self::Job(args) if !args.submits_job() => DaemonRequirement::Running,
            Self::Job(_) | Self::Batch(_) => DaemonRequirement::RunningHere,
            Self::Exec(args) if args.needs_daemon() => DaemonRequirement::RunningHere,
            Self::Run(_)
            | Self::Exec(_)
            | Self::Read(_)
            | Self::Ls(_)
            | Self::Cp(_)
            | Self::Write(_)
            | Self::Edit(_)
            | Self::Patch(_)
            | Self::Search(_)
            | Self::Stat(_)
            | Self::Mkdir(_)
            | Self::Mv(_)
            | Self::Rm(_)
            | Self::Watch(_)
            | Self::Notebook(_)
            | Self::Info
            | Self::Tools(_)
            | Self::Mcp(_)
            | Self::Call(_) => DaemonRequirement::Any,
            Self::Key(_)
            | Self::Serve(_)
            | Self::Bench(_)
            | Self::Explain(_)
            | Self::Completions(_)
            | Self::Man(_) => DaemonRequirement::NoDaemon,
        }
    }
}

/// Arguments of `jig serve`, which `main` handles before parsing. Declared for `jig help` only.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Arguments of the daemon.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Arguments that cannot be parsed, or a request for help or the version.
#[derive(Debug)]
pub(crate) struct UsageError {
    error: clap::Error,
    subcommand: Option<String>,
    as_json: bool,
}

impl Cli {
    /// Parses the arguments of the process, including its name.
    pub(crate) fn parse_from(words: &[OsString]) -> Result<Self, UsageError> {
        let mut arguments =
            Self::try_parse_from(words).map_err(|error| UsageError::new(error, words))?;

        if let CliCommand::Run(RunArgs { command_line, .. })
        | CliCommand::Exec(ExecArgs { command_line, .. }) = &mut arguments.command
        {
            command_line.set_is_argv(words);
        }

        if let CliCommand::Run(args) = &arguments.command
            && args.command_line.is_empty()
        {
            let text = "no command given: try `jig run 'make test'`";
            let error = cli_command().error(ErrorKind::MissingRequiredArgument, text);
            return Err(UsageError::new(error, words));
        }

        Ok(arguments)
    }

    fn try_parse_from(words: &[OsString]) -> Result<Self, clap::Error> {
        let matches = cli_command().try_get_matches_from(words)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut cli_command()))
    }
}

impl UsageError {
    /// Determines the subcommand and --json, although the arguments cannot be parsed.
    fn new(error: clap::Error, words: &[OsString]) -> Self {
        let matches = cli_command().ignore_errors(true).try_get_matches_from(words).ok();
        let subcommand = matches.as_ref().and_then(ArgMatches::subcommand_name);
        // `json` has no value, not even its default, if an environment variable is invalid.
        let is_set =
            |matches: &ArgMatches| matches!(matches.try_get_one::<bool>("json"), Ok(Some(true)));

        // clap ignores the arguments after the one that it rejects.
        let is_in_words = || {
            let mut flags = words.iter().take_while(|word| *word != "--");
            // The words of a command line can be anything.
            !matches!(subcommand, Some("run" | "exec")) && flags.any(|word| word == "--json")
        };

        Self {
            as_json: matches.as_ref().is_some_and(is_set) || is_in_words(),
            subcommand: subcommand.map(str::to_owned),
            error,
        }
    }

    /// Prints the error. Returns the exit code of the subcommand's usage errors, which must differ
    /// from the exit codes of the commands that it runs.
    pub(crate) fn report(self) -> ExitCode {
        if !self.error.use_stderr() {
            // Ignores the error: if the terminal has gone, nothing can report it.
            self.error.print().ok();
            return ExitCode::SUCCESS;
        }

        let text = self.error.render().to_string();
        if self.as_json {
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
            CliError::Usage(text.to_owned()).report(true);
        } else {
            // Without colours, because it repeats arguments that may come from others.
            output::write_stderr(escape::text(&text).as_bytes());
        }
        ExitCode::from(self.exit_code())
    }

    fn exit_code(&self) -> u8 {
        if !self.error.use_stderr() {
            return exit::SUCCESS;
        }
        match self.subcommand.as_deref() {
            Some("run" | "exec" | "attach" | "call") => exit::RUN_FAILED,
            Some("search") => exit::SEARCH_FAILED,
            Some("health") => exit::HEALTH_USAGE,
            _ => exit::USAGE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[&str]) -> Result<Cli, UsageError> {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        Cli::parse_from(&words)
    }

    #[test]
    fn definition_is_valid() {
        cli_command().debug_assert();
    }

    #[test]
    fn help_lists_each_command_once() {
        let all = Cli::command();
        let mut known: Vec<_> = all.get_subcommands().map(clap::Command::get_name).collect();
        let mut listed: Vec<_> =
            COMMAND_GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, known);
        let help = cli_command().render_help().to_string();

        assert!(help.contains("\nFiles:\n  read "), "{help}");
        // Connection flags are in the long help only.
        assert!(!help.contains("--deadline"), "{help}");
    }

    #[test]
    fn list_commands_have_both_names() {
        for line in [
            &["jig", "ls"][..],
            &["jig", "list"],
            &["jig", "job", "ls"],
            &["jig", "job", "list"],
            &["jig", "rules", "ls"],
            &["jig", "rules", "list"],
            &["jig", "approvals", "ls"],
            &["jig", "key", "ls"],
        ] {
            assert!(parse(line).is_ok(), "{line:?}");
        }
    }

    #[test]
    fn old_names_are_hidden_aliases() {
        for line in [
            &["jig", "notebook", "read", "n"][..],
            &["jig", "nb", "read", "n"],
            &["jig", "last-command"],
            &["jig", "last"],
            &["jig", "job", "wait", "j", "--timeout", "1"],
            &["jig", "job", "wait", "j", "--at-most", "1"],
        ] {
            assert!(parse(line).is_ok(), "{line:?}");
        }
        let help = cli_command().render_help().to_string();
        assert!(!help.contains("  nb ") && !help.contains("  last "), "{help}");
    }

    #[test]
    fn global_flags_are_accepted_before_and_after_the_subcommand() {
        for line in [
            ["jig", "--address", "unix:/s", "info", "--json"],
            ["jig", "info", "--json", "--address", "unix:/s"],
        ] {
            let arguments = parse(&line).unwrap();
            assert_eq!(arguments.global.address(), Some("unix:/s"));
            assert!(arguments.global.json);
        }

        let empty = parse(&["jig", "--address", "", "info"]).unwrap();
        assert_eq!(empty.global.address(), None);
    }

    #[test]
    fn exit_codes_of_usage_errors() {
        for (line, code) in [
            (&["jig", "run", "--no-such-flag", "ls"][..], 125),
            (&["jig", "--json", "run", "--timeout", "soon", "ls"], 125),
            (&["jig", "run"], 125),
            (&["jig", "exec", "--no-such-flag", "ls"], 125),
            (&["jig", "exec", "--timeout", "soon", "ls"], 125),
            (&["jig", "attach"], 125),
            (&["jig", "call"], 125),
            (&["jig", "tools", "--format", "xml"], 64),
            (&["jig", "ps", "--no-such-flag"], 64),
            (&["jig", "health", "--no-such-flag"], 1),
            (&["jig", "search"], 2),
            (&["jig", "search", "--no-such-flag"], 2),
            (&["jig", "search", "--no-such-flag", "text"], 2),
            (&["jig", "--json", "search", "-x", "text"], 2),
            (&["jig", "read"], 64),
            (&["jig", "dance"], 64),
            (&["jig"], 64),
            (&["jig", "--version"], 0),
            (&["jig", "run", "--help"], 0),
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), code, "{line:?}");
        }
    }

    #[test]
    fn pattern_may_start_with_a_hyphen_after_double_dash() {
        for line in [
            &["jig", "search", "--", "--ignore-case"][..],
            &["jig", "search", "-C", "1", "--", "-x", "src"],
        ] {
            assert!(parse(line).is_ok(), "{line:?}");
        }
    }

    #[test]
    fn usage_errors_are_json_if_requested() {
        for (line, expected) in [
            (&["jig", "--json", "search"][..], true),
            (&["jig", "search", "--json"], true),
            (&["jig", "ls", "--no-such-flag", "--json"], true),
            (&["jig", "--json", "--no-such-flag"], true),
            (&["jig", "--json"], true),
            (&["jig", "search"], false),
            (&["jig", "ls", "--no-such-flag", "--", "--json"], false),
            (&["jig", "--json", "run", "--no-such-flag", "ls"], true),
            (&["jig", "run", "--no-such-flag", "ls", "--json"], false),
        ] {
            assert_eq!(parse(line).unwrap_err().as_json, expected, "{line:?}");
        }
    }

    #[test]
    fn help_hides_the_value_of_the_key() {
        let help = cli_command().render_long_help().to_string();
        assert!(help.contains("[env: JIG_KEY]"), "{help}");
    }
}
