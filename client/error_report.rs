//! Error output: lines on standard error, or one JSON object on standard output.

use std::{io, time::Duration};

use jig::client::{CallError, ConnectError};
use serde_json::{Map, Value, json};

use crate::{cli_error::CliError, local_error::LocalError, output};

/// A failure in the form in which errors are printed.
#[derive(Debug, Clone, PartialEq)]
struct ErrorReport {
    code: String,
    reason: Option<String>,
    message: String,
    /// Fields and their violations.
    violations: Vec<(String, String)>,
    metadata: Vec<(String, String)>,
    retry_after: Option<Duration>,
    call_id: Option<String>,
}

impl CliError {
    /// Prints the error. Prints nothing after Ctrl-C, or if the reader of the output has gone.
    pub(crate) fn report(&self, as_json: bool) {
        let Some(report) = self.to_report() else { return };
        if as_json {
            // If this fails too, the exit code reports the failure.
            output::write_json(&json!({ "error": report.to_json() })).ok();
        } else {
            for line in report.to_lines() {
                output::note(&line);
            }
        }
    }

    /// Returns the error in one line.
    pub(crate) fn summary(&self) -> String {
        self.to_report_or_cancelled().summary_line()
    }

    pub(crate) fn to_json(&self) -> Value {
        self.to_report_or_cancelled().to_json()
    }

    /// Like [`Self::to_report`], and CANCELLED if there is no report.
    fn to_report_or_cancelled(&self) -> ErrorReport {
        let cancelled = || ErrorReport::new("CANCELLED", "interrupted before it was complete");
        self.to_report().unwrap_or_else(cancelled)
    }

    /// Returns `None` after Ctrl-C, and if the reader of the output has gone.
    fn to_report(&self) -> Option<ErrorReport> {
        let report = match self {
            Self::Call(error) => error.as_ref().into(),
            Self::Connect(error) => ErrorReport::new(connect_code(error), error.to_string()),
            Self::Embedded(message) => ErrorReport::new(
                "FAILED_PRECONDITION",
                format!("no daemon could be started for this call: {message}"),
            ),
            Self::Usage(message) => ErrorReport::new("INVALID_ARGUMENT", message),
            Self::Local(local) => local.into(),
            Self::System(message) => ErrorReport::new("UNKNOWN", message),
            Self::Daemon(message) => ErrorReport::new("INTERNAL", message),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return None,
            Self::Output(error) => (&LocalError::new("cannot write standard output", error)).into(),
            Self::Interrupted(_) => return None,
        };
        Some(report)
    }
}

impl From<&CallError> for ErrorReport {
    fn from(error: &CallError) -> Self {
        let violations = error.violations.iter();
        let metadata = error.metadata.iter();
        Self {
            code: error.code_name().to_owned(),
            reason: error.reason.clone(),
            message: error.message.clone(),
            violations: violations
                .map(|violation| (violation.field.clone(), violation.description.clone()))
                .collect(),
            metadata: metadata.map(|(name, value)| (name.clone(), value.clone())).collect(),
            retry_after: error.retry_after,
            call_id: error.call_id.clone(),
        }
    }
}

/// Returns the name of the gRPC code that stands for a failed connection.
fn connect_code(error: &ConnectError) -> &'static str {
    match error {
        ConnectError::Address(_) | ConnectError::Option { .. } | ConnectError::TlsOption(_) => {
            "INVALID_ARGUMENT"
        }
        ConnectError::PermissionDenied { .. } => "PERMISSION_DENIED",
        ConnectError::NothingListens { .. }
        | ConnectError::TimedOut { .. }
        | ConnectError::Tls { .. }
        | ConnectError::Failed { .. }
        | _ => "UNAVAILABLE",
    }
}

impl From<&LocalError> for ErrorReport {
    fn from(local: &LocalError) -> Self {
        let path = local.path.iter();
        Self {
            reason: local.reason.map(str::to_owned),
            metadata: path.map(|path| ("local_path".to_owned(), path.clone())).collect(),
            ..Self::new(local.code, &local.message)
        }
    }
}

impl ErrorReport {
    fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            reason: None,
            message: message.into(),
            violations: Vec::new(),
            metadata: Vec::new(),
            retry_after: None,
            call_id: None,
        }
    }

    fn summary_line(&self) -> String {
        let name = self.reason.as_ref().unwrap_or(&self.code);
        format!("{name}: {}", self.message)
    }

    fn to_lines(&self) -> Vec<String> {
        let mut lines = vec![self.summary_line()];

        // Most messages name all violations.
        let violations = self.violations.iter();
        let further = violations
            .map(|(field, description)| format!("{field}: {description}"))
            .filter(|line| !self.message.contains(line));
        lines.extend(further.map(|line| format!("  {line}")));

        if let Some(wait) = self.retry_after {
            lines.push(format!("  try again in {} s", wait.as_secs_f64()));
        }

        // The daemon's log has more about these errors.
        if self.code == "INTERNAL"
            && let Some(id) = &self.call_id
        {
            lines.push(format!("  call {id}"));
        }

        lines
    }

    fn to_json(&self) -> Value {
        let violations: Vec<Value> = self
            .violations
            .iter()
            .map(|(field, description)| json!({ "field": field, "description": description }))
            .collect();
        let metadata: Map<String, Value> = self
            .metadata
            .iter()
            .map(|(name, value)| (name.clone(), value.clone().into()))
            .collect();

        json!({
            "code": self.code,
            "reason": self.reason,
            "message": self.message,
            "violations": violations,
            "metadata": metadata,
            "retry_after_sec": self.retry_after.map(|wait| wait.as_secs_f64()),
            "call_id": self.call_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_all_fields() {
        let mut report = ErrorReport::new("NOT_FOUND", "no such file");
        report.reason = Some("FILE_NOT_FOUND".into());
        report.metadata = vec![("path".into(), "a".into())];
        report.violations = vec![("path".into(), "wrong".into())];
        assert_eq!(
            report.to_json(),
            json!({
                "code": "NOT_FOUND",
                "reason": "FILE_NOT_FOUND",
                "message": "no such file",
                "violations": [{ "field": "path", "description": "wrong" }],
                "metadata": { "path": "a" },
                "retry_after_sec": null,
                "call_id": null,
            })
        );
    }

    #[test]
    fn lines_name_the_reason_and_each_field() {
        let report = ErrorReport {
            reason: Some("INVALID_PARAMS".into()),
            violations: vec![("cwd".into(), "must not be empty".into())],
            retry_after: Some(Duration::from_millis(1500)),
            call_id: Some("01ABC".into()),
            ..ErrorReport::new("INVALID_ARGUMENT", "a field")
        };
        assert_eq!(
            report.to_lines(),
            ["INVALID_PARAMS: a field", "  cwd: must not be empty", "  try again in 1.5 s"]
        );
        assert_eq!(ErrorReport::new("UNAVAILABLE", "m").to_lines(), ["UNAVAILABLE: m"]);
    }

    #[test]
    fn embedded_daemon_that_fails_to_start_is_reported() {
        let report = CliError::Embedded("no disk".into()).to_report().unwrap();
        assert_eq!(
            report.to_lines(),
            ["FAILED_PRECONDITION: no daemon could be started for this call: no disk"]
        );
    }

    #[test]
    fn local_files_are_distinguished_from_workspace_files() {
        let missing = LocalError::file("a".as_ref(), &io::ErrorKind::NotFound.into());
        let report = CliError::Local(missing).to_report().unwrap();
        assert!(report.to_lines()[0].starts_with("FILE_NOT_FOUND: the local file \"a\" "));
        assert_eq!(report.to_json()["code"], "NOT_FOUND");
        assert_eq!(report.to_json()["metadata"]["local_path"], "a");

        let full = CliError::Output(io::ErrorKind::StorageFull.into());
        assert_eq!(full.to_report().unwrap().reason.as_deref(), Some("NO_SPACE"));
    }

    #[test]
    fn broken_pipe_is_not_reported() {
        let gone = CliError::Output(io::ErrorKind::BrokenPipe.into());
        assert_eq!(gone.to_report(), None);
        assert!(CliError::Output(io::ErrorKind::StorageFull.into()).to_report().is_some());
    }
}
