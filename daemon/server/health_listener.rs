//! What a listener for health checks alone serves. Other machines may reach it without TLS.

use axum::Router;
use http::{Request, Response, StatusCode, header::AUTHORIZATION};
use tonic::{Status, body::Body};
use tower::{ServiceExt as _, service_fn};

use super::auth::{API_KEY_HEADER, PUBLIC_METHOD_PREFIX};
use crate::daemon::http::{GrpcVariant, HttpService, health, is_native_grpc};

const NO_OTHER_SERVICE: &str = "this address serves health checks only";

/// Serves the health checks of `grpc`, also as HTTP, and nothing else.
pub(super) fn health_only(grpc: HttpService) -> HttpService {
    let probes: Router = health::routes().with_state(grpc.clone());
    HttpService::new(service_fn(move |mut request: Request<Body>| {
        // A key that was sent here by mistake must not be evaluated.
        request.headers_mut().remove(AUTHORIZATION);
        request.headers_mut().remove(API_KEY_HEADER);
        let (grpc, probes) = (grpc.clone(), probes.clone());
        async move {
            if is_health_call(&request) {
                return grpc.oneshot(request).await;
            }
            if GrpcVariant::of(request.headers()).is_some() {
                return Ok(Status::unimplemented(NO_OTHER_SERVICE).into_http());
            }
            let response: Response<axum::body::Body> = probes.oneshot(request).await?;
            let response = response.map(Body::new);
            if response.status() == StatusCode::NOT_FOUND {
                return Ok(response.map(|_| Body::new(NO_OTHER_SERVICE.to_owned())));
            }
            Ok(response)
        }
    }))
}

fn is_health_call(request: &Request<Body>) -> bool {
    let path = request.uri().path().trim_start_matches('/');
    path.starts_with(PUBLIC_METHOD_PREFIX) && is_native_grpc(request)
}
