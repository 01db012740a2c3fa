//! MCP over Streamable HTTP: `/mcp`, and `/mcp/DIALECT` for the tools of a dialect.
//!
//! Each request becomes gRPC calls with its headers and its connection, so that it has the same
//! principal as a gRPC call. Clients of revision 2026-07-28 have no sessions; those of older ones
//! do ([`sessions`]).

mod sessions;

use std::{collections::BTreeMap, fmt::Debug, io, iter, sync::Arc};

use axum::response::IntoResponse as _;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Collected};
use rmcp::{
    ErrorData,
    transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService},
};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tonic::{body::Body, metadata::MetadataMap};
use tower::ServiceExt as _;

use self::sessions::McpSessions;
use super::{
    body_buffer::BodyBuffer,
    grpc_caller::{CallerCheck, HttpService},
    rest_error::{RestError, rejection},
};
use crate::{
    daemon::{dialect::DIALECTS, queue::ByteBudget},
    mcp::{CallerIdentity, GrpcBackend, GrpcTransport, McpServer, TransportError},
};

/// Path of the tools of the contract. Below it are the dialects.
const PATH: &str = "/mcp";
/// Maximum size of a request, as over standard input.
const MAX_REQUEST_BYTES: usize = 16 << 20;
const SESSION_HEADER: &str = "mcp-session-id";
const VERSION_HEADER: &str = "mcp-protocol-version";
const JSON: &str = "application/json";
/// Text of the library about JSON that is no message of JSON-RPC.
const NOT_A_MESSAGE: &str = "unrecognized JSON-RPC message";
/// The first revision without sessions. Later ones are greater as text.
const FIRST_STATELESS_VERSION: &str = "2026-07-28";

/// The MCP servers of all dialects.
pub(super) struct McpHttp {
    /// The servers by path.
    servers: BTreeMap<String, StreamableHttpService<McpServer, McpSessions>>,
    sessions: Arc<McpSessions>,
    check_caller: CallerCheck,
    buffered: Arc<ByteBudget>,
}

impl McpHttp {
    /// Creates the servers. Their streams end with `terminate`.
    pub(super) fn new(
        grpc: HttpService,
        check_caller: CallerCheck,
        buffered: Arc<ByteBudget>,
        terminate: &CancellationToken,
    ) -> io::Result<Self> {
        // After a restart of the daemon, clients that hold a state ask again.
        let mut state_key = [0; 32];
        getrandom(&mut state_key, GetRandomFlags::empty())?;
        let transport = GrpcTransport::new(grpc.map_err(TransportError::new));
        let backend = GrpcBackend::new(transport, MetadataMap::new(), None);
        let sessions = Arc::new(McpSessions::new());

        let dialects = DIALECTS.iter().map(|dialect| dialect.name);
        let servers = iter::once("").chain(dialects).map(|dialect| {
            let server = McpServer::new(backend.clone(), dialect.to_owned(), state_key);
            // The server's browser guard has checked Host and Origin for all ways in. A second list
            // with other rules of matching would reject origins that the operator allows.
            let config = StreamableHttpServerConfig::default()
                .disable_allowed_hosts()
                .disable_allowed_origins()
                .with_max_request_body_bytes(MAX_REQUEST_BYTES)
                .with_cancellation_token(terminate.clone());
            let path =
                if dialect.is_empty() { PATH.to_owned() } else { format!("{PATH}/{dialect}") };
            let create = move || Ok(server.clone());
            (path, StreamableHttpService::new(create, Arc::clone(&sessions), config))
        });
        let servers = servers.collect();
        Ok(Self { servers, sessions: Arc::clone(&sessions), check_caller, buffered })
    }

    /// Returns whether a path belongs to MCP.
    pub(super) fn has_path(&self, path: &str) -> bool {
        self.servers.contains_key(path)
    }

    /// Handles a request.
    pub(super) async fn call(&self, request: Request<Body>) -> Response<Body> {
        let Some(server) = self.servers.get(request.uri().path()) else {
            return text_response(StatusCode::NOT_FOUND, "no MCP server has this path");
        };
        let principal = match (self.check_caller)(request.headers(), request.extensions()) {
            Ok(principal) => principal,
            Err(error) => return rejection(&error),
        };

        let session = header(request.headers(), SESSION_HEADER).map(str::to_owned);
        let version = header(request.headers(), VERSION_HEADER);
        let is_stateless = version.is_some_and(|version| version >= FIRST_STATELESS_VERSION);
        if let Some(id) = &session {
            if !self.sessions.is_owner(id, &principal) {
                return text_response(StatusCode::NOT_FOUND, "unknown session: initialize again");
            }
        } else if !is_stateless && !self.sessions.may_open(&principal).await {
            let text = "this caller has too many MCP sessions: end some with DELETE";
            return text_response(StatusCode::TOO_MANY_REQUESTS, text);
        }

        let (parts, body) = request.into_parts();
        let caller = principal.as_str().into();
        let body = BodyBuffer::new(&self.buffered, &caller, MAX_REQUEST_BYTES).read(body).await;
        let mut request = match body {
            Ok(body) => Request::from_parts(parts, body.into_body()),
            Err(error) => return RestError::from(error).into_response().map(Body::new),
        };
        request.extensions_mut().insert(CallerIdentity(principal.clone()));
        let is_json = header(request.headers(), CONTENT_TYPE.as_str())
            .is_some_and(|value| value.starts_with(JSON));
        let response = McpSessions::handle(principal, server.handle(request)).await;
        if is_json && response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            return malformed_body(response).await;
        }
        response.map(Body::new)
    }
}

/// Returns the error of a body that is no message. The library says that its type is unsupported.
async fn malformed_body<B>(response: Response<B>) -> Response<Body>
where
    B: http_body::Body<Error: Debug>,
{
    let text = response.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let error = if text.contains(NOT_A_MESSAGE) {
        let text = "the body is no message of JSON-RPC 2.0: an id is an integer or a string, params are an object, and there are no batches";
        ErrorData::invalid_request(text, None)
    } else {
        ErrorData::parse_error(text.into_owned(), None)
    };
    let body = json!({"jsonrpc": "2.0", "error": error});
    let mut response = Response::new(Body::new(body.to_string()));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn text_response(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::new(text.to_owned()));
    *response.status_mut() = status;
    response
}
