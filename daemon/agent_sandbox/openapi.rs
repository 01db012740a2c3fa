//! `GET /openapi.json`: an OpenAPI 3.1 document of the REST API.

use std::sync::LazyLock;

use axum::{Router, routing::get};
use http::{HeaderName, HeaderValue, StatusCode, header::CONTENT_TYPE};
use serde_json::Value;

use super::rest_context::RestContext;

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

async fn send() -> Result<([(HeaderName, HeaderValue); 1], &'static str), StatusCode> {
    let document = DOCUMENT.as_deref().ok_or(StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], document))
}
