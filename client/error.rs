//! [`CallError`]: why a call failed, read from its gRPC status and error details.

use std::{collections::BTreeMap, error::Error as StdError, fmt, iter::successors, time::Duration};

use tonic::{Code, Status, metadata::MetadataMap};
use tonic_types::StatusExt as _;

use crate::api::reason::code_name;

/// A failed call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CallError {
    /// Status code.
    pub code: Code,
    /// Reason as the contract names it (`FILE_NOT_FOUND`). `None` if the error did not come from
    /// the daemon itself.
    pub reason: Option<String>,
    /// What happened and what to do about it.
    pub message: String,
    /// Request fields that break their rules.
    pub violations: Vec<FieldViolation>,
    /// Variable parts of the message, by name.
    pub metadata: BTreeMap<String, String>,
    /// Delay before a retry, if a retry can succeed.
    pub retry_after: Option<Duration>,
    /// Id of the call, as in the daemon's log.
    pub call_id: Option<String>,
}

/// A request field that breaks its rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FieldViolation {
    /// Path of the field, for example `argv[3]`.
    pub field: String,
    /// The problem, and the rule.
    pub description: String,
}

impl CallError {
    /// Returns the reason, or the name of the status code if there is none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.reason.as_deref().unwrap_or(self.code_name())
    }

    /// Returns the status code as gRPC spells it, for example `NOT_FOUND`.
    #[must_use]
    pub fn code_name(&self) -> &'static str {
        code_name(self.code)
    }

    /// The client's deadline passed. Same code and reason as from the daemon.
    pub(super) fn deadline_exceeded(time: Duration) -> Self {
        Self {
            reason: Some("TIMEOUT".to_owned()),
            ..Self::local(
                Code::DeadlineExceeded,
                format!("the deadline of {} s passed", time.as_secs_f64()),
            )
        }
    }

    /// The file changed during the read. Same code and reason as from the daemon.
    pub(super) fn stale_file(path: &str) -> Self {
        Self {
            reason: Some("STALE_FILE".to_owned()),
            ..Self::local(
                Code::Aborted,
                format!("{path:?} changed while it was read: read it again"),
            )
        }
    }

    /// An error that the client detects, for example a response that violates the contract.
    pub(super) fn local(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: None,
            message: message.into(),
            violations: Vec::new(),
            metadata: BTreeMap::new(),
            retry_after: None,
            call_id: None,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.message)
    }
}

impl StdError for CallError {}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        if is_connection_lost(&status) {
            let cause = status
                .source()
                .and_then(|source| successors(Some(source), |&error| error.source()).last())
                .map_or_else(|| status.message().to_owned(), ToString::to_string);
            return Self::local(
                Code::Unavailable,
                format!("the connection to the daemon was lost: {cause}"),
            );
        }

        let details = status.get_error_details();
        let info = details.error_info();

        Self {
            code: status.code(),
            reason: info.map(|info| info.reason.clone()),
            message: status.message().to_owned(),
            violations: details
                .bad_request()
                .into_iter()
                .flat_map(|request| &request.field_violations)
                .map(|violation| FieldViolation {
                    field: violation.field.clone(),
                    description: violation.description.clone(),
                })
                .collect(),
            metadata: info.into_iter().flat_map(|info| info.metadata.clone()).collect(),
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
            call_id: call_id_of(status.metadata()),
        }
    }
}

/// Reads the call id from the metadata of a response or status.
pub(super) fn call_id_of(metadata: &MetadataMap) -> Option<String> {
    let id = metadata.get("jig-call-id")?.to_str().ok()?;
    Some(id.to_owned())
}

/// Returns whether tonic made up the status because the connection ended. Its code is UNKNOWN,
/// although gRPC specifies UNAVAILABLE, after which a caller may retry.
fn is_connection_lost(status: &Status) -> bool {
    status.code() == Code::Unknown
        && (status.source().is_some() || status.message().starts_with("Service was not ready"))
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, io, sync::Arc};

    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn details_are_read() {
        let mut details = ErrorDetails::with_error_info(
            "INVALID_PARAMS",
            "jig.v1",
            HashMap::from([("path".to_owned(), "a/b".to_owned())]),
        );
        details.add_bad_request_violation("cwd", "must not be empty");
        details.add_bad_request_violation("argv[3]", "must not hold NUL");
        details.set_retry_info(Some(Duration::from_millis(250)));
        let mut metadata = MetadataMap::new();
        metadata.insert("jig-call-id", "01ABC".parse().unwrap());
        let status = Status::with_error_details_and_metadata(
            Code::InvalidArgument,
            "two fields",
            details,
            metadata,
        );

        let error = CallError::from(status);
        assert_eq!(error.to_string(), "INVALID_PARAMS: two fields");
        assert_eq!(error.code_name(), "INVALID_ARGUMENT");
        assert_eq!(error.metadata["path"], "a/b");
        assert_eq!(error.retry_after, Some(Duration::from_millis(250)));
        assert_eq!(error.call_id.as_deref(), Some("01ABC"));
        let fields: Vec<_> = error.violations.iter().map(|v| v.field.as_str()).collect();
        assert_eq!(fields, ["cwd", "argv[3]"]);
    }

    #[test]
    fn status_without_details_keeps_its_code() {
        let error = CallError::from(Status::unimplemented("no such method"));
        assert_eq!(error.to_string(), "UNIMPLEMENTED: no such method");
        assert_eq!(error.reason, None);
    }

    #[test]
    fn malformed_details_are_ignored() {
        let status = Status::with_details(Code::NotFound, "gone", vec![0xff, 0xff].into());
        assert_eq!(CallError::from(status).to_string(), "NOT_FOUND: gone");
    }

    #[test]
    fn lost_connection_is_unavailable() {
        let mut status = Status::unknown("transport error");
        status.set_source(Arc::new(io::Error::from(io::ErrorKind::BrokenPipe)));
        let error = CallError::from(status);
        assert_eq!(error.code, Code::Unavailable);
        assert!(error.message.ends_with("broken pipe"), "{error}");
    }
}
