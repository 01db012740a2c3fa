//! What a listener for metrics alone serves. Other machines may reach it without TLS.

use std::sync::Arc;

use axum::{Router, extract::State, routing::get};
use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use tokio::sync::Mutex;
use tonic::body::Body;
use tower::{ServiceExt as _, service_fn};

use crate::daemon::{
    http::HttpService,
    task,
    telemetry::prometheus_text::{self, PrometheusText},
};

/// The text, rendered by one request at a time: scrapers cannot occupy several threads.
type SharedText = Arc<Mutex<Option<PrometheusText>>>;

/// Serves `GET /metrics`, and nothing else. Without `text`, there are no metrics.
pub(super) fn metrics_only(text: Option<PrometheusText>) -> HttpService {
    let routes: Router =
        Router::new().route("/metrics", get(render)).with_state(Arc::new(Mutex::new(text)));
    HttpService::new(service_fn(move |request: Request<Body>| {
        let routes = routes.clone();
        async move {
            let response: Response<axum::body::Body> = routes.oneshot(request).await?;
            Ok(response.map(Body::new))
        }
    }))
}

async fn render(State(text): State<SharedText>) -> Response<axum::body::Body> {
    let shared = text.lock().await;
    let rendered = match shared.clone() {
        Some(text) => task::spawn_blocking(move || text.render()).await.ok().and_then(Result::ok),
        None => None,
    };
    drop(shared);

    match rendered {
        Some(text) => {
            let response = Response::builder().header(CONTENT_TYPE, prometheus_text::CONTENT_TYPE);
            response.body(text.into()).unwrap_or_default()
        }
        None => {
            let mut response = Response::new("the metrics cannot be rendered\n".into());
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response
        }
    }
}
