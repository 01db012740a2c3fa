//! The command `jig`. Thin: reads the arguments, decides what to do, does it, and turns the result
//! into an exit code. Each subcommand is one file of `command/` or a folder; what talks to the
//! daemon is the library.

mod arguments;
mod bench;
mod command;
mod connection;
#[cfg(test)]
mod contract;
mod default_daemon;
mod envelope;
mod escape;
mod exit;
mod failure;
mod file_json;
mod global;
#[cfg(feature = "daemon")]
mod home;
mod input;
mod isolation_hint;
mod json;
mod listener;
mod local;
mod output;
mod progress;
mod structure;
mod style;
mod told;
mod writer;

use std::{ffi::OsString, process::ExitCode};

use arguments::{Arguments, Command};
use global::Global;

fn main() -> ExitCode {
    // Before all else: a process that was started as the keeper of sandboxes must not have parsed
    // anything, nor have threads.
    #[cfg(feature = "daemon")]
    jig::daemon::become_keeper_if_asked();

    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    // Before clap, which would take the flags of the daemon that have the names of ours.
    if arguments.get(1).is_some_and(|first| first == "serve") {
        return command::serve::serve(arguments.split_off(2));
    }
    match Arguments::from_words(&arguments) {
        Ok(Arguments { mut global, command }) => {
            global.runs_command = command.runs_command();
            let as_json = global.json;
            match default_daemon::choose(global, command.need()) {
                Ok(global) => run(&global, command),
                Err(failure) => {
                    failure.report(as_json);
                    ExitCode::from(exit::USAGE)
                }
            }
        }
        Err(unparsed) => unparsed.report(),
    }
}

fn run(global: &Global, command: Command) -> ExitCode {
    match command {
        Command::Run(args) => command::run::run(global, args),
        Command::Exec(args) => command::exec::exec(global, args),
        Command::Attach(args) => command::exec::attach(global, args),
        Command::Ps(args) => command::processes::ps(global, args),
        Command::Kill(args) => command::processes::kill(global, args),
        Command::Read(args) => command::read::read(global, args),
        Command::Ls(args) => command::ls::ls(global, args),
        Command::Cp(args) => command::cp::cp(global, args),
        Command::Write(args) => command::write::write(global, args),
        Command::Edit(args) => command::edit::edit(global, args),
        Command::Patch(args) => command::patch::patch(global, args),
        Command::Search(args) => command::search::search(global, args),
        Command::Stat(args) => command::stat::stat(global, args),
        Command::Mkdir(args) => command::change::mkdir(global, args),
        Command::Mv(args) => command::change::mv(global, args),
        Command::Rm(args) => command::change::rm(global, args),
        Command::Nb(args) => command::nb::nb(global, args),
        Command::Info => command::info::info(global),
        Command::Health(args) => command::health::health(global, args),
        Command::Events(args) => command::events::events(global, args),
        Command::Sessions(args) => command::events::sessions(global, args),
        Command::Last(args) => command::last::last(global, args),
        Command::Artifacts(args) => command::last::artifacts(global, args),
        Command::Artifact(args) => command::artifact::artifact(global, args),
        Command::Tools(args) => command::tools::tools(global, args),
        Command::Call(args) => command::call::call(global, args),
        Command::Batch(args) => command::batch::batch(global, args),
        Command::Job(args) => command::job::job(global, args),
        Command::Approvals(args) => command::approvals::approvals(global, args),
        Command::Rules(args) => command::rules::rules(global, args),
        Command::Key(args) => command::key::key(global, args),
        Command::Serve(_) => command::serve::misplaced(global.json),
        Command::Bench(args) => bench::bench(global, args),
        Command::Completions(args) => {
            command::shell::completions(global, args, arguments::command())
        }
        Command::Man(args) => command::shell::man(global, args, arguments::command()),
    }
}
