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
    call::{Pipeline, access::principal::Principal},
    catalog::Measure,
    door::status::to_status,
    error::{Error, Reason},
    queue::{Backlog, Entry, Name, Place, Queue, Share, TooMuch, Waits},
    task,
    workspace::cores,
};

/// What tells how long a message is: a flag, and the number of its bytes (gRPC over HTTP/2).
const PREFIX_BYTES: usize = 5;
/// Requests that are decoded at once; longer ones one after the other.
const LARGE: usize = 64 << 10;
/// What one that has not come takes, however long it is: its metadata, and what keeps it.
const LEAST_BYTES: usize = 4 << 10;
/// How long so much of one may take to come. A client that is alive sends it in milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);
const STEP_BYTES: usize = 64 << 10;
/// When there is room again for requests: they come as fast as they are sent.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The layer.
#[derive(Debug, Clone)]
pub(super) struct IntakeLayer(Arc<Intake>);

/// A service behind it.
#[derive(Debug, Clone)]
pub(super) struct TakenIn<S> {
    inner: S,
    intake: Arc<Intake>,
}

/// What is taken in.
#[derive(Debug)]
struct Intake {
    pipeline: Arc<Pipeline>,
    /// Requests that are not there as a whole, or not decoded yet.
    bodies: Arc<Backlog>,
    /// For decoding large ones.
    decoders: Arc<Queue>,
}

/// A request that comes in.
struct Coming<'a> {
    caller: &'a Name,
    method: &'a str,
    measure: &'a Arc<Measure>,
    taken: BytesMut,
    /// How long it is with its prefix, once that is there.
    length: Option<usize>,
    held: Vec<Waits>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl IntakeLayer {
    /// That of a pipeline.
    pub(super) fn new(pipeline: Arc<Pipeline>) -> Self {
        Self(Arc::new(Intake {
            pipeline,
            bodies: Arc::default(),
            // Those who wait are bounded by their bytes.
            decoders: Queue::new((cores() / 2).max(1), Share::All, usize::MAX),
        }))
    }
}

impl<S> Layer<S> for IntakeLayer {
    type Service = TakenIn<S>;

    fn layer(&self, inner: S) -> TakenIn<S> {
        TakenIn { inner, intake: Arc::clone(&self.0) }
    }
}

impl<S> Service<Request<Body>> for TakenIn<S>
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
        let measure = self.intake.pipeline.catalog.measure(method).cloned();
        let principal = request.extensions().get::<Arc<Principal>>().cloned();
        let (Some(measure), Some(principal)) = (measure, principal) else {
            // None of the daemon's own methods.
            return Box::pin(self.inner.call(request));
        };
        if measure.counts
            && let Err(error) = principal.count_call(Instant::now())
        {
            return Box::pin(future::ready(Ok(to_status(&error).into_http())));
        }
        if measure.streams {
            return Box::pin(self.inner.call(request));
        }
        let method = method.to_owned();
        let intake = Arc::clone(&self.intake);
        // The one that said that it is ready.
        let another = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, another);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let coming = Coming {
                caller: principal.lane(),
                method: &method,
                measure: &measure,
                taken: BytesMut::new(),
                length: None,
                held: Vec::new(),
            };
            match intake.take_in(coming, body).await {
                Ok(body) => inner.call(Request::from_parts(parts, body)).await,
                Err(error) => Ok(to_status(&error).into_http()),
            }
        })
    }
}

impl Intake {
    /// Reads a request to its end, and waits until it may be decoded.
    async fn take_in(&self, mut coming: Coming<'_>, mut body: Body) -> Result<Body, Error> {
        let mut until = Instant::now() + PATIENCE;
        let mut goal = STEP_BYTES;
        loop {
            let here = tokio::select! {
                biased;
                frame = body.frame() => Some(frame),
                () = future::ready(()) => None,
            };
            let frame = match here {
                Some(frame) => frame,
                None => {
                    if coming.held.is_empty() {
                        self.hold(&mut coming, LEAST_BYTES)?;
                    }
                    let frame = timeout_at(until.into(), body.frame()).await;
                    frame.map_err(|_| coming.stuck())?
                }
            };
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|status| coming.broken(status))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            self.add(&mut coming, &data)?;
            if coming.taken.len() >= goal {
                goal = coming.taken.len() + STEP_BYTES;
                until = Instant::now() + PATIENCE;
            }
        }
        let data = coming.taken.freeze();
        let place = match data.len() > LARGE {
            true => Some(self.look(coming.caller, coming.measure, &data).await?),
            false => None,
        };
        let held = (coming.held, place);
        Ok(Body::new(Full::new(data).map_frame(move |frame| {
            // Given back with the body, which is when the request was decoded.
            let _held = &held;
            frame
        })))
    }

    /// Adds what has come.
    fn add(&self, coming: &mut Coming<'_>, data: &[u8]) -> Result<(), Error> {
        coming.taken.extend_from_slice(data);
        if coming.length.is_none()
            && let Some(prefix) = coming.taken.first_chunk::<PREFIX_BYTES>()
        {
            let [_, length @ ..] = *prefix;
            let announced = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            if announced > coming.measure.most_bytes {
                return Err(coming.too_large(announced));
            }
            let length = announced + PREFIX_BYTES;
            coming.length = Some(length);
            if length > LARGE || length > coming.taken.len() {
                self.hold(coming, length)?;
                coming.taken.reserve(length.saturating_sub(coming.taken.len()));
            }
        }
        match coming.length {
            Some(length) if coming.taken.len() > length => {
                let text = format!("a request of {} is one message: send one", coming.method);
                Err(Error::new(Reason::InvalidParams, text))
            }
            _ => Ok(()),
        }
    }

    /// Makes room for so many bytes.
    fn hold(&self, coming: &mut Coming<'_>, bytes: usize) -> Result<(), Error> {
        let held = self.bodies.add(coming.caller, bytes as u64);
        let held = held.map_err(|TooMuch(others)| {
            let text = format!(
                "requests of {others} bytes of this caller are on their way, and there is no room for {bytes} more: retry after the time given, with fewer or smaller ones at a time"
            );
            Error::new(Reason::ResourceExhausted, text).retry_after(RETRY_AFTER)
        })?;
        coming.held.push(held);
        Ok(())
    }

    /// Waits until a large request may be decoded, and looks whether it should be.
    async fn look(
        &self,
        caller: &Name,
        measure: &Arc<Measure>,
        data: &Bytes,
    ) -> Result<Place, Error> {
        let place = match self.decoders.enter(caller, usize::MAX) {
            Ok(Entry::Place(place)) => place,
            Ok(Entry::Wait(mut waiting)) => waiting.place().await,
            Err(_) => return Err(Error::internal("a line without a bound is full")),
        };
        let (measure, data) = (Arc::clone(measure), data.clone());
        let looked = task::blocking(move || {
            let message = data.get(PREFIX_BYTES..).unwrap_or_default();
            (measure.too_long(message), place)
        });
        let (violations, place) = looked.await.map_err(Error::internal)?;
        match violations.is_empty() {
            true => Ok(place),
            false => Err(Error::invalid(violations)),
        }
    }
}

impl Coming<'_> {
    fn too_large(&self, announced: usize) -> Error {
        let most = self.measure.most_bytes;
        let text = format!(
            "the request is too large: one of {} has at most {most} bytes, and this one has {announced}: send less",
            self.method
        );
        Error::new(Reason::ResourceExhausted, text).with("limit", most.to_string())
    }

    fn stuck(&self) -> Error {
        let text = format!(
            "only {} bytes of the request have come, and next to nothing in the last {} seconds; nothing was done: send it again",
            self.taken.len(),
            PATIENCE.as_secs()
        );
        Error::new(Reason::Timeout, text)
    }

    fn broken(&self, status: tonic::Status) -> Error {
        let text = format!(
            "the request broke off after {} bytes, and nothing was done: send it again",
            self.taken.len()
        );
        Error::new(Reason::InvalidParams, text).caused_by(status)
    }
}
