//! The result of a command that has ended.

use std::time::Duration;

use super::outcome::{CommandOutcome, ResourceLimit};
use crate::daemon::sys::process::ResourceUsage;

#[derive(Debug, Clone)]
pub(crate) struct CommandResult {
    pub(crate) termination: Termination,
    pub(crate) stdout: CapturedOutput,
    pub(crate) stderr: CapturedOutput,
    /// What a named shell wrote about its state. `None` without one, and if the command was ended.
    pub(crate) shell_output: Option<Vec<u8>>,
    /// From dispatch until all its processes were gone.
    pub(crate) duration: Duration,
}

/// How a command ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Termination {
    pub(crate) outcome: CommandOutcome,
    /// `None` if it is unknown.
    pub(crate) usage: Option<ResourceUsage>,
    /// The limit that ended it, if one did.
    pub(crate) exceeded_limit: Option<ResourceLimit>,
    /// Whether some process could not be killed in time.
    pub(crate) kill_pending: bool,
}

impl Termination {
    /// Reports the output limit if the output exceeds it and nothing exceeded another limit. The
    /// command may have ended before the daemon had counted all of its output.
    pub(super) fn with_output_limit(self, output_bytes: u64, max_output_bytes: u64) -> Self {
        if self.exceeded_limit.is_some() || output_bytes <= max_output_bytes {
            return self;
        }
        Self {
            outcome: CommandOutcome::OutputLimit(self.outcome.signal()),
            exceeded_limit: Some(ResourceLimit::Output),
            ..self
        }
    }
}

/// The output of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CapturedOutput {
    /// Text for the response.
    pub(crate) text: String,
    pub(crate) total_bytes: u64,
    /// Includes a last line without a line ending.
    pub(crate) total_lines: u64,
    /// Whether `text` omits some output.
    pub(crate) truncated: bool,
    /// Why the artifact is incomplete below its size limit; empty if it is not.
    pub(crate) artifact_error: String,
}
