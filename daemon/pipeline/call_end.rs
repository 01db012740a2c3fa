//! What the log and the span of a call say of its end.

use std::sync::Arc;

use super::records;
use crate::daemon::{error::Error, telemetry::spans::OtelSpan, tool::ToolOutput};

/// Writes a line for the log of how a call ended.
pub(super) fn log_outcome<R>(result: &Result<ToolOutput<R>, Error>) {
    match result {
        Ok(_) => tracing::debug!("call finished"),
        Err(error) => tracing::debug!(reason = error.reason.name(), %error, "call failed"),
    }
}

/// Ends the span of a call.
pub(super) fn end_span<R>(span: Arc<OtelSpan>, result: &Result<ToolOutput<R>, Error>) {
    let failure = match result {
        Ok(done) => done.error_type.map(|kind| (kind, kind)),
        Err(error) => Some((error.reason.name(), records::redacted_message(error))),
    };
    if let Some((error_type, description)) = failure {
        span.fail_with(error_type, description);
    }
    // The last holder ends it by dropping it.
    drop(span);
}
