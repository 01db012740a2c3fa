//! What to do where this machine cannot isolate commands as strongly as is asked for by default.

use std::env;

use crate::{failure::Failure, global::Global};

/// Adds the line that would work, where a daemon of our own was to run a command and knows one.
pub(crate) fn with_hint(global: &Global, failure: Failure) -> Failure {
    match failure {
        Failure::Call(mut error)
            if global.address().is_none() && error.name() == "SANDBOX_UNAVAILABLE" =>
        {
            if let Some(flags) = error.metadata.get("flags") {
                error.message += &format!("\nThis would work: jig {} {flags} …", subcommand());
            }
            Failure::Call(error)
        }
        failure => failure,
    }
}

/// The word that says what was to be done.
fn subcommand() -> String {
    let known = ["run", "exec"];
    let mut words = env::args().skip(1);
    let found = words.find(|word| known.contains(&word.as_str()));
    found.unwrap_or_else(|| "run".to_owned())
}
