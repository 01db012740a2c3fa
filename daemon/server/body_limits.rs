//! Limits on incoming requests: rate, length, buffered bytes and concurrent decoding.
//!
//! A call of a method with the option `rate_limited` is counted before its request is read. A unary
//! request is buffered completely before it is translated, if it is no gRPC, and decoded:
//!
//! ```text
//! caller's rate ─▶ announced length ─▶ buffered bytes ─▶ permit to decode, if large ─▶ handler
//!       │                 │                 │
//!       ▼                 ▼                 ▼
//!             RESOURCE_EXHAUSTED         TIMEOUT: less than 64 KiB in 30 s
//! ```
//!
//! An incomplete request uses memory for as long as its client likes, so buffered bytes are
//! limited, in total and for each caller ([`ByteBudget`]). A request over the limit is rejected,
//! not queued: its data would block other calls of its connection.
//!
//! Decoding blocks a thread, and the decoded request can use more memory than its encoding. At most
//! half as many large requests as cores are decoded at the same time. Requests with too many list
//! elements are rejected undecoded.
//!
//! Client-streaming requests are only counted: their handlers read no faster than they can process.

use std::{
    future, mem,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full};
use tonic::body::Body;
use tower::{Layer, Service};

use crate::daemon::{
    catalog::RequestLimits,
    error::{Error, Reason},
    grpc::status::to_status,
    http::{
        ArrivalTimeout,
        connect::{ConnectCall, PREFIX_BYTES, translate_request_stream},
        memory_error,
    },
    pipeline::{Pipeline, access::principal::Principal},
    queue::{Acquire, ByteBudget, ByteReservation, Limiter, Permit, PrincipalName, Sharing},
    task::{self, BoxFuture, available_cores},
};

/// Requests up to this size are decoded without a permit.
const LARGE_REQUEST_BYTES: usize = 64 << 10;
/// Memory of an incomplete request of any length: its metadata, and the state that holds it.
const MIN_RESERVED_BYTES: usize = 4 << 10;
/// Bytes of JSON for one byte of its message. Base64 takes 4 for 3, and escapes 2 for 1.
const JSON_BYTES_PER_BYTE: usize = 2;

/// Layer that limits incoming requests.
#[derive(Debug, Clone)]
pub(super) struct BodyLimitsLayer(Arc<BodyLimits>);

#[derive(Debug, Clone)]
pub(super) struct BodyLimitsService<S> {
    inner: S,
    limits: Arc<BodyLimits>,
}

#[derive(Debug)]
struct BodyLimits {
    pipeline: Arc<Pipeline>,
    /// Bytes of requests that are incomplete, or not decoded yet.
    buffered: Arc<ByteBudget>,
    /// Permits to decode large requests.
    decoders: Arc<Limiter>,
}

/// A request that is being received.
struct RequestBuffer<'a> {
    principal: &'a PrincipalName,
    method: &'a str,
    limits: &'a Arc<RequestLimits>,
    /// Set if the request is one of the Connect protocol.
    connect: Option<Arc<ConnectCall>>,
    data: BytesMut,
    /// Length of the request with its prefix, once it is known.
    expected_length: Option<usize>,
    reservations: Vec<ByteReservation>,
    reserved_bytes: usize,
}

impl BodyLimitsLayer {
    pub(super) fn new(pipeline: Arc<Pipeline>, buffered: Arc<ByteBudget>) -> Self {
        Self(Arc::new(BodyLimits {
            pipeline,
            buffered,
            // The byte budget limits the queue.
            decoders: Limiter::new((available_cores() / 2).max(1), Sharing::Unlimited, usize::MAX),
        }))
    }
}

impl<S> Layer<S> for BodyLimitsLayer {
    type Service = BodyLimitsService<S>;

    fn layer(&self, inner: S) -> BodyLimitsService<S> {
        BodyLimitsService { inner, limits: Arc::clone(&self.0) }
    }
}

impl<S> Service<Request<Body>> for BodyLimitsService<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.uri().path().trim_start_matches('/');
        let request_limits = self.limits.pipeline.catalog.request_limits(method).cloned();
        let principal = request.extensions().get::<Arc<Principal>>().cloned();
        let (Some(request_limits), Some(principal)) = (request_limits, principal) else {
            // A method of a standard service.
            return Box::pin(self.inner.call(request));
        };
        if request_limits.rate_limited
            && let Err(error) = principal.check_rate(Instant::now())
        {
            let metrics = self.limits.pipeline.telemetry.metrics();
            metrics.count_admission_rejection("limit:rate");
            return Box::pin(future::ready(Ok(to_status(&error).into_http())));
        }
        let connect = request.extensions().get::<Arc<ConnectCall>>().cloned();
        if request_limits.client_streaming {
            let max_bytes = request_limits.max_bytes * JSON_BYTES_PER_BYTE;
            let request = request.map(|body| match connect {
                Some(call) => translate_request_stream(call, body, max_bytes),
                None => body,
            });
            return Box::pin(self.inner.call(request));
        }

        let method = method.to_owned();
        let body_limits = Arc::clone(&self.limits);
        // `poll_ready` has prepared this service, and not its clone.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let buffer = RequestBuffer {
                principal: principal.shared_name(),
                method: &method,
                limits: &request_limits,
                connect,
                data: BytesMut::new(),
                expected_length: None,
                reservations: Vec::new(),
                reserved_bytes: 0,
            };
            match body_limits.read_body(buffer, body).await {
                Ok(body) => inner.call(Request::from_parts(parts, body)).await,
                Err(error) => Ok(to_status(&error).into_http()),
            }
        })
    }
}

impl BodyLimits {
    /// Reads a request to its end, then waits for a permit to decode it.
    async fn read_body(
        &self,
        mut buffer: RequestBuffer<'_>,
        mut body: Body,
    ) -> Result<Body, Error> {
        if !buffer.has_prefix()
            && let Some(length) = body.size_hint().exact()
        {
            self.expect_length(&mut buffer, usize::try_from(length).unwrap_or(usize::MAX))?;
        }

        let mut arrival = ArrivalTimeout::new();
        loop {
            let received = buffer.data.len();
            let available = tokio::select! {
                biased;
                frame = body.frame() => Some(frame),
                () = future::ready(()) => None,
            };
            let frame = match available {
                Some(frame) => {
                    arrival.check(received)?;
                    frame
                }
                None => {
                    // Most requests are complete at once. Only one that is not needs a reservation.
                    if buffer.reservations.is_empty() {
                        self.reserve(&mut buffer, MIN_RESERVED_BYTES)?;
                    }
                    arrival.wait(received, body.frame()).await?
                }
            };
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|status| buffer.truncated_error(status))?;
            let Ok(data) = frame.into_data() else { continue };

            self.push(&mut buffer, &data)?;
        }

        let reservations = mem::take(&mut buffer.reservations);
        let (data, permit) = self.prepare_message(buffer).await?;
        let held = (reservations, permit);
        Ok(Body::new(Full::new(data).map_frame(move |frame| {
            // Dropped together with the body, after the request was decoded.
            let _held = &held;
            frame
        })))
    }

    /// Translates a complete request into a message of gRPC. A large one is checked on a thread of
    /// its own, with a permit to decode it.
    async fn prepare_message(
        &self,
        buffer: RequestBuffer<'_>,
    ) -> Result<(Bytes, Option<Permit>), Error> {
        let data = buffer.data.freeze();
        if data.len() <= LARGE_REQUEST_BYTES {
            return Ok((translate_request(buffer.connect.as_deref(), data)?, None));
        }

        let permit = self.acquire_decode_permit(buffer.principal).await?;
        let limits = Arc::clone(buffer.limits);
        let connect = buffer.connect;
        let prepared = task::spawn_blocking(move || {
            let data = translate_request(connect.as_deref(), data)?;
            let message = data.get(PREFIX_BYTES..).unwrap_or_default();
            let violations = limits.oversized_fields(message);
            if violations.is_empty() {
                Ok((data, Some(permit)))
            } else {
                Err(Error::invalid(violations))
            }
        });
        prepared.await.map_err(Error::internal).flatten()
    }

    /// Appends received data, and reserves memory for it, or for all once the length is known.
    fn push(&self, buffer: &mut RequestBuffer<'_>, data: &[u8]) -> Result<(), Error> {
        buffer.data.extend_from_slice(data);
        if buffer.expected_length.is_none() {
            if !buffer.has_prefix() {
                let length = buffer.data.len();
                if length > buffer.max_bytes() {
                    return Err(buffer.too_large_error(length));
                }
                if length > buffer.reserved_bytes {
                    self.reserve(buffer, length.max(LARGE_REQUEST_BYTES))?;
                }
            } else if let Some([_, length @ ..]) = buffer.data.first_chunk::<PREFIX_BYTES>() {
                let announced = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
                self.expect_length(buffer, announced)?;
            }
        }

        match buffer.expected_length {
            Some(length) if buffer.data.len() > length => {
                let text = format!("a request of {} is one message: send one", buffer.method);
                Err(Error::new(Reason::InvalidParams, text))
            }
            _ => Ok(()),
        }
    }

    /// Rejects a request that announces too many bytes, and reserves memory for others.
    fn expect_length(&self, buffer: &mut RequestBuffer<'_>, announced: usize) -> Result<(), Error> {
        if announced > buffer.max_bytes() {
            return Err(buffer.too_large_error(announced));
        }

        let length = announced + if buffer.has_prefix() { PREFIX_BYTES } else { 0 };
        buffer.expected_length = Some(length);
        if length > LARGE_REQUEST_BYTES || length > buffer.data.len() {
            self.reserve(buffer, length)?;
            buffer.data.reserve(length.saturating_sub(buffer.data.len()));
        }
        Ok(())
    }

    /// Reserves bytes of the budget for `buffer`.
    fn reserve(&self, buffer: &mut RequestBuffer<'_>, bytes: usize) -> Result<(), Error> {
        let reserved = self.buffered.reserve(buffer.principal, bytes as u64);
        let reservation = reserved.map_err(|exceeded| {
            memory_error(&exceeded, "requests that are not decoded yet", bytes)
        })?;
        buffer.reservations.push(reservation);
        buffer.reserved_bytes += bytes;
        Ok(())
    }

    /// Waits for a permit to decode a large request.
    async fn acquire_decode_permit(&self, principal: &PrincipalName) -> Result<Permit, Error> {
        match self.decoders.acquire(principal, usize::MAX) {
            Ok(Acquire::Granted(permit)) => Ok(permit),
            Ok(Acquire::Queued(mut pending)) => Ok(pending.wait().await),
            Err(_) => Err(Error::internal("an unlimited queue is full")),
        }
    }
}

/// The request as a message of gRPC.
fn translate_request(connect: Option<&ConnectCall>, data: Bytes) -> Result<Bytes, Error> {
    match connect {
        Some(call) => call.translate_request(&data),
        None => Ok(data),
    }
}

impl RequestBuffer<'_> {
    /// Whether the message has a prefix with its length.
    fn has_prefix(&self) -> bool {
        self.connect.as_ref().is_none_or(|call| call.has_prefix())
    }

    /// Most bytes of the message as it is sent.
    fn max_bytes(&self) -> usize {
        let is_json = self.connect.as_ref().is_some_and(|call| call.is_json());
        self.limits.max_bytes * if is_json { JSON_BYTES_PER_BYTE } else { 1 }
    }

    fn too_large_error(&self, announced: usize) -> Error {
        let limit = self.max_bytes();
        let text = format!(
            "the request is too large: one of {} has at most {limit} bytes, and this one has {announced}: send less",
            self.method
        );
        Error::new(Reason::ResourceExhausted, text).with_metadata("limit", limit.to_string())
    }

    fn truncated_error(&self, status: tonic::Status) -> Error {
        let text = format!(
            "the request ended early, after {} bytes. Nothing was done: send it again",
            self.data.len()
        );
        Error::new(Reason::InvalidParams, text).with_cause(status)
    }
}
