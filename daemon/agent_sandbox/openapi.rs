//! `GET /openapi.json`: an OpenAPI 3.1 document of the REST API.

use std::sync::LazyLock;

use axum::{Router, response::Response, routing::get};
use serde_json::Value;

use super::rest_context::RestContext;
use crate::daemon::http::document_response;

/// The document without its version.
const PATHS: &str = include_str!("openapi.json");

/// The document. It is the same for all callers.
static DOCUMENT: LazyLock<Option<String>> = LazyLock::new(|| {
    let mut document: Value = serde_json::from_str(PATHS).ok()?;
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    Some(document.to_string())
});

pub(super) fn route() -> Router<RestContext> {
    Router::new().route("/openapi.json", get(send))
}

async fn send() -> Response {
    document_response(DOCUMENT.as_deref())
}
