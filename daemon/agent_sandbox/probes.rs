//! `GET /v1/health`, which needs no key, and `GET /v1/metadata`.

use std::collections::BTreeMap;

use axum::{Json, Router, extract::State, routing::get};
use http::StatusCode;
use serde_json::{Value, json};

use super::{api_error::ApiError, rest_context::RestContext};
use crate::daemon::http::{
    GrpcCaller,
    health::{READINESS, is_serving},
};

pub(super) fn health_route() -> Router<RestContext> {
    Router::new().route("/v1/health", get(health))
}

pub(super) fn metadata_route() -> Router<RestContext> {
    Router::new().route("/v1/metadata", get(metadata))
}

async fn health(
    State(context): State<RestContext>,
    caller: GrpcCaller,
) -> Result<Json<Value>, ApiError> {
    if !is_serving(context.grpc, &caller, READINESS).await? {
        let text = "the daemon is not serving: it is shutting down, or cannot run commands";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", text));
    }
    let uptime_seconds = context.started.elapsed().as_secs();
    Ok(Json(json!({ "status": "ok", "uptime_seconds": uptime_seconds })))
}

async fn metadata(State(context): State<RestContext>) -> Json<Value> {
    let env: &BTreeMap<String, String> = &context.metadata;
    Json(json!({ "env": env }))
}
