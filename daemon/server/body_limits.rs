//! How requests come in: each call is counted before anything of its request is read, and a request of one
//! message is there as a whole before it is decoded.
//!
//! ```text
//! its caller's rate ─▶ the length that it announces ─▶ its bytes ─▶ a place to be decoded, if it is large ─▶ its door
//!        │                     │                          │
//!        ▼                     ▼                          ▼
//!             RESOURCE_EXHAUSTED                       TIMEOUT: nothing comes any more
//! ```
//!
//! What is not there as a whole takes memory for as long as its caller likes, so that there is only so much of
//! it, for all and for each caller ([`Backlog`]). Nothing waits until there is room: what was sent already would
//! keep other calls of its connection from being heard. Decoding keeps a thread, and what is decoded can take
//! more memory than it did: large requests are decoded one after the other for half of the cores, and lists
//! that are too long are not decoded at all.
//!
//! Requests of several messages are only counted: who takes them in reads no faster than it can.

use std::{
    future::{self, Future},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use tokio::time::timeout_at;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::daemon::{
    catalog::RequestLimits,
    error::{Error, Reason},
    grpc::status::to_status,
    pipeline::{Pipeline, access::principal::Principal},
    queue::{
        Acquire, ByteBudget, ByteBudgetExceeded, ByteReservation, Limiter, Permit, PrincipalKey,
        Sharing,
    },
    task,
    workspace::available_cores,
};

/// What tells how long a message is: a flag, and the number of its bytes (gRPC over HTTP/2).
const GRPC_PREFIX_BYTES: usize = 5;
/// Requests that are decoded at once; longer ones one after the other.
const LARGE_REQUEST_BYTES: usize = 64 << 10;
/// What one that has not come takes, however long it is: its metadata, and what keeps it.
const MIN_RESERVED_BYTES: usize = 4 << 10;
/// How long so much of one may take to come. A client that is alive sends it in milliseconds.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
const PROGRESS_BYTES: usize = 64 << 10;
/// When there is room again for requests: they come as fast as they are sent.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The layer.
#[derive(Debug, Clone)]
pub(super) struct BodyLimitsLayer(Arc<BodyLimits>);

/// A service behind it.
#[derive(Debug, Clone)]
pub(super) struct BodyLimitsService<S> {
    inner: S,
    limits: Arc<BodyLimits>,
}

/// What is taken in.
#[derive(Debug)]
struct BodyLimits {
    pipeline: Arc<Pipeline>,
    /// Requests that are not there as a whole, or not decoded yet.
    buffered: Arc<ByteBudget>,
    /// For decoding large ones.
    decoders: Arc<Limiter>,
}

/// A request that comes in.
struct RequestBuffer<'a> {
    caller: &'a PrincipalKey,
    method: &'a str,
    limits: &'a Arc<RequestLimits>,
    buffer: BytesMut,
    /// How long it is with its prefix, once that is there.
    expected_length: Option<usize>,
    reservations: Vec<ByteReservation>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl BodyLimitsLayer {
    /// That of a pipeline.
    pub(super) fn new(pipeline: Arc<Pipeline>) -> Self {
        Self(Arc::new(BodyLimits {
            pipeline,
            buffered: Arc::default(),
            // Those who wait are bounded by their bytes.
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
    type Future = BoxFuture<Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.uri().path().trim_start_matches('/');
        let measure = self.limits.pipeline.catalog.request_limits(method).cloned();
        let principal = request.extensions().get::<Arc<Principal>>().cloned();
        let (Some(measure), Some(principal)) = (measure, principal) else {
            // None of the daemon's own methods.
            return Box::pin(self.inner.call(request));
        };
        if measure.rate_limited
            && let Err(error) = principal.check_rate(Instant::now())
        {
            return Box::pin(future::ready(Ok(to_status(&error).into_http())));
        }
        if measure.client_streaming {
            return Box::pin(self.inner.call(request));
        }
        let method = method.to_owned();
        let intake = Arc::clone(&self.limits);
        // The one that said that it is ready.
        let another = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, another);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let coming = RequestBuffer {
                caller: principal.key(),
                method: &method,
                limits: &measure,
                buffer: BytesMut::new(),
                expected_length: None,
                reservations: Vec::new(),
            };
            match intake.read_body(coming, body).await {
                Ok(body) => inner.call(Request::from_parts(parts, body)).await,
                Err(error) => Ok(to_status(&error).into_http()),
            }
        })
    }
}

impl BodyLimits {
    /// Reads a request to its end, and waits until it may be decoded.
    async fn read_body(
        &self,
        mut coming: RequestBuffer<'_>,
        mut body: Body,
    ) -> Result<Body, Error> {
        let mut until = Instant::now() + PROGRESS_TIMEOUT;
        let mut goal = PROGRESS_BYTES;
        loop {
            let here = tokio::select! {
                biased;
                frame = body.frame() => Some(frame),
                () = future::ready(()) => None,
            };
            let frame = match here {
                Some(frame) => frame,
                None => {
                    if coming.reservations.is_empty() {
                        self.reserve(&mut coming, MIN_RESERVED_BYTES)?;
                    }
                    let frame = timeout_at(until.into(), body.frame()).await;
                    frame.map_err(|_| coming.stalled_error())?
                }
            };
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|status| coming.truncated_error(status))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            self.push(&mut coming, &data)?;
            if coming.buffer.len() >= goal {
                goal = coming.buffer.len() + PROGRESS_BYTES;
                until = Instant::now() + PROGRESS_TIMEOUT;
            }
        }
        let data = coming.buffer.freeze();
        let place = match data.len() > LARGE_REQUEST_BYTES {
            true => Some(self.acquire_decode_permit(coming.caller, coming.limits, &data).await?),
            false => None,
        };
        let held = (coming.reservations, place);
        Ok(Body::new(Full::new(data).map_frame(move |frame| {
            // Given back with the body, which is when the request was decoded.
            let _held = &held;
            frame
        })))
    }

    /// Adds what has come.
    fn push(&self, coming: &mut RequestBuffer<'_>, data: &[u8]) -> Result<(), Error> {
        coming.buffer.extend_from_slice(data);
        if coming.expected_length.is_none()
            && let Some(prefix) = coming.buffer.first_chunk::<GRPC_PREFIX_BYTES>()
        {
            let [_, length @ ..] = *prefix;
            let announced = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            if announced > coming.limits.max_bytes {
                return Err(coming.too_large_error(announced));
            }
            let length = announced + GRPC_PREFIX_BYTES;
            coming.expected_length = Some(length);
            if length > LARGE_REQUEST_BYTES || length > coming.buffer.len() {
                self.reserve(coming, length)?;
                coming.buffer.reserve(length.saturating_sub(coming.buffer.len()));
            }
        }
        match coming.expected_length {
            Some(length) if coming.buffer.len() > length => {
                let text = format!("a request of {} is one message: send one", coming.method);
                Err(Error::new(Reason::InvalidParams, text))
            }
            _ => Ok(()),
        }
    }

    /// Makes room for so many bytes.
    fn reserve(&self, coming: &mut RequestBuffer<'_>, bytes: usize) -> Result<(), Error> {
        let held = self.buffered.reserve(coming.caller, bytes as u64);
        let held = held.map_err(|ByteBudgetExceeded(others)| {
            let text = format!(
                "requests of {others} bytes of this caller are on their way, and there is no room for {bytes} more: retry after the time given, with fewer or smaller ones at a time"
            );
            Error::new(Reason::ResourceExhausted, text).retry_after(RETRY_AFTER)
        })?;
        coming.reservations.push(held);
        Ok(())
    }

    /// Waits until a large request may be decoded, and looks whether it should be.
    async fn acquire_decode_permit(
        &self,
        caller: &PrincipalKey,
        measure: &Arc<RequestLimits>,
        data: &Bytes,
    ) -> Result<Permit, Error> {
        let place = match self.decoders.acquire(caller, usize::MAX) {
            Ok(Acquire::Granted(place)) => place,
            Ok(Acquire::Queued(mut waiting)) => waiting.wait().await,
            Err(_) => return Err(Error::internal("a line without a bound is full")),
        };
        let (measure, data) = (Arc::clone(measure), data.clone());
        let looked = task::spawn_blocking(move || {
            let message = data.get(GRPC_PREFIX_BYTES..).unwrap_or_default();
            (measure.oversized_fields(message), place)
        });
        let (violations, place) = looked.await.map_err(Error::internal)?;
        match violations.is_empty() {
            true => Ok(place),
            false => Err(Error::invalid(violations)),
        }
    }
}

impl RequestBuffer<'_> {
    fn too_large_error(&self, announced: usize) -> Error {
        let most = self.limits.max_bytes;
        let text = format!(
            "the request is too large: one of {} has at most {most} bytes, and this one has {announced}: send less",
            self.method
        );
        Error::new(Reason::ResourceExhausted, text).with_metadata("limit", most.to_string())
    }

    fn stalled_error(&self) -> Error {
        let text = format!(
            "only {} bytes of the request have come, and next to nothing in the last {} seconds; nothing was done: send it again",
            self.buffer.len(),
            PROGRESS_TIMEOUT.as_secs()
        );
        Error::new(Reason::Timeout, text)
    }

    fn truncated_error(&self, status: tonic::Status) -> Error {
        let text = format!(
            "the request broke off after {} bytes, and nothing was done: send it again",
            self.buffer.len()
        );
        Error::new(Reason::InvalidParams, text).with_cause(status)
    }
}
