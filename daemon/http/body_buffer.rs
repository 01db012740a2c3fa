//! Reads the body of a request into memory, which is limited for each caller and in total.

use std::{fmt::Display, pin::pin, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::{BodyDataStream, BodyExt as _, Full};
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use super::arrival::ArrivalTimeout;
use crate::daemon::{
    error::{Error, Reason},
    grpc::status::to_status,
    queue::{ByteBudget, ByteBudgetExceeded, ByteReservation, PrincipalName},
};

/// Bytes that are reserved together.
const RESERVED_STEP_BYTES: usize = 64 << 10;
/// Retry delay when other requests use the memory. They free it as fast as clients send.
const BUDGET_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Whose memory the body of a request uses. Added to the extensions of a request when its caller is
/// known.
#[derive(Debug, Clone)]
pub(super) struct BodyMemory {
    pub(super) budget: Arc<ByteBudget>,
    pub(super) caller: PrincipalName,
}

/// A body that is being read.
#[derive(Debug)]
pub(crate) struct BodyBuffer<'a> {
    budget: &'a Arc<ByteBudget>,
    caller: &'a PrincipalName,
    max_bytes: usize,
    data: BytesMut,
    reserved_bytes: usize,
    reservations: Vec<ByteReservation>,
}

/// A body that has arrived, with its memory.
#[derive(Debug)]
pub(crate) struct BufferedBody {
    pub(crate) data: Bytes,
    #[expect(dead_code, reason = "returns the memory on drop")]
    reservations: Vec<ByteReservation>,
}

/// Why a body was not read.
#[derive(Debug)]
pub(crate) struct BodyError {
    pub(crate) error: Error,
    /// The HTTP status, if it is not that of the error's code.
    pub(crate) http_status: Option<StatusCode>,
}

impl<'a> BodyBuffer<'a> {
    /// `budget` limits what `caller` and others send at the same time.
    pub(crate) fn new(
        budget: &'a Arc<ByteBudget>,
        caller: &'a PrincipalName,
        max_bytes: usize,
    ) -> Self {
        Self {
            budget,
            caller,
            max_bytes,
            data: BytesMut::new(),
            reserved_bytes: 0,
            reservations: Vec::new(),
        }
    }

    /// Reads a body to its end.
    ///
    /// # Errors
    ///
    /// Fails if the body is too long, arrives too slowly or ends early, and if the caller or all
    /// use too much memory.
    pub(crate) async fn read<B>(mut self, body: B) -> Result<BufferedBody, BodyError>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Display,
    {
        if let Some(length) = body.size_hint().exact() {
            self.reserve(usize::try_from(length).unwrap_or(usize::MAX))?;
        }
        self.read_bytes(BodyDataStream::new(body)).await?;
        Ok(self.finish())
    }

    /// Number of bytes that have arrived.
    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    pub(crate) fn finish(self) -> BufferedBody {
        BufferedBody { data: self.data.freeze(), reservations: self.reservations }
    }

    /// Reads all of `bytes`, which are a part of the body.
    pub(crate) async fn read_bytes<E: Display>(
        &mut self,
        bytes: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<(), BodyError> {
        let mut bytes = pin!(bytes);
        let mut arrival = ArrivalTimeout::new();
        loop {
            let chunk = match arrival.wait(self.data.len(), bytes.next()).await? {
                Some(Ok(chunk)) => chunk,
                Some(Err(error)) => return Err(BodyError::unreadable(&error)),
                None => return Ok(()),
            };

            self.reserve(self.data.len() + chunk.len())?;
            self.data.extend_from_slice(&chunk);
        }
    }

    /// Reserves memory for a body of at least `length` bytes.
    fn reserve(&mut self, length: usize) -> Result<(), BodyError> {
        if length > self.max_bytes {
            return Err(BodyError::too_large(self.max_bytes));
        }
        if length <= self.reserved_bytes {
            return Ok(());
        }

        let goal = length.next_multiple_of(RESERVED_STEP_BYTES).min(self.max_bytes);
        let bytes = goal - self.reserved_bytes;
        let reserved = self.budget.reserve(self.caller, bytes as u64);
        let reservation = reserved.map_err(|exceeded| {
            let requests = "requests that have not arrived completely";
            BodyError { error: memory_error(&exceeded, requests, bytes), http_status: None }
        })?;
        self.reservations.push(reservation);
        self.reserved_bytes = goal;
        self.data.reserve(goal - self.data.len());
        Ok(())
    }
}

/// The error of a request for which the budget has not `bytes` more. `requests` names what uses it.
pub(crate) fn memory_error(exceeded: &ByteBudgetExceeded, requests: &str, bytes: usize) -> Error {
    let text = exceeded.describe(requests, bytes);
    Error::new(Reason::ResourceExhausted, text).with_retry_after(BUDGET_RETRY_AFTER)
}

impl BufferedBody {
    /// The body again, for a service that reads it. Its memory is returned with it.
    pub(crate) fn into_body(self) -> tonic::body::Body {
        let data = self.data.clone();
        tonic::body::Body::new(Full::new(data).map_frame(move |frame| {
            let _held = &self;
            frame
        }))
    }
}

impl BodyError {
    pub(crate) fn too_large(max_bytes: usize) -> Self {
        let text = format!(
            "the request is too large: at most {max_bytes} bytes are allowed. Send less, or a file with jig.v1.TransferService"
        );
        let error = Error::new(Reason::ResourceExhausted, text);
        Self {
            error: error.with_metadata("limit", max_bytes.to_string()),
            http_status: Some(StatusCode::PAYLOAD_TOO_LARGE),
        }
    }

    pub(crate) fn unreadable(error: &impl Display) -> Self {
        let text = format!("the request cannot be read: {error}. Nothing was done");
        Self { error: Error::new(Reason::InvalidParams, text), http_status: None }
    }
}

/// The request arrived too slowly.
impl From<Error> for BodyError {
    fn from(error: Error) -> Self {
        Self { error, http_status: Some(StatusCode::REQUEST_TIMEOUT) }
    }
}

impl From<BodyError> for Status {
    fn from(error: BodyError) -> Self {
        to_status(&error.error)
    }
}
