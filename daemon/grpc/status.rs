//! Errors as gRPC statuses, each with exactly one `google.rpc.ErrorInfo`.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};

use crate::daemon::error::{Error, MAX_VIOLATIONS, Reason, truncate_message};

/// Domain of `ErrorInfo`.
const ERROR_DOMAIN: &str = "jig.v1";

/// Converts an error to a status.
pub(crate) fn to_status(error: &Error) -> Status {
    status_with_code(error.reason.code(), error)
}

/// Whether a status has a reason.
pub(crate) fn has_reason(status: &Status, reason: Reason) -> bool {
    status.get_details_error_info().is_some_and(|info| info.reason == reason.name())
}

/// Converts an error to a status with a code that gRPC itself defines for the situation.
pub(crate) fn status_with_code(code: Code, error: &Error) -> Status {
    let mut details = ErrorDetails::new();
    let metadata: HashMap<_, _> = error
        .metadata
        .iter()
        .map(|(name, value)| (name.clone().into_owned(), truncate_message(value.as_str())))
        .collect();
    details.set_error_info(error.reason.name(), ERROR_DOMAIN, metadata);

    if !error.violations.is_empty() {
        let violations = error.violations.iter().take(MAX_VIOLATIONS);
        let violations: Vec<_> = violations
            .map(|violation| {
                FieldViolation::new(violation.field.as_str(), violation.description.as_str())
            })
            .collect();
        details.set_bad_request(violations);
    }
    if let Some(delay) = error.retry_after {
        details.set_retry_info(Some(delay));
    }

    Status::with_error_details(code, truncate_message(&*error.message), details)
}

/// Converts an error to a status. Logs an internal error under the call id.
pub(crate) fn to_logged_status(error: &Error, call_id: &str) -> Status {
    if error.reason == Reason::Internal {
        let cause = error.cause.as_ref().map(ToString::to_string);
        tracing::error!(call_id, cause, error = %error, "internal error in a call");
    }
    to_status(error)
}
