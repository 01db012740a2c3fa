//! All that is known of a command that has ended.

use std::time::Duration;

use super::outcome::{Limit, Outcome};
use crate::daemon::sys::process::Usage;

/// A command that was run.
#[derive(Debug, Clone)]
pub(crate) struct Finished {
    /// How it ended.
    pub(crate) ended: Ended,
    /// What it wrote.
    pub(crate) stdout: Captured,
    /// What it wrote as errors.
    pub(crate) stderr: Captured,
    /// From dispatch until nothing of it was left.
    pub(crate) duration: Duration,
}

/// A command that ended, and all that is known about it but its output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// How.
    pub(crate) outcome: Outcome,
    /// What it used, as far as that is known.
    pub(crate) usage: Option<Usage>,
    /// The limit that ended it, if one did.
    pub(crate) limit: Option<Limit>,
    /// Whether something of it could not be killed in time.
    pub(crate) kill_pending: bool,
}

/// What a command wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Captured {
    /// Text for the answer.
    pub(crate) text: String,
    /// All bytes that it wrote.
    pub(crate) bytes: u64,
    /// All lines of that, with a last one that has no line ending.
    pub(crate) lines: u64,
    /// Whether the text leaves some out.
    pub(crate) truncated: bool,
    /// Why the artifact is incomplete though it is under its cap; empty when it is not.
    pub(crate) artifact_error: String,
}
