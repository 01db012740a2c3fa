//! The command `jig`.
//!
//! Parses the arguments, finds a daemon, runs the subcommand and returns its exit code. Each
//! subcommand is a file or a directory of `command/`. Communication with the daemon is in the
//! library.

mod bench;
mod cli;
mod cli_error;
mod command;
mod connection;
#[cfg(test)]
mod contract;
mod default_daemon;
mod envelope;
mod error_report;
mod escape;
mod exit;
mod file_json;
mod global;
#[cfg(feature = "daemon")]
mod home;
mod input;
mod isolation_hint;
mod json;
mod listener_owner;
mod local_error;
mod output;
mod progress;
mod stdout_writer;
mod style;

use std::{ffi::OsString, path::Path, process::ExitCode};

use cli::{Cli, CliCommand};
use global::GlobalArgs;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // First of all: a process that is started as the keeper of sandboxes must not have parsed
    // arguments or started threads.
    #[cfg(feature = "daemon")]
    jig::daemon::run_keeper_if_invoked();

    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    // Archives and images have one program under both names.
    if arguments.first().is_some_and(|program| Path::new(program).ends_with("jigd")) {
        return command::serve::serve("jigd", arguments.split_off(1));
    }
    // Before clap, because some flags of the daemon have the names of ours.
    if arguments.get(1).is_some_and(|first| first == "serve") {
        return command::serve::serve("jig serve", arguments.split_off(2));
    }

    match Cli::parse_from(&arguments) {
        Ok(Cli { mut global, command }) => {
            global.runs_command = command.runs_command();
            let as_json = global.json;
            match default_daemon::resolve_daemon(global, command.daemon_requirement()) {
                Ok(global) => run(&global, command),
                Err(failure) => {
                    failure.report(as_json);
                    ExitCode::from(exit::USAGE)
                }
            }
        }
        Err(usage_error) => usage_error.report(),
    }
}

fn run(global: &GlobalArgs, command: CliCommand) -> ExitCode {
    match command {
        CliCommand::Run(args) => command::run::run(global, args),
        CliCommand::Exec(args) => command::exec::exec(global, args),
        CliCommand::Attach(args) => command::exec::attach(global, args),
        CliCommand::Ps(args) => command::processes::ps(global, args),
        CliCommand::Kill(args) => command::processes::kill(global, args),
        CliCommand::Forward(args) => command::forward::forward(global, args),
        CliCommand::Read(args) => command::read::read(global, args),
        CliCommand::Ls(args) => command::ls::ls(global, args),
        CliCommand::Cp(args) => command::cp::cp(global, args),
        CliCommand::Write(args) => command::write::write(global, args),
        CliCommand::Edit(args) => command::edit::edit(global, args),
        CliCommand::Patch(args) => command::patch::patch(global, args),
        CliCommand::Search(args) => command::search::search(global, args),
        CliCommand::Stat(args) => command::stat::stat(global, args),
        CliCommand::Mkdir(args) => command::path_changes::mkdir(global, args),
        CliCommand::Mv(args) => command::path_changes::mv(global, args),
        CliCommand::Rm(args) => command::path_changes::rm(global, args),
        CliCommand::Watch(args) => command::watch::watch(global, args),
        CliCommand::Notebook(args) => command::notebook::notebook(global, args),
        CliCommand::Info => command::info::info(global),
        CliCommand::Health(args) => command::health::health(global, args),
        CliCommand::Events(args) => command::events::events(global, args),
        CliCommand::Sessions(args) => command::events::sessions(global, args),
        CliCommand::LastCommand(args) => command::last_command::last_command(global, args),
        CliCommand::Artifacts(args) => command::last_command::artifacts(global, args),
        CliCommand::Artifact(args) => command::artifact::artifact(global, args),
        CliCommand::Tools(args) => command::tools::tools(global, args),
        CliCommand::Call(args) => command::call::call(global, args),
        CliCommand::Batch(args) => command::batch::batch(global, args),
        CliCommand::Job(args) => command::job::job(global, args),
        CliCommand::Mcp(args) => command::mcp::mcp(global, args),
        CliCommand::Approvals(args) => command::approvals::approvals(global, args),
        CliCommand::Rules(args) => command::rules::rules(global, args),
        CliCommand::Workspace(args) => command::workspace::workspace(global, args),
        CliCommand::Key(args) => command::key::key(global, args),
        CliCommand::Serve(_) => command::serve::misplaced_serve(global.json),
        CliCommand::Bench(args) => bench::bench(global, args),
        CliCommand::Explain(args) => command::explain::explain(global, args),
        CliCommand::Completions(args) => {
            command::shell::completions(global, args, cli::cli_command())
        }
        CliCommand::Man(args) => command::shell::man(global, args, cli::cli_command()),
    }
}
