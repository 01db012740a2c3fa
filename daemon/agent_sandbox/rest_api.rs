//! The REST listener: files and probes.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::IntoResponse as _,
};
use tonic::body::Body;
use tower::{ServiceExt as _, service_fn};

use super::{
    api_error::{ApiError, unknown_path, wrong_method},
    caller_name::CallerName,
    files, openapi, probes,
    rest_context::RestContext,
};
use crate::daemon::{
    http::{CallerCheck, HttpService},
    queue::ByteBudget,
};

/// The service of the listener. `grpc` has the gRPC services with their layers.
pub(super) fn service(
    grpc: HttpService,
    check_caller: CallerCheck,
    buffered: Arc<ByteBudget>,
    metadata: BTreeMap<String, String>,
) -> HttpService {
    let require_caller = middleware::from_fn(move |mut request: Request, next: Next| {
        let checked = check_caller(request.headers(), request.extensions());
        async move {
            match checked {
                Ok(name) => {
                    request.extensions_mut().insert(CallerName(name.into()));
                    next.run(request).await
                }
                Err(error) => ApiError::from(&error).into_response(),
            }
        }
    });
    let context =
        RestContext { grpc, metadata: Arc::new(metadata), started: Instant::now(), buffered };
    let routes: Router = Router::new()
        .merge(files::routes())
        .merge(probes::metadata_route())
        .merge(openapi::route())
        .layer(require_caller)
        .merge(probes::health_route())
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(context);
    HttpService::new(service_fn(move |request: http::Request<Body>| {
        let routes = routes.clone();
        async move { Ok(routes.oneshot(request).await?.map(Body::new)) }
    }))
}
