//! Errors of the REST routes: `{"ok": false, "error": {"code", "message", "details"}}`, as document
//! E defines them.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header::RETRY_AFTER};
use serde_json::{Map, Value, json};
use tonic::{Code, Status, body::Body};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::{body_buffer::BodyError, connect::http_status};
use crate::daemon::{error::Error, grpc::status::to_status};

/// An error of a REST route.
#[derive(Debug)]
pub(super) struct RestError {
    status: StatusCode,
    code: String,
    message: String,
    details: Map<String, Value>,
    retry_after_sec: Option<u64>,
}

impl RestError {
    /// The request itself is wrong.
    pub(super) fn invalid(message: impl Into<String>, details: Map<String, Value>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            code: "VALIDATION_ERROR".to_owned(),
            message: message.into(),
            details,
            retry_after_sec: None,
        }
    }

    pub(super) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.to_owned(),
            message: message.into(),
            details: Map::new(),
            retry_after_sec: None,
        }
    }

    /// The error as JSON.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "ok": false,
            "error": { "code": self.code, "message": self.message, "details": self.details },
        })
    }
}

/// The error of a call. The document names the code of invalid parameters; other codes are reasons.
impl From<Status> for RestError {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let violations = details.bad_request().map(|request| &*request.field_violations);

        let error = match (status.code(), violations) {
            (Code::InvalidArgument, Some(violations)) if !violations.is_empty() => {
                let texts: Vec<_> = violations
                    .iter()
                    .map(|violation| format!("'{}' {}", violation.field, violation.description))
                    .collect();
                let fields = violations
                    .iter()
                    .map(|violation| (violation.field.clone(), json!(violation.description)));
                Self::invalid(texts.join("; "), fields.collect())
            }
            (Code::InvalidArgument, _) => Self::invalid(status.message(), Map::new()),
            (code, _) => {
                let info = details.error_info();
                let reason = info.map_or("UNKNOWN", |info| &*info.reason);
                let metadata = info.into_iter().flat_map(|info| &info.metadata);
                Self {
                    details: metadata.map(|(name, value)| (name.clone(), json!(value))).collect(),
                    ..Self::new(http_status(code), reason, status.message())
                }
            }
        };
        Self { retry_after_sec: retry_after_sec(&details), ..error }
    }
}

impl From<&Error> for RestError {
    fn from(error: &Error) -> Self {
        to_status(error).into()
    }
}

impl From<BodyError> for RestError {
    fn from(error: BodyError) -> Self {
        let status = error.http_status;
        let rest = Self::from(&error.error);
        match status {
            Some(StatusCode::PAYLOAD_TOO_LARGE) => Self {
                status: StatusCode::PAYLOAD_TOO_LARGE,
                code: "PAYLOAD_TOO_LARGE".to_owned(),
                ..rest
            },
            Some(status) => Self { status, ..rest },
            None => rest,
        }
    }
}

impl IntoResponse for RestError {
    fn into_response(self) -> Response {
        json_error(self.status, self.retry_after_sec, self.to_json())
    }
}

/// Seconds after which a caller should try again, at least one.
pub(crate) fn retry_after_sec(details: &ErrorDetails) -> Option<u64> {
    let delay = details.retry_info()?.retry_delay?;
    Some(delay.as_secs().max(1))
}

/// A response with an error as JSON.
pub(crate) fn json_error(
    status: StatusCode,
    retry_after_sec: Option<u64>,
    body: Value,
) -> Response {
    let retry_after = retry_after_sec.map(|seconds| (RETRY_AFTER, HeaderValue::from(seconds)));
    (status, retry_after.into_iter().collect::<HeaderMap>(), Json(body)).into_response()
}

/// The response to a request that reaches no way in.
pub(crate) fn rejection(error: &Error) -> http::Response<Body> {
    RestError::from(error).into_response().map(Body::new)
}

/// The response to a request for a path that no route has.
pub(super) async fn unknown_path(uri: Uri) -> RestError {
    let message = format!("there is no {}: docs/http.md lists all paths", uri.path());
    RestError::new(StatusCode::NOT_FOUND, "NOT_FOUND", message)
}

/// The response to a request with a method that its path does not take.
pub(super) async fn wrong_method(method: Method, uri: Uri) -> RestError {
    let message = format!("{} does not take {method}: see the header allow", uri.path());
    RestError::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message)
}
