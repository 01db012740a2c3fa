//! How a command ended, in the response fields next to its output.

use serde_json::{Map, Value};

use crate::api::v1::{InvokeResponse, Outcome, ToolError};

/// How a command ended, and where its output is. Empty if no command ran.
#[derive(Debug, Clone, Default)]
pub(in crate::daemon::pipeline) struct CommandExitInfo {
    /// `OUTCOME_UNSPECIFIED` if no command ran.
    outcome: Outcome,
    /// The signal that ended it, if any.
    signal: String,
    /// The limit that ended it, if any.
    limit: String,
    exit_code: Option<i32>,
    /// Artifact path of its standard output.
    stdout_path: String,
    /// Artifact path of its standard error.
    stderr_path: String,
    /// Describes an end other than exit code 0.
    pub(super) abnormal_exit: Option<ToolError>,
}

impl CommandExitInfo {
    /// Reads the response of the tool `run`.
    pub(in crate::daemon::pipeline) fn from_output(data: &Map<String, Value>) -> Self {
        let text = |name: &str| data.get(name).and_then(Value::as_str).unwrap_or_default();
        let code = data.get("exit_code").and_then(Value::as_i64);
        Self {
            outcome: Outcome::from_str_name(text("outcome")).unwrap_or_default(),
            signal: text("signal").to_owned(),
            limit: text("limit").to_owned(),
            exit_code: code.and_then(|code| i32::try_from(code).ok()),
            stdout_path: text("stdout_path").to_owned(),
            stderr_path: text("stderr_path").to_owned(),
            abnormal_exit: abnormal_exit(data),
        }
    }

    /// Whether a caller cancelled the command.
    pub(in crate::daemon::pipeline) fn was_cancelled(&self) -> bool {
        self.outcome == Outcome::Cancelled
    }

    /// Returns the hint of a truncated text: where the rest is.
    pub(super) fn output_hint(&self, reader: Option<&str>) -> String {
        output_hint(&self.stdout_path, &self.stderr_path, reader)
    }

    /// Sets the fields of a response.
    pub(super) fn write_to(&self, response: &mut InvokeResponse) {
        response.outcome = self.outcome.into();
        response.signal.clone_from(&self.signal);
        response.limit.clone_from(&self.limit);
        response.exit_code = self.exit_code;
        response.stdout_path.clone_from(&self.stdout_path);
        response.stderr_path.clone_from(&self.stderr_path);
    }
}

/// Returns the hint of a truncated text: the artifacts of a command, and the tool that reads them.
/// Without artifacts (empty paths), it advises to ask for less.
pub(crate) fn output_hint(stdout_path: &str, stderr_path: &str, reader: Option<&str>) -> String {
    match (stdout_path, reader) {
        ("", _) => ": ask for less at a time".to_owned(),
        (path, Some(reader)) => format!(
            "; what the command wrote is in {path} and {stderr_path}: read it with {reader}, commands cannot see it"
        ),
        (path, None) => format!("; what the command wrote is in {path} and {stderr_path}"),
    }
}

/// Describes a command that did not exit with 0. This is no failure of the call.
fn abnormal_exit(data: &Map<String, Value>) -> Option<ToolError> {
    let outcome = data.get("outcome")?.as_str()?;
    let code = data.get("exit_code").and_then(Value::as_i64);
    let message = match code {
        Some(0) => return None,
        Some(code) => format!("the command exited with {code}"),
        None => {
            let outcome = outcome.trim_start_matches("OUTCOME_").to_lowercase();
            let signal = data.get("signal").and_then(Value::as_str);
            match signal.filter(|signal| !signal.is_empty()) {
                Some(signal) => format!("the command ended by {signal} ({outcome})"),
                None => format!("the command did not exit by itself ({outcome})"),
            }
        }
    };

    Some(ToolError {
        error_type: "abnormal_exit".to_owned(),
        message,
        suggestion: "Check its standard error output.".to_owned(),
        details: None,
    })
}
