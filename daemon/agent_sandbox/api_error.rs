//! Errors of the REST API: `{"code", "message"}`, as the standard defines them.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header::RETRY_AFTER};
use serde_json::json;
use tonic::{Status, body::Body};
use tonic_types::StatusExt as _;

use crate::daemon::{
    error::Reason,
    http::{code_name, http_status},
};

/// An error of the REST API.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: String,
    message: String,
    retry_after_sec: Option<u64>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), message: message.into(), retry_after_sec: None }
    }

    /// The request itself is wrong.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", message)
    }

    /// The error with another HTTP status, if one is given.
    pub(super) fn with_http_status(self, status: Option<StatusCode>) -> Self {
        Self { status: status.unwrap_or(self.status), ..self }
    }

    pub(super) fn into_http(self) -> http::Response<Body> {
        self.into_response().map(Body::new)
    }
}

/// The error of a call. Its code is the name of the gRPC code.
impl From<Status> for ApiError {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let reason = details.error_info().map(|info| &*info.reason);
        let (http_status, code) = if reason == Some(Reason::DirectoryNotEmpty.name()) {
            (StatusCode::CONFLICT, "CONFLICT".to_owned())
        } else {
            let code = status.code();
            (http_status(code), code_name(code).to_ascii_uppercase())
        };
        let retry_delay = details.retry_info().and_then(|info| info.retry_delay);
        Self {
            retry_after_sec: retry_delay.map(|delay| delay.as_secs().max(1)),
            ..Self::new(http_status, &code, status.message())
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({ "code": self.code, "message": self.message });
        let retry_after =
            self.retry_after_sec.map(|seconds| (RETRY_AFTER, HeaderValue::from(seconds)));
        (self.status, retry_after.into_iter().collect::<HeaderMap>(), Json(body)).into_response()
    }
}

/// The response to a request for a path that the API does not have.
pub(super) async fn unknown_path(uri: Uri) -> ApiError {
    let message =
        format!("there is no {}: the API has /v1/files, /v1/health and /v1/metadata", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "NOT_FOUND", message)
}

/// The response to a request with a method that its path does not take.
pub(super) async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}: see the header allow", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "UNIMPLEMENTED", message)
}
