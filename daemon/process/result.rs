//! All that is known of a command that has ended.

use std::time::Duration;

use super::outcome::{CommandOutcome, ResourceLimit};
use crate::daemon::sys::process::ResourceUsage;

/// A command that was run.
#[derive(Debug, Clone)]
pub(crate) struct CommandResult {
    /// How it ended.
    pub(crate) termination: Termination,
    /// What it wrote.
    pub(crate) stdout: CapturedOutput,
    /// What it wrote as errors.
    pub(crate) stderr: CapturedOutput,
    /// From dispatch until nothing of it was left.
    pub(crate) duration: Duration,
}

/// A command that ended, and all that is known about it but its output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Termination {
    /// How.
    pub(crate) outcome: CommandOutcome,
    /// What it used, as far as that is known.
    pub(crate) usage: Option<ResourceUsage>,
    /// The limit that ended it, if one did.
    pub(crate) exceeded_limit: Option<ResourceLimit>,
    /// Whether something of it could not be killed in time.
    pub(crate) kill_pending: bool,
}

/// What a command wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CapturedOutput {
    /// Text for the answer.
    pub(crate) text: String,
    /// All bytes that it wrote.
    pub(crate) total_bytes: u64,
    /// All lines of that, with a last one that has no line ending.
    pub(crate) total_lines: u64,
    /// Whether the text leaves some out.
    pub(crate) truncated: bool,
    /// Why the artifact is incomplete though it is under its cap; empty when it is not.
    pub(crate) artifact_error: String,
}
