//! Errors as gRPC statuses, each with exactly one `google.rpc.ErrorInfo`.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};

use crate::daemon::error::{Error, MAX_VIOLATIONS, Reason};

/// Domain of `ErrorInfo`.
const ERROR_DOMAIN: &str = "jig.v1";
/// Longest message: it travels in a trailer, and clients accept 8 KiB of those.
const MAX_MESSAGE_BYTES: usize = 2048;

/// The status that tells `error`.
pub(crate) fn to_status(error: &Error) -> Status {
    status_with_code(grpc_code(error.reason), error)
}

/// The status that tells `error` where gRPC itself has a code for what happened.
pub(crate) fn status_with_code(code: Code, error: &Error) -> Status {
    let mut details = ErrorDetails::new();
    let metadata: HashMap<_, _> = error
        .metadata
        .iter()
        .map(|(name, value)| (name.clone().into_owned(), truncate_message(value)))
        .collect();
    details.set_error_info(error.reason.name(), ERROR_DOMAIN, metadata);
    if !error.violations.is_empty() {
        let violations = error.violations.iter().take(MAX_VIOLATIONS);
        let violations: Vec<_> = violations
            .map(|violation| {
                FieldViolation::new(
                    truncate_message(&violation.field),
                    truncate_message(&violation.description),
                )
            })
            .collect();
        details.set_bad_request(violations);
    }
    if let Some(wait) = error.retry_after {
        details.set_retry_info(Some(wait));
    }
    Status::with_error_details(code, truncate_message(&error.message), details)
}

/// The status that tells `error` to the caller of `call_id`. A defect is logged under that id.
pub(crate) fn to_logged_status(error: &Error, call_id: &str) -> Status {
    if error.reason == Reason::Internal {
        let cause = error.cause.as_ref().map(ToString::to_string);
        tracing::error!(call_id, cause, error = %error, "a call failed by a defect");
    }
    to_status(error)
}

/// The code of a reason. Each arm says what a caller should do.
pub(crate) fn grpc_code(reason: Reason) -> Code {
    match reason {
        // Mend the request.
        Reason::InvalidParams | Reason::InvalidGlob | Reason::InvalidRegex => Code::InvalidArgument,
        // Ask for something else, or ask the operator.
        Reason::PathEscape
        | Reason::SymlinkBlocked
        | Reason::PermissionDenied
        | Reason::PolicyDenied
        | Reason::EgressDenied
        | Reason::ApprovalDenied
        | Reason::Forbidden => Code::PermissionDenied,
        // Show a key.
        Reason::Unauthenticated => Code::Unauthenticated,
        // Look for what is there.
        Reason::FileNotFound
        | Reason::DirectoryNotFound
        | Reason::CommandNotFound
        | Reason::UnknownTool
        | Reason::UnknownWorkspace
        | Reason::ArtifactNotFound
        | Reason::UploadNotFound
        | Reason::CellNotFound
        | Reason::ApprovalNotFound
        | Reason::RuleNotFound
        | Reason::ProcessNotFound
        | Reason::JobNotFound => Code::NotFound,
        Reason::FileExists | Reason::RequestIdReused => Code::AlreadyExists,
        // Read again, and decide anew.
        Reason::StaleFile | Reason::ChecksumMismatch | Reason::DaemonLost => Code::Aborted,
        // Change the state of the workspace or the daemon first.
        Reason::NotAFile
        | Reason::NotADirectory
        | Reason::BinaryFile
        | Reason::FileTooLarge
        | Reason::LineRangeInvalid
        | Reason::StringNotFound
        | Reason::StringNotUnique
        | Reason::PatchParseError
        | Reason::PatchHunkFail
        | Reason::DirectoryNotEmpty
        | Reason::CommandNotExecutable
        | Reason::ToolDisabled
        | Reason::ApprovalDecided
        | Reason::NoCommandHistory
        | Reason::ProcessEnded
        | Reason::StdinClosed
        | Reason::SandboxUnavailable => Code::FailedPrecondition,
        // Take more time, or ask for less.
        Reason::Timeout => Code::DeadlineExceeded,
        // Wait, then try again.
        Reason::ResourceExhausted | Reason::NoSpace | Reason::TooManyFiles => {
            Code::ResourceExhausted
        }
        // Try elsewhere, or later.
        Reason::Draining | Reason::StateLost => Code::Unavailable,
        // Tell the operator, or look at what was fetched from.
        Reason::SandboxError | Reason::FetchError | Reason::Internal => Code::Internal,
    }
}

fn truncate_message(text: &str) -> String {
    if text.len() <= MAX_MESSAGE_BYTES {
        return text.to_owned();
    }
    let mut end = MAX_MESSAGE_BYTES;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{} … ({} bytes)", text.get(..end).unwrap_or_default(), text.len())
}
