//! `GET /healthz` and `GET /readyz`, for probes that know no gRPC: the health service's `liveness`
//! and `readiness`.

use axum::{Router, extract::State, routing::get};
use http::StatusCode;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::grpc_caller::{GrpcCaller, HttpService};

pub(crate) fn routes() -> Router<HttpService> {
    Router::new()
        .route("/healthz", get(async |grpc, caller| check(grpc, caller, "liveness").await))
        .route("/readyz", get(async |grpc, caller| check(grpc, caller, "readiness").await))
}

async fn check(
    State(grpc): State<HttpService>,
    caller: GrpcCaller,
    service: &str,
) -> (StatusCode, &'static str) {
    let request = caller.request(HealthCheckRequest { service: service.to_owned() });
    let mut client = HealthClient::with_origin(grpc, caller.origin.clone());
    match client.check(request).await.map(|response| response.into_inner().status()) {
        Ok(ServingStatus::Serving) => (StatusCode::OK, "ok\n"),
        Ok(_) => (StatusCode::SERVICE_UNAVAILABLE, "not serving\n"),
        Err(_too_many) => (StatusCode::TOO_MANY_REQUESTS, "too many health checks\n"),
    }
}
