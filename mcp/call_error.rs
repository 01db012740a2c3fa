//! gRPC statuses as errors of MCP.

use rmcp::{
    ErrorData,
    model::{CallToolResult, ContentBlock},
};
use serde_json::{Map, Value, json};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Returns the error of a request that the daemon has rejected.
pub(super) fn to_protocol_error(status: &Status) -> ErrorData {
    let data = Some(error_data(status));
    let message = status.message().to_owned();
    let code = status.code();
    if matches!(code, Code::InvalidArgument | Code::NotFound | Code::AlreadyExists) {
        ErrorData::invalid_params(message, data)
    } else if matches!(code, Code::Unauthenticated | Code::PermissionDenied) {
        ErrorData::invalid_request(message, data)
    } else {
        ErrorData::internal_error(message, data)
    }
}

/// Returns the outcome of a tool call that the daemon has rejected.
///
/// A model can act on some errors, such as a retry delay. They are results, because clients hide
/// errors of the protocol from the model.
pub(super) fn to_call_outcome(status: &Status) -> Result<CallToolResult, ErrorData> {
    let is_retriable = matches!(
        status.code(),
        Code::Aborted
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::Unavailable
    );
    if !is_retriable {
        return Err(to_protocol_error(status));
    }

    let data = error_data(status);
    let reason = data.get("reason").and_then(Value::as_str).unwrap_or("UNKNOWN");
    let text = match data.get("retryAfterMs") {
        Some(delay) => format!("{reason}: {} (retry after {delay} ms)", status.message()),
        None => format!("{reason}: {}", status.message()),
    };
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    result.meta = Some(Map::from_iter([("jig-error".to_owned(), data)]).into());
    Ok(result)
}

/// Returns the reason, the values and the rejected fields of an error.
fn error_data(status: &Status) -> Value {
    let details = status.get_error_details();
    let mut data = Map::new();
    if let Some(info) = details.error_info() {
        data.insert("reason".to_owned(), info.reason.clone().into());
        if !info.metadata.is_empty() {
            data.insert("metadata".to_owned(), json!(info.metadata));
        }
    }
    if let Some(delay) = details.retry_info().and_then(|retry| retry.retry_delay) {
        let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        data.insert("retryAfterMs".to_owned(), delay.into());
    }
    if let Some(request) = details.bad_request() {
        let fields = request.field_violations.iter();
        let fields =
            fields.map(|field| json!({ "field": field.field, "problem": field.description }));
        data.insert("fields".to_owned(), fields.collect());
    }
    Value::Object(data)
}
