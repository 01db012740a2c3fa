//! Hint for hosts that cannot isolate commands as strongly as the default requires.

use std::env;

use crate::{cli_error::CliError, global::GlobalArgs};

/// Adds a command line that works on this host, if the daemon for this call could not isolate the
/// command.
pub(crate) fn with_isolation_hint(global: &GlobalArgs, mut failure: CliError) -> CliError {
    if let CliError::Call(error) = &mut failure
        && global.address().is_none()
        && error.name() == "SANDBOX_UNAVAILABLE"
        && let Some(flags) = error.metadata.get("flags")
    {
        let line = format!(
            "\nRetry with the isolation that this host permits: jig {} {flags} …",
            subcommand()
        );
        error.message += &line;
    }
    failure
}

/// Returns the subcommand of this process.
fn subcommand() -> String {
    let mut words = env::args().skip(1);
    let subcommand = words.find(|word| ["run", "exec"].contains(&word.as_str()));
    subcommand.unwrap_or_else(|| "run".to_owned())
}
