//! Ways in over HTTP beside gRPC. Each translates its requests into gRPC calls and passes them
//! through the same layers. So a call has the same principal, policy, limits, records and errors,
//! whichever way it came.
//!
//! | request | handled by |
//! |---|---|
//! | `application/grpc` | the gRPC services themselves |
//! | `application/grpc-web` | tonic-web, for browsers |
//! | a method's path with another content type | [`connect`] |
//! | `/v1/agent-tools`, `/v1/jobs` | [`agent_tools`], [`jobs`] |
//! | `/v1/sessions` | [`session_events`], also as WebSocket |
//! | `/mcp`, `/mcp/DIALECT` | [`mcp`] |
//! | `/openapi.json` | [`openapi`] |
//! | `/healthz`, `/readyz` | [`health`] |

mod agent_tools;
mod arrival;
mod body_buffer;
pub(crate) mod connect;
mod event_stream;
mod grpc_caller;
mod grpc_variant;
pub(crate) mod health;
mod jobs;
mod json_body;
mod mcp;
mod openapi;
mod rest_error;
mod rest_extract;
mod session_events;
mod unique_json;

use std::{convert::Infallible, io, sync::Arc};

use axum::{
    Router,
    middleware::{self, Next},
    response::IntoResponse as _,
};
use http::{Request, Response, StatusCode, Version};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic_web::{GrpcWebLayer, GrpcWebService};
use tower::{Layer as _, ServiceExt as _, service_fn};

pub(crate) use self::{
    arrival::ArrivalTimeout,
    body_buffer::{BodyBuffer, BodyError, BufferedBody, memory_error},
    connect::{code_name, http_status},
    grpc_caller::{CallerCheck, GrpcCaller, HttpService},
    grpc_variant::{GrpcVariant, is_native_grpc},
    openapi::document_response,
    rest_error::{json_error, rejection, retry_after_sec},
};
use self::{
    body_buffer::BodyMemory,
    connect::{ConnectProtocol, NoCall, explain_content_types, translate_response},
    mcp::McpHttp,
    rest_error::RestError,
};
use crate::daemon::{catalog::Catalog, queue::ByteBudget};

/// All ways in.
struct WaysIn {
    grpc: HttpService,
    grpc_web: GrpcWebService<HttpService>,
    connect: ConnectProtocol,
    mcp: McpHttp,
    rest: Router,
}

/// The service of all ways in. `grpc` has the gRPC services with their layers. `check_caller`
/// rejects a caller before the body of a request is read. `buffered` limits the memory of bodies.
/// Streams of MCP end with `terminate`.
///
/// # Errors
///
/// Fails if the system has no random bytes.
pub(crate) fn ways_in(
    grpc: HttpService,
    catalog: &Catalog,
    check_caller: CallerCheck,
    buffered: &Arc<ByteBudget>,
    terminate: &CancellationToken,
) -> io::Result<HttpService> {
    let mcp =
        McpHttp::new(grpc.clone(), Arc::clone(&check_caller), Arc::clone(buffered), terminate)?;
    let buffered = Arc::clone(buffered);
    let require_caller =
        middleware::from_fn(move |mut request: axum::extract::Request, next: Next| {
            session_events::accept_key_of_protocol(request.headers_mut());
            let checked = check_caller(request.headers(), request.extensions());
            let budget = Arc::clone(&buffered);
            async move {
                match checked {
                    Ok(name) => {
                        request.extensions_mut().insert(BodyMemory { budget, caller: name.into() });
                        next.run(request).await
                    }
                    Err(error) => RestError::from(&error).into_response(),
                }
            }
        });
    let rest = Router::new()
        .merge(agent_tools::routes())
        .merge(jobs::routes())
        .merge(session_events::routes())
        .merge(openapi::routes())
        .layer(require_caller)
        .merge(health::routes())
        .fallback(rest_error::unknown_path)
        .method_not_allowed_fallback(rest_error::wrong_method)
        .with_state(grpc.clone());
    let ways = Arc::new(WaysIn {
        grpc_web: GrpcWebLayer::new().layer(grpc.clone()),
        grpc,
        connect: ConnectProtocol::new(catalog),
        mcp,
        rest,
    });
    Ok(HttpService::new(service_fn(move |request| {
        let ways = Arc::clone(&ways);
        async move { ways.call(request).await }
    })))
}

impl WaysIn {
    async fn call(&self, mut request: Request<Body>) -> Result<Response<Body>, Infallible> {
        match GrpcVariant::of(request.headers()) {
            Some(GrpcVariant::Grpc) if request.version() == Version::HTTP_2 => {
                return self.grpc.clone().oneshot(request).await;
            }
            Some(GrpcVariant::Grpc) => {
                return Ok(grpc_needs_http_2().into_response().map(Body::new));
            }
            Some(GrpcVariant::GrpcWeb) => return self.grpc_web.clone().oneshot(request).await,
            None => {}
        }

        if self.connect.has_method(request.uri().path()) {
            let call = self.connect.begin(&mut request);
            if let Err(NoCall::Rejected(response)) = call {
                return Ok(*response);
            }
            let response = self.grpc.clone().oneshot(request).await?;
            return Ok(match call {
                Ok(call) => translate_response(call, response).await,
                Err(_) => explain_content_types(response),
            });
        }
        if self.mcp.has_path(request.uri().path()) {
            return Ok(self.mcp.call(request).await);
        }
        let response = self.rest.clone().oneshot(request).await?;
        Ok(response.map(Body::new))
    }
}

fn grpc_needs_http_2() -> RestError {
    let text = "gRPC needs HTTP/2. Over HTTP/1.1, send application/json to the same path";
    RestError::new(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "HTTP_VERSION_NOT_SUPPORTED", text)
}
