//! What to do where this machine cannot isolate commands as strongly as is asked for by default.

use std::{env, process::Command};

use serde_json::Value;

use crate::{failure::Failure, global::Global};

/// Adds the line that would work, where a daemon of our own was to run a command and a lower level
/// is possible here.
pub(crate) fn with_hint(global: &Global, failure: Failure) -> Failure {
    match failure {
        Failure::Call(mut error)
            if global.address().is_none()
                && error.name() == "SANDBOX_UNAVAILABLE"
                && global.minimum_level() != Some("L1") =>
        {
            if let Some(level) = possible_level() {
                error.message += &format!(
                    "\nThis would work: jig {} --minimum-level {level} …",
                    subcommand()
                );
            }
            Failure::Call(error)
        }
        failure => failure,
    }
}

/// The level that this machine gives, below the one by default: as a daemon finds out that is started
/// for that, since what is possible is known only by trying.
fn possible_level() -> Option<String> {
    let output = Command::new(env::current_exe().ok()?)
        .args(["--minimum-level", "L1", "--allow-home", "--json", "info"])
        .output()
        .ok()?;
    let info: Value = serde_json::from_slice(&output.stdout).ok()?;
    let level = info["isolation"]["level"].as_str()?;
    ["L1", "L2"].contains(&level).then(|| level.to_owned())
}

/// The word that says what was to be done.
fn subcommand() -> String {
    let known = ["run", "exec"];
    let mut words = env::args().skip(1);
    let found = words.find(|word| known.contains(&word.as_str()));
    found.unwrap_or_else(|| "run".to_owned())
}
