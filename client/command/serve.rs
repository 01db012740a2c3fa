//! `jig serve`: the daemon, in this process.

use std::{ffi::OsString, process::ExitCode};

use crate::{cli_error::CliError, exit};

/// Becomes the daemon. `arguments` are its own, without our name and `serve`.
#[cfg(feature = "daemon")]
pub(crate) fn serve(arguments: Vec<OsString>) -> ExitCode {
    jig::daemon::main("jig serve", arguments)
}

/// Says that there is no daemon in this binary.
#[cfg(not(feature = "daemon"))]
pub(crate) fn serve(_: Vec<OsString>) -> ExitCode {
    crate::output::note("this jig was built without the daemon (feature `daemon`)");
    ExitCode::from(exit::USAGE)
}

/// `jig --json serve`: the daemon has none of our flags, some of its own have the same names, and
/// all of them come after the word.
pub(crate) fn misplaced_serve(as_json: bool) -> ExitCode {
    let text = "`serve` must come first: jig serve [FLAGS]; see jig serve --help";
    CliError::Usage(text.to_owned()).report(as_json);
    ExitCode::from(exit::USAGE)
}
