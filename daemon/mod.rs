//! The daemon: `jigd`, `jig serve`, and what `jig run` embeds when it is given no address.

mod catalog;
mod checksum;
mod config;
mod dialect;
mod egress;
mod embedded;
mod error;
mod fd_exhaustion;
mod fetch;
#[cfg(fuzzing)]
pub mod fuzz;
mod grpc;
mod home_dir;
pub mod key_admin;
mod netpolicy;
mod pipeline;
mod privileges;
mod process;
mod queue;
mod sandbox;
mod server;
mod start;
mod store;
mod sys;
mod task;
mod telemetry;
mod text;
mod tool;
mod workspace;

use std::{
    ffi::OsString,
    future::Future,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{CommandFactory as _, FromArgMatches as _};

use self::{
    config::{Config, args::Args},
    start::StartError,
};
pub use self::{embedded::EmbeddedOptions, home_dir::home_dir};

/// Exit code for wrong flags (EX_USAGE of sysexits.h).
const EXIT_USAGE: u8 = 64;
/// Exit code for a configuration that cannot be used, or a sandbox that cannot be built
/// (EX_CONFIG).
const EXIT_CONFIG: u8 = 78;

/// Becomes the keeper of sandboxes, and does not return, if this process was started to be it.
///
/// Must be the first thing that a binary with the daemon in it does: the keeper has no thread but
/// this one, no environment and no arguments.
pub fn run_keeper_if_invoked() {
    if std::env::args_os().next().is_some_and(|name| name == sandbox::keeper::KEEPER_ARG0) {
        sandbox::keeper::run();
    }
}

/// Runs the daemon under the name `program`, with `arguments` (the program's name not among them),
/// until it is told to end.
pub fn main(program: &'static str, arguments: Vec<OsString>) -> ExitCode {
    let command = Args::command().name(program).bin_name(program);
    let parsed = command
        .no_binary_name(true)
        .try_get_matches_from(arguments)
        .and_then(|matches| Args::from_arg_matches(&matches));
    let args = match parsed {
        Ok(args) => args,
        Err(error) => {
            // Help and version are asked for: they go to standard output and are no error. A closed
            // stream has nobody to tell.
            let _closed = error.print();
            return if error.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let check = args.check;
    let outcome = Config::load(args.clone()).map_err(StartError::from).and_then(|config| {
        if check { start::check(config) } else { start::run(args, config).map(|()| String::new()) }
    });
    match outcome {
        Ok(report) => {
            let _closed = io::stdout().write_all(report.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            for line in error.to_string().lines() {
                let _closed = writeln!(io::stderr(), "{program}: {line}");
            }
            match error {
                StartError::Config(_)
                | StartError::State(_)
                | StartError::Database(_)
                | StartError::Bind(_)
                | StartError::Workspace { .. }
                | StartError::Chown { .. }
                | StartError::Home(_)
                | StartError::Isolation(_) => ExitCode::from(EXIT_CONFIG),
                StartError::Io { .. } => ExitCode::FAILURE,
            }
        }
    }
}

/// Runs a daemon for the time of one `call`, with `workspace` as its workspace and a state directory that is removed afterwards. Its journals and records of uploads, which those after it
/// need, are in the state directory of who names none.
///
/// `call` gets the address. The process must have no other thread when this is called. Answers why,
/// where the daemon cannot be started.
pub fn with_embedded<T, F, Fut>(
    workspace: PathBuf,
    options: EmbeddedOptions,
    call: F,
) -> Result<T, String>
where
    F: FnOnce(String) -> Fut,
    Fut: Future<Output = T>,
{
    start::with_embedded(workspace, options, call).map_err(|error| error.to_string())
}
