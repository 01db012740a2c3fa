//! Limits of runs: that they hold, that they are told, and that one run's limit is not another's
//! trouble.

mod bombs;
mod cgroups;
mod cpu;
mod lowered;
mod memory;
mod output;

use jig::api::v1::{LowerLimits, RunRequest};

use crate::support::shell;

/// A command line with limits of its own.
fn limited(command: &str, limits: LowerLimits) -> RunRequest {
    RunRequest {
        limits: Some(limits),
        ..shell(command)
    }
}
