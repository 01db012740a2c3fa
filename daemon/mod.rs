//! The daemon: `jigd`, `jig serve`, and the embedded daemon that `jig run` uses without an address.

#![cfg_attr(
    not(feature = "fleet"),
    allow(dead_code, unused_imports, reason = "what only fleets use, in all layers below them")
)]

mod agent_sandbox;
mod catalog;
mod checksum;
mod config;
mod dialect;
mod egress;
mod error;
mod fd_exhaustion;
mod fetch;
#[cfg(feature = "fleet")]
mod fleet;
#[cfg(fuzzing)]
pub mod fuzz;
mod grpc;
mod http;
pub mod key_admin;
mod netpolicy;
mod pipeline;
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

pub use self::start::EmbeddedOptions;
use self::{
    config::{Config, args::Args},
    start::StartError,
};

/// Exit code for invalid flags (EX_USAGE of sysexits.h).
const EXIT_USAGE: u8 = 64;
/// Exit code for a start that fails until the configuration, a file or the machine changes
/// (EX_CONFIG).
const EXIT_CONFIG: u8 = 78;

/// Runs the sandbox keeper and does not return, if this process was started as the keeper.
///
/// A binary that contains the daemon must call this first. The keeper has this one thread only, no
/// environment and no arguments.
pub fn run_keeper_if_invoked() {
    if std::env::args_os().next().is_some_and(|name| name == sandbox::keeper::KEEPER_ARG0) {
        sandbox::keeper::run();
    }
}

/// Runs the daemon until a signal ends it.
///
/// `program` is the name in help and error texts. `arguments` do not include the program's name.
pub fn main(program: &'static str, arguments: Vec<OsString>) -> ExitCode {
    let args = match parse_args(program, arguments) {
        Ok(args) => args,
        Err(error) => {
            // `print` writes help and version to standard output: they are no errors. Nothing can
            // be reported on a closed stream.
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
            if error.may_pass() { ExitCode::FAILURE } else { ExitCode::from(EXIT_CONFIG) }
        }
    }
}

/// The flags of the daemon, for its manual page. `program` is the name in texts.
pub fn command(program: &'static str) -> clap::Command {
    Args::command().name(program).bin_name(program)
}

fn parse_args(program: &'static str, arguments: Vec<OsString>) -> Result<Args, clap::Error> {
    let matches = command(program).no_binary_name(true).try_get_matches_from(arguments)?;
    Args::from_arg_matches(&matches)
}

/// Runs a daemon for the duration of `call`, which gets its address.
///
/// The daemon serves `workspace` and removes its state directory afterwards. Its journals and
/// upload records must outlive it, so they are stored in the default state directory.
///
/// The process must have a single thread when this is called.
///
/// # Errors
///
/// Returns the reason if the daemon cannot be started.
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
