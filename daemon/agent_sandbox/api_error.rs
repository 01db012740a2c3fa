//! Errors of the REST API: `{"code", "message"}`, as the standard defines them.

use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode, Uri};
use serde_json::json;
use tonic::{Status, body::Body};
use tonic_types::StatusExt as _;

use crate::daemon::{
    error::{Error, Reason},
    grpc::status::to_status,
    http::{BodyError, code_name, http_status, json_error, retry_after_sec},
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

    /// A condition in the headers of the request is false.
    pub(super) fn failed_condition(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, "FAILED_PRECONDITION", message)
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
        Self {
            retry_after_sec: retry_after_sec(&details),
            ..Self::new(http_status, &code, status.message())
        }
    }
}

impl From<&Error> for ApiError {
    fn from(error: &Error) -> Self {
        to_status(error).into()
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        Self::from(&error.error).with_http_status(error.http_status)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({ "code": self.code, "message": self.message });
        json_error(self.status, self.retry_after_sec, body)
    }
}

/// The response to a request for a path that the API does not have.
pub(super) async fn unknown_path(uri: Uri) -> ApiError {
    let message = format!("there is no {}: /openapi.json lists all paths", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "NOT_FOUND", message)
}

/// The response to a request with a method that its path does not take.
pub(super) async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}: see the header allow", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "UNIMPLEMENTED", message)
}
