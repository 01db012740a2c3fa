//! The subcommands, one per file: its arguments, its request, and how its answer is printed.

pub(crate) mod approvals;
pub(crate) mod artifact;
pub(crate) mod batch;
pub(crate) mod call;
pub(crate) mod change;
mod columns;
pub(crate) mod cp;
pub(crate) mod edit;
mod ended;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod health;
pub(crate) mod info;
pub(crate) mod job;
pub(crate) mod key;
pub(crate) mod last;
pub(crate) mod ls;
pub(crate) mod nb;
mod params;
pub(crate) mod patch;
mod paths;
pub(crate) mod processes;
pub(crate) mod read;
pub(crate) mod rules;
pub(crate) mod run;
pub(crate) mod search;
pub(crate) mod serve;
pub(crate) mod shell;
pub(crate) mod stat;
pub(crate) mod tools;
pub(crate) mod words;
pub(crate) mod write;

use std::process::ExitCode;

use jig::client::ConnectError;

use crate::{exit, failure::Failure};

/// The exit code of a subcommand that has no special ones, after telling what went wrong.
fn finish(result: Result<(), Failure>, as_json: bool) -> ExitCode {
    ExitCode::from(match result {
        Ok(()) => exit::SUCCESS,
        Err(failure) => failed(&failure, as_json),
    })
}

/// Tells what went wrong; answers with the exit code that says so.
fn failed(failure: &Failure, as_json: bool) -> u8 {
    failure.report(as_json);
    exit_code(failure)
}

/// Tells why there is no command whose exit code could be ours; answers with the one that says so.
fn run_failed(failure: &Failure, as_json: bool) -> u8 {
    failure.report(as_json);
    if let Failure::Interrupted(code) = failure { *code } else { exit::RUN_FAILED }
}

fn exit_code(failure: &Failure) -> u8 {
    match failure {
        Failure::Interrupted(code) => *code,
        Failure::Usage(_)
        | Failure::Connect(ConnectError::Address(_) | ConnectError::Option { .. }) => exit::USAGE,
        Failure::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            exit::BROKEN_PIPE
        }
        Failure::Call(_)
        | Failure::Connect(_)
        | Failure::Embedded(_)
        | Failure::Local(_)
        | Failure::System(_)
        | Failure::Daemon(_)
        | Failure::Output(_) => exit::FAILURE,
    }
}
