//! `jig serve`: runs the daemon in this process.

use std::{ffi::OsString, process::ExitCode};

use crate::{cli_error::CliError, exit};

/// Runs the daemon. `name` is how the user called it, and `arguments` are the daemon's own.
#[cfg(feature = "daemon")]
pub(crate) fn serve(name: &'static str, arguments: Vec<OsString>) -> ExitCode {
    jig::daemon::main(name, arguments)
}

/// Reports that this binary lacks the daemon.
#[cfg(not(feature = "daemon"))]
pub(crate) fn serve(_: &str, _: Vec<OsString>) -> ExitCode {
    crate::output::note("this jig was built without the daemon (feature `daemon`)");
    ExitCode::from(exit::USAGE)
}

/// Rejects `jig --json serve`.
///
/// The daemon does not know jig's flags, but some of its own have the same names. So all flags must
/// follow `serve`.
pub(crate) fn misplaced_serve(as_json: bool) -> ExitCode {
    let text = "`serve` must come first: jig serve [FLAGS]; see jig serve --help";
    CliError::Usage(text.to_owned()).report(as_json);
    ExitCode::from(exit::USAGE)
}
