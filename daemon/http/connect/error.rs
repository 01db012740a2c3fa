//! Errors of the Connect protocol, as JSON.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use http::StatusCode;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::{Value as Json, json};
use std::sync::LazyLock;
use tonic::{Code, Status};

/// Types of the details of errors.
static DETAIL_TYPES: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(tonic_types::pb::FILE_DESCRIPTOR_SET).ok());

/// The error as the protocol's JSON: its code, its message, and its details in protobuf and in JSON.
pub(super) fn error_json(status: &Status) -> Json {
    let mut error = json!({ "code": code_name(status.code()) });
    if !status.message().is_empty() {
        error["message"] = status.message().into();
    }
    let details = tonic_types::pb::Status::decode(status.details());
    let details: Vec<_> = details.unwrap_or_default().details.iter().map(detail_json).collect();
    if !details.is_empty() {
        error["details"] = details.into();
    }
    error
}

fn detail_json(detail: &prost_types::Any) -> Json {
    let name = detail.type_url.rsplit('/').next().unwrap_or_default();
    let mut json = json!({ "type": name, "value": STANDARD_NO_PAD.encode(&detail.value) });
    let descriptor = DETAIL_TYPES.as_ref().and_then(|types| types.get_message_by_name(name));
    let message = descriptor
        .and_then(|descriptor| DynamicMessage::decode(descriptor, &*detail.value).ok())
        .and_then(|message| serde_json::to_value(message).ok());
    if let Some(message) = message {
        json["debug"] = message;
    }
    json
}

/// The name of a code, in lower case.
pub(crate) fn code_name(code: Code) -> &'static str {
    match code {
        // Never an error. The protocol has no name for it.
        Code::Ok | Code::Unknown => "unknown",
        Code::Cancelled => "canceled",
        Code::InvalidArgument => "invalid_argument",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => "failed_precondition",
        Code::Aborted => "aborted",
        Code::OutOfRange => "out_of_range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::DataLoss => "data_loss",
        Code::Unauthenticated => "unauthenticated",
    }
}

/// The HTTP status of a unary call that failed.
pub(crate) fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}
