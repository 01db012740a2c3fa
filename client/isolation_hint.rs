//! What to do where this machine cannot isolate commands as strongly as is asked for by default.

use std::env;

use crate::{cli_error::CliError, global::GlobalArgs};

/// Adds the line that would work, where a daemon of our own was to run a command and knows one.
pub(crate) fn with_isolation_hint(global: &GlobalArgs, mut failure: CliError) -> CliError {
    if let CliError::Call(error) = &mut failure
        && global.address().is_none()
        && error.name() == "SANDBOX_UNAVAILABLE"
        && let Some(flags) = error.metadata.get("flags")
    {
        let line = format!("\nThis would work: jig {} {flags} …", subcommand());
        error.message += &line;
    }
    failure
}

/// The word that says what was to be done.
fn subcommand() -> String {
    let known = ["run", "exec"];
    let mut words = env::args().skip(1);
    let found = words.find(|word| known.contains(&word.as_str()));
    found.unwrap_or_else(|| "run".to_owned())
}
