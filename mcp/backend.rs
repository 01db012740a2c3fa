//! The gRPC services that the server calls, and the metadata of these calls.

use std::{error::Error as StdError, fmt, time::Duration};

use rmcp::{RoleServer, service::RequestContext};
use tonic::{
    Request, Status,
    codegen::http,
    metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap},
};
use tower::util::BoxCloneSyncService;

use crate::api::v1::{
    approval_service_client::ApprovalServiceClient, artifact_service_client::ArtifactServiceClient,
    catalog_service_client::CatalogServiceClient, invoke_service_client::InvokeServiceClient,
    job_service_client::JobServiceClient,
};

/// Maximum size of a response. A result has at most 4 MiB, and a list of tools less.
const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// Headers of an HTTP request that its gRPC calls carry: credentials and context of the call.
const FORWARDED_HEADERS: [&str; 8] = [
    "authorization",
    "x-api-key",
    "jig-workspace",
    "jig-session",
    "traceparent",
    "tracestate",
    "baggage",
    "user-agent",
];
/// Keys of `_meta` with the trace context of a request. They replace headers.
const TRACE_KEYS: [&str; 3] = ["traceparent", "tracestate", "baggage"];
/// Key of `_meta` with the idempotency key of a tool call.
const REQUEST_ID_KEY: &str = "jig-request-id";

/// A transport of gRPC calls: a connection, or the services of the same process.
pub type GrpcTransport = BoxCloneSyncService<
    http::Request<tonic::body::Body>,
    http::Response<tonic::body::Body>,
    TransportError,
>;

/// A failure of a transport.
#[derive(Debug, thiserror::Error)]
#[error("the daemon cannot be reached: {0}")]
pub struct TransportError(#[source] Box<dyn StdError + Send + Sync>);

impl TransportError {
    /// Wraps the error of a transport.
    pub fn new(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

/// Name of the authenticated caller of an HTTP request, in its extensions.
#[derive(Debug, Clone)]
pub struct CallerIdentity(pub String);

/// The gRPC services that an MCP server calls.
#[derive(Clone)]
pub struct GrpcBackend {
    transport: GrpcTransport,
    metadata: MetadataMap,
    deadline: Option<Duration>,
}

impl GrpcBackend {
    /// Calls services over `transport`. Each call carries `metadata`, and what its HTTP request
    /// adds.
    #[must_use]
    pub fn new(
        transport: GrpcTransport,
        metadata: MetadataMap,
        deadline: Option<Duration>,
    ) -> Self {
        Self { transport, metadata, deadline }
    }

    pub(super) fn invocations(&self) -> InvokeServiceClient<GrpcTransport> {
        InvokeServiceClient::new(self.transport.clone())
            .max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(super) fn catalog(&self) -> CatalogServiceClient<GrpcTransport> {
        CatalogServiceClient::new(self.transport.clone())
            .max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(super) fn jobs(&self) -> JobServiceClient<GrpcTransport> {
        JobServiceClient::new(self.transport.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(super) fn approvals(&self) -> ApprovalServiceClient<GrpcTransport> {
        ApprovalServiceClient::new(self.transport.clone())
            .max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(super) fn artifacts(&self) -> ArtifactServiceClient<GrpcTransport> {
        ArtifactServiceClient::new(self.transport.clone())
            .max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    /// Wraps a message in a gRPC request with the caller's credentials and context.
    pub(super) fn request<M>(
        &self,
        context: &RequestContext<RoleServer>,
        message: M,
    ) -> Result<Request<M>, Status> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.caller_metadata(context);
        for key in TRACE_KEYS {
            set_from_meta(request.metadata_mut(), context, key)?;
        }

        if let Some(parts) = context.extensions.get::<http::request::Parts>() {
            // The connection's peer, by which the daemon authenticates local callers.
            *request.extensions_mut() = parts.extensions.clone();
        }
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        Ok(request)
    }

    /// As [`Self::request`], with the idempotency key of the call if it has one.
    pub(super) fn request_once<M>(
        &self,
        context: &RequestContext<RoleServer>,
        message: M,
    ) -> Result<Request<M>, Status> {
        let mut request = self.request(context, message)?;
        set_from_meta(request.metadata_mut(), context, REQUEST_ID_KEY)?;
        Ok(request)
    }

    /// Returns the name of the authenticated caller of an HTTP request.
    pub(super) fn caller_identity(context: &RequestContext<RoleServer>) -> Option<&str> {
        let parts = context.extensions.get::<http::request::Parts>()?;
        let CallerIdentity(name) = parts.extensions.get()?;
        Some(name)
    }

    /// Returns the credentials and the context that the caller's requests carry.
    pub(super) fn caller_metadata(&self, context: &RequestContext<RoleServer>) -> MetadataMap {
        let mut metadata = self.metadata.clone();
        let Some(parts) = context.extensions.get::<http::request::Parts>() else {
            return metadata;
        };

        for name in FORWARDED_HEADERS {
            let key = AsciiMetadataKey::from_static(name);
            // All values: the daemon rejects keys that must not occur twice.
            for value in parts.headers.get_all(name) {
                if let Ok(value) = AsciiMetadataValue::try_from(value.as_bytes()) {
                    metadata.append(key.clone(), value);
                }
            }
        }
        metadata
    }
}

/// Sets a metadata key from the request's `_meta`, if it is there.
fn set_from_meta(
    metadata: &mut MetadataMap,
    context: &RequestContext<RoleServer>,
    key: &'static str,
) -> Result<(), Status> {
    let Some(value) = context.meta.0.get(key) else { return Ok(()) };
    let value = value
        .as_str()
        .and_then(|text| AsciiMetadataValue::try_from(text).ok())
        .ok_or_else(|| Status::invalid_argument(format!("_meta.{key} must be a printable text")))?;
    metadata.insert(AsciiMetadataKey::from_static(key), value);
    Ok(())
}

impl fmt::Debug for GrpcBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The metadata has the caller's key.
        f.debug_struct("GrpcBackend").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}
