//! `GET /healthz` and `GET /readyz`, for probes that know no gRPC: the health service's `liveness`
//! and `readiness`.

use axum::{Router, extract::State, routing::get};
use http::StatusCode;
use tonic::Status;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::grpc_caller::{GrpcCaller, HttpService};

/// Name for a probe that restarts the daemon.
pub(crate) const LIVENESS: &str = "liveness";
/// Name for a probe that routes calls to other daemons.
pub(crate) const READINESS: &str = "readiness";

pub(crate) fn routes() -> Router<HttpService> {
    Router::new()
        .route("/healthz", get(async |grpc, caller| check(grpc, caller, LIVENESS).await))
        .route("/readyz", get(async |grpc, caller| check(grpc, caller, READINESS).await))
}

async fn check(
    State(grpc): State<HttpService>,
    caller: GrpcCaller,
    service: &str,
) -> (StatusCode, &'static str) {
    match is_serving(grpc, &caller, service).await {
        Ok(true) => (StatusCode::OK, "ok\n"),
        Ok(false) => (StatusCode::SERVICE_UNAVAILABLE, "not serving\n"),
        Err(_too_many) => (StatusCode::TOO_MANY_REQUESTS, "too many health checks\n"),
    }
}

/// Asks the health service whether `service` is serving, e.g. `readiness`.
///
/// # Errors
///
/// Fails if too many checks are running.
pub(crate) async fn is_serving(
    grpc: HttpService,
    caller: &GrpcCaller,
    service: &str,
) -> Result<bool, Status> {
    let request = caller.request(HealthCheckRequest { service: service.to_owned() });
    let mut client = HealthClient::with_origin(grpc, caller.origin.clone());
    let response = client.check(request).await?.into_inner();
    Ok(response.status() == ServingStatus::Serving)
}
