//! Subcommands, one per module: arguments, request and output.

pub(crate) mod approvals;
pub(crate) mod artifact;
pub(crate) mod batch;
pub(crate) mod call;
mod columns;
pub(crate) mod command_line;
pub(crate) mod cp;
pub(crate) mod edit;
pub(crate) mod events;
pub(crate) mod exec;
mod exit_note;
pub(crate) mod explain;
pub(crate) mod forward;
pub(crate) mod health;
pub(crate) mod info;
pub(crate) mod job;
pub(crate) mod key;
pub(crate) mod last_command;
pub(crate) mod ls;
pub(crate) mod mcp;
pub(crate) mod notebook;
mod params;
pub(crate) mod patch;
pub(crate) mod path_changes;
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
pub(crate) mod watch;
pub(crate) mod workspace;
pub(crate) mod write;

use std::process::ExitCode;

use jig::client::ConnectError;

use crate::{cli_error::CliError, exit};

/// Reports a failure. Returns the exit code of a subcommand without special exit codes.
fn report_and_exit(result: Result<(), CliError>, as_json: bool) -> ExitCode {
    ExitCode::from(match result {
        Ok(()) => exit::SUCCESS,
        Err(failure) => report_failure(&failure, as_json),
    })
}

/// Does `work` with each item: a failure does not prevent the others. Reports every failure but the
/// last one, which it returns.
async fn try_each<T>(
    items: Vec<T>,
    as_json: bool,
    work: impl AsyncFn(T) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let mut failed = None;
    for item in items {
        if let Err(error) = work(item).await
            && let Some(earlier) = failed.replace(error)
        {
            earlier.report(as_json);
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Reports a failure and returns its exit code.
fn report_failure(failure: &CliError, as_json: bool) -> u8 {
    failure.report(as_json);
    exit_code(failure)
}

/// Reports that a command did not run to its end. Returns an exit code that commands do not use.
fn report_run_failure(failure: &CliError, as_json: bool) -> u8 {
    failure.report(as_json);
    if let CliError::Interrupted(code) = failure { *code } else { exit::RUN_FAILED }
}

fn exit_code(failure: &CliError) -> u8 {
    match failure {
        CliError::Interrupted(code) => *code,
        CliError::Usage(_)
        | CliError::Connect(
            ConnectError::Address(_) | ConnectError::Option { .. } | ConnectError::TlsOption(_),
        ) => exit::USAGE,
        CliError::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            exit::BROKEN_PIPE
        }
        CliError::Call(_)
        | CliError::Connect(_)
        | CliError::Embedded(_)
        | CliError::Local(_)
        | CliError::System(_)
        | CliError::Daemon(_)
        | CliError::Output(_) => exit::FAILURE,
    }
}
