//! Requests, and the form of an error status.

use std::{collections::HashMap, time::Duration};

use jig::api::v1::RunRequest;
use tonic::{Code, Request, Status};
use tonic_types::{ErrorDetail, FieldViolation, StatusExt as _};

/// Largest message that tests send or take, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The parts of an error status, in the form of the contract.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: String,
    /// The text for people.
    pub(crate) message: String,
    /// The variable parts of the message.
    pub(crate) metadata: HashMap<String, String>,
    /// The fields that break their rules, with descriptions.
    pub(crate) violations: Vec<FieldViolation>,
    /// The delay of `RetryInfo`, where a retry can help.
    pub(crate) retry_after: Option<Duration>,
}

impl Refusal {
    /// Reads an error status. Fails unless it has exactly one `ErrorInfo`, of the domain `jig.v1`,
    /// and the code that belongs to its reason.
    pub(crate) fn from_status(status: &Status) -> Self {
        let details = status.get_error_details_vec();
        let mut infos = details.iter().filter_map(|detail| match detail {
            ErrorDetail::ErrorInfo(info) => Some(info),
            _ => None,
        });
        let (Some(info), None) = (infos.next(), infos.next()) else {
            panic!("expected exactly one ErrorInfo: {}", describe_status(status));
        };

        assert_eq!(info.domain, "jig.v1", "{}", describe_status(status));
        assert_eq!(status.code(), code_of_reason(&info.reason), "{}", describe_status(status));
        assert!(!status.message().is_empty(), "{}", describe_status(status));

        let violations = status.get_details_bad_request().map(|bad| bad.field_violations);
        Self {
            reason: info.reason.clone(),
            message: status.message().to_owned(),
            metadata: info.metadata.clone(),
            violations: violations.unwrap_or_default(),
            retry_after: status.get_details_retry_info().and_then(|info| info.retry_delay),
        }
    }

    /// Names of the invalid fields, sorted.
    pub(crate) fn invalid_fields(&self) -> Vec<&str> {
        let violations = self.violations.iter();
        let mut fields: Vec<&str> = violations.map(|violation| violation.field.as_str()).collect();
        fields.sort_unstable();
        fields
    }
}

/// A request that runs a command line with the shell.
pub(crate) fn shell(command: &str) -> RunRequest {
    RunRequest { command: Some(command.to_owned()), ..RunRequest::default() }
}

/// A request that runs a program with arguments.
pub(crate) fn argv(words: &[&str]) -> RunRequest {
    RunRequest {
        argv: words.iter().map(|word| (*word).to_owned()).collect(),
        ..RunRequest::default()
    }
}

/// A request with one metadata entry, such as its workspace or session.
pub(crate) fn with_metadata<T>(key: &'static str, value: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(key, value.parse().unwrap());
    request
}

/// Code, message and details of a status, for a failed test's message.
pub(crate) fn describe_status(status: &Status) -> String {
    format!("{:?}: {} {:?}", status.code(), status.message(), status.get_error_details_vec())
}

/// The gRPC code that the contract assigns to a reason.
fn code_of_reason(reason: &str) -> Code {
    match reason {
        "INVALID_PARAMS" | "INVALID_ARCHIVE" | "INVALID_GLOB" | "INVALID_REGEX" => {
            Code::InvalidArgument
        }
        "PATH_ESCAPE" | "SYMLINK_BLOCKED" | "PERMISSION_DENIED" | "POLICY_DENIED"
        | "EGRESS_DENIED" | "APPROVAL_DENIED" | "FORBIDDEN" => Code::PermissionDenied,
        "UNAUTHENTICATED" => Code::Unauthenticated,
        "FILE_NOT_FOUND"
        | "DIRECTORY_NOT_FOUND"
        | "COMMAND_NOT_FOUND"
        | "UNKNOWN_WORKSPACE"
        | "ARTIFACT_NOT_FOUND"
        | "UPLOAD_NOT_FOUND"
        | "CELL_NOT_FOUND"
        | "APPROVAL_NOT_FOUND"
        | "RULE_NOT_FOUND"
        | "PROCESS_NOT_FOUND"
        | "UNKNOWN_TOOL"
        | "JOB_NOT_FOUND" => Code::NotFound,
        "FILE_EXISTS" | "REQUEST_ID_REUSED" | "WORKSPACE_EXISTS" => Code::AlreadyExists,
        "STALE_FILE" | "CHECKSUM_MISMATCH" | "DAEMON_LOST" | "CONNECTION_RESET" => Code::Aborted,
        "NOT_A_FILE"
        | "NOT_A_DIRECTORY"
        | "BINARY_FILE"
        | "ARCHIVE_TOO_LARGE"
        | "FILE_TOO_LARGE"
        | "LINE_RANGE_INVALID"
        | "STRING_NOT_FOUND"
        | "STRING_NOT_UNIQUE"
        | "PATCH_PARSE_ERROR"
        | "PATCH_HUNK_FAIL"
        | "DIRECTORY_NOT_EMPTY"
        | "COMMAND_NOT_EXECUTABLE"
        | "TOOL_DISABLED"
        | "APPROVAL_DECIDED"
        | "NO_COMMAND_HISTORY"
        | "PROCESS_ENDED"
        | "PORT_REFUSED"
        | "FORWARDING_UNAVAILABLE"
        | "STDIN_CLOSED"
        | "WORKSPACES_DISABLED"
        | "SANDBOX_UNAVAILABLE" => Code::FailedPrecondition,
        "TIMEOUT" => Code::DeadlineExceeded,
        "RESOURCE_EXHAUSTED" | "NO_SPACE" => Code::ResourceExhausted,
        "SANDBOX_ERROR" | "SEARCH_ERROR" | "FETCH_ERROR" | "INTERNAL" => Code::Internal,
        "DRAINING" | "FLEET_UNAVAILABLE" | "STATE_LOST" => Code::Unavailable,
        _ => panic!("the contract has no reason {reason}"),
    }
}
