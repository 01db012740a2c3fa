//! The caller of an HTTP request, for gRPC calls in its name.

use std::{convert::Infallible, sync::Arc};

use axum::extract::FromRequestParts;
use http::{
    Extensions, HeaderMap, HeaderName, Request, Response, Uri, header::HOST, request::Parts,
};
use tonic::{body::Body, metadata::MetadataMap};
use tower::util::BoxCloneSyncService;

use crate::daemon::error::Error;

/// A service of HTTP requests, of one type whatever its layers are.
pub(crate) type HttpService = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// Authenticates the caller of a request by its headers and its connection. Returns the name of the
/// principal.
pub(crate) type CallerCheck =
    Arc<dyn Fn(&HeaderMap, &Extensions) -> Result<String, Error> + Send + Sync>;

/// Headers that gRPC calls carry as metadata, beside those that begin with `jig-`.
const FORWARDED_HEADERS: [&str; 5] =
    ["authorization", "x-api-key", "traceparent", "tracestate", "baggage"];

/// Header with the deadline of a gRPC call.
const GRPC_TIMEOUT: &str = "grpc-timeout";

/// What identifies the caller: the headers with its key, and the connection.
#[derive(Debug, Clone)]
pub(crate) struct GrpcCaller {
    metadata: HeaderMap,
    extensions: Extensions,
    /// Address of the server, as the caller wrote it.
    pub(crate) origin: Uri,
}

impl<S: Sync> FromRequestParts<S> for GrpcCaller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        let forwarded = parts.headers.iter().filter(|(name, _)| is_forwarded(name));
        let metadata = forwarded.map(|(name, value)| (name.clone(), value.clone())).collect();

        let host = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| parts.uri.authority().map(|authority| authority.as_str()));
        let origin = host.and_then(|host| format!("http://{host}").parse().ok());
        Ok(Self {
            metadata,
            extensions: parts.extensions.clone(),
            origin: origin.unwrap_or_default(),
        })
    }
}

fn is_forwarded(name: &HeaderName) -> bool {
    name.as_str().starts_with("jig-") || FORWARDED_HEADERS.contains(&name.as_str())
}

impl GrpcCaller {
    /// The caller of a gRPC request. Calls in its name have the deadline of the request.
    pub(crate) fn of_grpc<T>(request: &tonic::Request<T>) -> Self {
        let headers = request.metadata().clone().into_headers();
        let forwarded =
            headers.iter().filter(|(name, _)| is_forwarded(name) || name.as_str() == GRPC_TIMEOUT);
        Self {
            metadata: forwarded.map(|(name, value)| (name.clone(), value.clone())).collect(),
            extensions: request.extensions().clone(),
            origin: Uri::default(),
        }
    }

    /// A request in the name of the caller.
    pub(crate) fn request<T>(&self, message: T) -> tonic::Request<T> {
        let metadata = MetadataMap::from_headers(self.metadata.clone());
        tonic::Request::from_parts(metadata, self.extensions.clone(), message)
    }
}
