//! The command line: what can be said, and what is said when it cannot be understood.

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
/// Without --address, your daemon or root's is used that listens at $XDG_RUNTIME_DIR/jig.sock or 127.0.0.1:50051. `run`,
/// `exec`, `call`, `tools`, `info` and the commands about files use it only if the current directory is its workspace, and
/// otherwise start a daemon for that one call, which holds the current directory. Standard error says which is used.
#[derive(Debug, Parser)]
#[command(name = "jig", version, propagate_version = false)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    Run(RunArgs),
    Exec(ExecArgs),
    Attach(command::exec::AttachArgs),
    Ps(command::processes::PsArgs),
    Kill(command::processes::KillArgs),
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
    Nb(command::nb::NbArgs),
    /// Tell what the daemon is, how strongly it isolates commands, and what it is doing.
    Info,
    Health(command::health::HealthArgs),
    Events(command::events::EventsArgs),
    Sessions(command::events::SessionsArgs),
    Last(command::last::LastArgs),
    Artifacts(command::last::ArtifactsArgs),
    Artifact(command::artifact::ArtifactArgs),
    Tools(command::tools::ToolsArgs),
    Call(command::call::CallArgs),
    Batch(command::batch::BatchArgs),
    Job(command::job::JobArgs),
    Approvals(command::approvals::ApprovalsArgs),
    Rules(command::rules::RulesArgs),
    Key(command::key::KeyArgs),
    /// Serve the current directory, or what the daemon's own flags say: `jig serve --help`.
    #[command(disable_help_flag = true)]
    Serve(ServeArgs),
    Bench(BenchArgs),
    Completions(command::shell::CompletionsArgs),
    Man(command::shell::ManArgs),
}

/// The commands as `jig --help` lists them.
const COMMAND_GROUPS: [(&str, &[&str]); 4] = [
    ("Run", &["run", "exec", "attach", "ps", "kill", "last", "artifacts", "artifact"]),
    (
        "Files",
        &[
            "read", "write", "edit", "patch", "search", "ls", "stat", "mkdir", "mv", "rm", "nb",
            "cp",
        ],
    ),
    ("Tools for models", &["tools", "call", "batch", "job"]),
    (
        "Operate",
        &[
            "serve",
            "info",
            "health",
            "approvals",
            "rules",
            "key",
            "sessions",
            "events",
            "bench",
            "completions",
            "man",
        ],
    ),
];

/// The definition of the command line, whose help lists the commands in groups.
pub(crate) fn cli_command() -> clap::Command {
    let command = Cli::command();
    let about = |name: &str| {
        let found = command.find_subcommand(name);
        let about = found.and_then(clap::Command::get_about);
        about.map(ToString::to_string).unwrap_or_default()
    };
    let groups = COMMAND_GROUPS.iter().map(|(title, names)| {
        let lines = names.iter().map(|name| format!("  {name:<12} {}\n", about(name)));
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
    /// One that runs and keeps what it is asked about.
    Running,
    /// Any, also one that is started for this call and holds the current directory.
    Any,
    /// None, or one that the command starts itself.
    NoDaemon,
}

impl CliCommand {
    /// Whether it runs a command in a sandbox.
    pub(crate) fn runs_command(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Exec(_))
    }

    /// The daemon that the command needs.
    pub(crate) fn daemon_requirement(&self) -> DaemonRequirement {
        match self {
            Self::Attach(_)
            | Self::Ps(_)
            | Self::Kill(_)
            | Self::Health(_)
            | Self::Events(_)
            | Self::Sessions(_)
            | Self::Last(_)
            | Self::Artifacts(_)
            | Self::Artifact(_)
            | Self::Batch(_)
            | Self::Job(_)
            | Self::Approvals(_)
            | Self::Rules(_) => DaemonRequirement::Running,
            Self::Exec(args) if args.needs_daemon() => DaemonRequirement::Running,
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
            | Self::Nb(_)
            | Self::Info
            | Self::Tools(_)
            | Self::Call(_) => DaemonRequirement::Any,
            Self::Key(_)
            | Self::Serve(_)
            | Self::Bench(_)
            | Self::Completions(_)
            | Self::Man(_) => DaemonRequirement::NoDaemon,
        }
    }
}

/// Never read: `serve` is decided before the arguments are parsed. It stands here for `jig help`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Arguments of the daemon.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Arguments that were not understood, or that asked for help only.
#[derive(Debug)]
pub(crate) struct UsageError {
    error: clap::Error,
    subcommand: Option<String>,
    as_json: bool,
}

impl Cli {
    /// Reads the arguments of the process, its name included.
    pub(crate) fn parse_from(words: &[OsString]) -> Result<Self, UsageError> {
        let mut arguments =
            Self::try_parse_from(words).map_err(|error| UsageError::new(error, words))?;
        if let CliCommand::Run(RunArgs { command_line: own, .. })
        | CliCommand::Exec(ExecArgs { command_line: own, .. }) = &mut arguments.command
        {
            own.set_is_argv(words);
        }
        if let CliCommand::Run(args) = &arguments.command
            && args.command_line.is_empty()
        {
            let text = "there is no command to run";
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
    /// What was meant, although the rest could not be understood.
    fn new(error: clap::Error, words: &[OsString]) -> Self {
        let matches = cli_command().ignore_errors(true).try_get_matches_from(words).ok();
        let subcommand = matches.as_ref().and_then(ArgMatches::subcommand_name);
        // It has no value, not even its default, where an environment variable is invalid.
        let is_set =
            |matches: &ArgMatches| matches!(matches.try_get_one::<bool>("json"), Ok(Some(true)));
        // What comes behind the word that is not understood is not looked at.
        let is_said = || {
            let mut flags = words.iter().take_while(|word| *word != "--");
            // The words of a command can be anything.
            !matches!(subcommand, Some("run" | "exec")) && flags.any(|word| word == "--json")
        };
        Self {
            as_json: matches.as_ref().is_some_and(is_set) || is_said(),
            subcommand: subcommand.map(str::to_owned),
            error,
        }
    }

    /// Says what is wrong. The exit code depends on what was to be done: a command's own exit codes
    /// must not be mixed up with ours.
    pub(crate) fn report(self) -> ExitCode {
        if !self.error.use_stderr() {
            // There is nothing left to tell it to when the terminal is gone.
            self.error.print().ok();
            return ExitCode::SUCCESS;
        }
        let text = self.error.render().to_string();
        if self.as_json {
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
            CliError::Usage(text.to_owned()).report(true);
        } else {
            // Without colours: it repeats arguments, which others may have chosen.
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
    fn the_definition_is_sound() {
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
        // Those of the connection are in the long help.
        assert!(!help.contains("--deadline"), "{help}");
    }

    #[test]
    fn lists_have_both_names() {
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
    fn global_flags_stand_before_and_after_the_subcommand() {
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
    fn what_is_searched_for_begins_with_a_hyphen_only_behind_dashes() {
        for line in [
            &["jig", "search", "--", "--ignore-case"][..],
            &["jig", "search", "-C", "1", "--", "-x", "src"],
        ] {
            assert!(parse(line).is_ok(), "{line:?}");
        }
    }

    #[test]
    fn errors_are_json_wherever_that_is_asked_for() {
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
    fn the_key_is_not_in_the_help() {
        let help = cli_command().render_long_help().to_string();
        assert!(help.contains("[env: JIG_KEY]"), "{help}");
    }
}
