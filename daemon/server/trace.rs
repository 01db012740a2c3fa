//! Assigns each call its id and its tracing span, and writes the access log. The outermost layer.

use std::{
    collections::HashSet,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
    time::Instant,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use http_body::{Body as HttpBody, Frame, SizeHint};
use opentelemetry::{
    Context, KeyValue,
    trace::{SpanKind, TraceContextExt as _},
};
use tonic::{Code, Status, body::Body};
use tonic_types::StatusExt as _;
use tower::{Layer, Service};
use ulid::Ulid;

use super::connection::{PeerAddress, PeerInfo};
use crate::{
    api::reason::code_name,
    daemon::{
        grpc::metadata::RequestTrace,
        http::connect::ConnectCall,
        task::BoxFuture,
        telemetry::{
            Telemetry,
            access_log::AccessLogEntry,
            audit::{AuditEvent, AuditLog},
            metrics::{ActiveGuard, Metrics, RpcMeasurement},
            propagation::CallerContext,
            semconv,
            spans::OtelSpan,
        },
        text::truncate_str,
    },
};

/// Longest method in a line. Callers choose it, also those without a key.
const MAX_METHOD_BYTES: usize = 256;
/// Methods of the standard services. Their calls get no span: probes and tools call them
/// constantly.
pub(super) const STANDARD_METHODS: [&str; 4] = [
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/Watch",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Layer that traces and logs calls.
#[derive(Debug, Clone)]
pub(super) struct TraceLayer {
    telemetry: Telemetry,
    methods: Arc<HashSet<Arc<str>>>,
    /// The method of all others.
    other_method: Arc<str>,
}

#[derive(Debug, Clone)]
pub(super) struct TraceService<S> {
    inner: S,
    layer: TraceLayer,
}

/// The span and the access log entry of an open call.
///
/// Both end with the call: at its trailers, at an error, or when the client disconnects.
#[derive(Debug)]
struct TracedCall {
    span: Option<OtelSpan>,
    measurement: Option<PendingMeasurement>,
    log_entry: Option<PendingLogEntry>,
}

/// The metrics of an open call, recorded when the call ends.
#[derive(Debug)]
struct PendingMeasurement {
    metrics: Metrics,
    system: &'static str,
    method: Arc<str>,
    started: Instant,
    _active: ActiveGuard,
}

/// The lines of a call in the access log and in the audit log, written when the call ends.
#[derive(Debug)]
struct PendingLogEntry {
    /// Facts that the layers and the pipeline add while the call runs.
    access_log_entry: AccessLogEntry,
    logs_call: bool,
    audit: AuditLog,
    context: Context,
    started: Instant,
}

/// A response body that ends the traced call when it ends.
#[derive(Debug)]
struct TracedBody {
    body: Body,
    call: TracedCall,
}

impl TraceLayer {
    /// Traces `methods` by name. Other methods are all `_OTHER`, so that clients cannot flood a
    /// collector with names.
    pub(super) fn new(telemetry: Telemetry, methods: HashSet<String>) -> Self {
        let methods = methods.into_iter().map(Arc::from).collect();
        Self { telemetry, methods: Arc::new(methods), other_method: Arc::from("_OTHER") }
    }

    /// Starts the measurement of a call. Returns `None` if metrics are not recorded, and for
    /// standard services.
    fn start_measurement(&self, request: &Request<Body>) -> Option<PendingMeasurement> {
        let metrics = self.telemetry.metrics();
        let method = request.uri().path().trim_start_matches('/');
        if !metrics.is_enabled() || STANDARD_METHODS.contains(&method) {
            return None;
        }
        Some(PendingMeasurement {
            metrics: metrics.clone(),
            system: rpc_system(request),
            method: Arc::clone(self.methods.get(method).unwrap_or(&self.other_method)),
            started: Instant::now(),
            _active: metrics.start_rpc(),
        })
    }

    /// Starts the lines of a call. Returns `None` if calls are not logged.
    fn start_log_entry(
        &self,
        request: &Request<Body>,
        call_id: &str,
        access_log_entry: &AccessLogEntry,
        context: &Context,
    ) -> Option<PendingLogEntry> {
        let (logs_call, audit) = (self.telemetry.logs_calls(), self.telemetry.audit());
        if !logs_call && !audit.is_enabled() {
            return None;
        }

        let peer = request.extensions().get::<PeerInfo>();
        access_log_entry.update(|fields| {
            let method = request.uri().path().trim_start_matches('/');
            fields.method = Some(truncate_str(method, MAX_METHOD_BYTES).to_owned());
            fields.call_id = Some(call_id.to_owned());
            fields.trace_id = Some(context.span().span_context().trace_id().to_string());
            fields.peer = peer.and_then(|peer| peer.address.to_text());
        });
        Some(PendingLogEntry {
            access_log_entry: access_log_entry.clone(),
            logs_call,
            audit: audit.clone(),
            context: context.clone(),
            started: Instant::now(),
        })
    }

    /// Starts the span of a call. Returns `None` for standard services.
    fn start_span(
        &self,
        request: &Request<Body>,
        call_id: &str,
        CallerContext { parent, link }: &CallerContext,
    ) -> Option<OtelSpan> {
        let method = request.uri().path().trim_start_matches('/');
        if STANDARD_METHODS.contains(&method) {
            return None;
        }

        let mut attributes = vec![
            KeyValue::new(semconv::RPC_SYSTEM_NAME, rpc_system(request)),
            KeyValue::new(semconv::CALL_ID, call_id.to_owned()),
        ];
        let is_known = self.methods.contains(method);
        let name = if is_known {
            attributes.push(KeyValue::new(semconv::RPC_METHOD, method.to_owned()));
            method.to_owned()
        } else {
            attributes.push(KeyValue::new(semconv::RPC_METHOD, "_OTHER"));
            "grpc".to_owned()
        };
        let peer = request.extensions().get::<PeerInfo>();
        attributes.extend(address_attributes(request.uri(), peer.map(|peer| &peer.address)));

        let tracer = self.telemetry.tracer();
        let (kind, link) = (SpanKind::Server, link.clone());
        let span = OtelSpan::start_linked(tracer, name, kind, attributes, parent, link);
        if !is_known {
            span.set_text(semconv::RPC_METHOD_ORIGINAL, method);
        }
        if let Some(id) = request.headers().get("jig-request-id").and_then(|id| id.to_str().ok()) {
            span.set_text(semconv::REQUEST_ID, id);
        }
        Some(span)
    }
}

/// The system of a call, as in the semantic conventions.
fn rpc_system(request: &Request<Body>) -> &'static str {
    let is_connect = request.extensions().get::<Arc<ConnectCall>>().is_some();
    if is_connect { "connectrpc" } else { "grpc" }
}

/// Span attributes for the addresses of server and peer.
///
/// For a Unix socket both are its path. The authority is not used then: clients send the path or
/// any other text as authority.
fn address_attributes(uri: &Uri, peer: Option<&PeerAddress>) -> Vec<KeyValue> {
    if let Some(PeerAddress::Unix(path)) = peer {
        let path = path.iter().map(|path| path.display().to_string());
        return path
            .flat_map(|path| {
                [
                    KeyValue::new(semconv::SERVER_ADDRESS, path.clone()),
                    KeyValue::new(semconv::NETWORK_PEER_ADDRESS, path),
                ]
            })
            .collect();
    }

    let mut attributes = Vec::new();
    let authority = uri.authority();
    if let Some(authority) = authority.filter(|authority| !authority.host().is_empty()) {
        let host = authority.host().to_owned();
        attributes.push(KeyValue::new(semconv::SERVER_ADDRESS, host));
        let port = authority.port_u16();
        attributes.extend(port.map(|port| KeyValue::new(semconv::SERVER_PORT, i64::from(port))));
    }
    if let Some(PeerAddress::Tcp(peer)) = peer {
        let (address, port) = (peer.ip().to_string(), i64::from(peer.port()));
        attributes.push(KeyValue::new(semconv::NETWORK_PEER_ADDRESS, address));
        attributes.push(KeyValue::new(semconv::NETWORK_PEER_PORT, port));
    }
    attributes
}

impl<S> Layer<S> for TraceLayer {
    type Service = TraceService<S>;

    fn layer(&self, inner: S) -> TraceService<S> {
        TraceService { inner, layer: self.clone() }
    }
}

impl<S> Service<Request<Body>> for TraceService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let call_id = Ulid::generate().to_string();
        let caller = self.layer.telemetry.caller_context(request.headers());
        let span = self.layer.start_span(&request, &call_id, &caller);
        let measurement = self.layer.start_measurement(&request);
        let context = span.as_ref().map_or(caller.parent, |span| span.context().clone());

        let access_log_entry = AccessLogEntry::default();
        let log_entry = self.layer.start_log_entry(&request, &call_id, &access_log_entry, &context);
        let log_entry = log_entry.filter(|_| span.is_some());
        let trace = RequestTrace { call_id: call_id.clone(), context, access_log_entry };
        request.extensions_mut().insert(trace);

        let mut call = TracedCall { span, measurement, log_entry };
        let response = self.inner.call(request);
        Box::pin(async move {
            let mut response = match response.await {
                Ok(response) => response,
                Err(error) => {
                    call.end(Code::Unknown, &HeaderMap::new());
                    return Err(error);
                }
            };
            if let Ok(id) = HeaderValue::from_str(&call_id) {
                response.headers_mut().insert("jig-call-id", id);
            }

            // A response without a body has its status in its headers.
            if let Some(code) = grpc_status(response.headers()) {
                call.end(code, response.headers());
                return Ok(response);
            }
            Ok(response.map(|body| Body::new(TracedBody { body, call })))
        })
    }
}

impl TracedCall {
    /// Ends the span and writes the log entry, once. `trailers` may have the reason of an error.
    fn end(&mut self, code: Code, trailers: &HeaderMap) {
        if let Some(entry) = self.log_entry.take() {
            entry.log(code, trailers);
        }

        let name = code_name(code);
        // The other codes report mistakes of the client, which are no errors for a server span.
        let is_server_error = matches!(
            code,
            Code::Unknown
                | Code::DeadlineExceeded
                | Code::Unimplemented
                | Code::Internal
                | Code::Unavailable
                | Code::DataLoss
        );
        if let Some(measurement) = self.measurement.take() {
            measurement.record(name, is_server_error);
        }

        let Some(span) = self.span.take() else { return };
        span.set(semconv::RPC_STATUS_CODE, name);
        if is_server_error {
            span.fail(name);
        }
        span.end();
    }
}

impl PendingMeasurement {
    fn record(self, status: &'static str, is_server_error: bool) {
        self.metrics.record_rpc(&RpcMeasurement {
            system: self.system,
            method: self.method,
            status,
            is_server_error,
            duration: self.started.elapsed(),
        });
    }
}

impl PendingLogEntry {
    fn log(self, code: Code, trailers: &HeaderMap) {
        let status = Status::from_header_map(trailers).filter(|_| code != Code::Ok);
        let info = status.and_then(|status| status.get_details_error_info());
        let mut record = self.access_log_entry.snapshot();
        record.status = Some(code_name(code));
        record.reason = info.map(|info| info.reason);
        record.set_duration(self.started.elapsed());
        if self.logs_call {
            // The exported log record gets the ids of the current context.
            let _attached = self.context.attach();
            record.log();
        }
        if !record.is_reported() {
            self.audit.record(AuditEvent::Call, || record);
        }
    }
}

impl Drop for TracedCall {
    fn drop(&mut self) {
        self.end(Code::Cancelled, &HeaderMap::new());
    }
}

impl HttpBody for TracedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    let code = grpc_status(trailers).unwrap_or(Code::Unknown);
                    self.call.end(code, trailers);
                }
            }
            Some(Err(status)) => self.call.end(status.code(), &HeaderMap::new()),
            None => self.call.end(Code::Unknown, &HeaderMap::new()),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn grpc_status(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|value| Code::from_bytes(value.as_bytes()))
}
