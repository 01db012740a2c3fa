//! Reads the body of a request into memory, which is limited for each caller and in total.
//!
//! A file is held until all of it has arrived, because an upload of the contract begins with the
//! checksum of its bytes.

use std::{fmt::Display, pin::pin, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{FromRequest as _, Multipart, Request},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode, header::CONTENT_TYPE};
use http_body::Body as _;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use super::api_error::ApiError;
use crate::daemon::{
    error::{Error, Reason},
    grpc::status::to_status,
    http::ArrivalTimeout,
    queue::{ByteBudget, ByteReservation, PrincipalName},
};

/// Bytes that are reserved together.
const RESERVED_STEP_BYTES: usize = 64 << 10;
/// Retry delay when other requests use the memory.
const BUDGET_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Name of the part with the file.
const FILE_PART: &str = "file";
const FORM_TYPE: &str = "multipart/form-data";

/// A body that is being read.
#[derive(Debug)]
pub(super) struct BodyBuffer<'a> {
    budget: &'a Arc<ByteBudget>,
    caller: &'a PrincipalName,
    max_bytes: usize,
    data: BytesMut,
    reserved_bytes: usize,
    reservations: Vec<ByteReservation>,
}

/// A body that has arrived, with its memory.
#[derive(Debug)]
pub(super) struct BufferedBody {
    pub(super) data: Bytes,
    #[expect(dead_code, reason = "returns the memory on drop")]
    reservations: Vec<ByteReservation>,
}

/// Why a body was not read.
#[derive(Debug)]
pub(super) struct BodyError {
    error: Error,
    /// The HTTP status, if it is not that of the error's code.
    http_status: Option<StatusCode>,
}

impl<'a> BodyBuffer<'a> {
    /// `budget` limits what `caller` and others send at the same time.
    pub(super) fn new(
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
    pub(super) async fn read(mut self, body: Body) -> Result<BufferedBody, BodyError> {
        if let Some(length) = body.size_hint().exact() {
            self.reserve(usize::try_from(length).unwrap_or(usize::MAX))?;
        }
        self.read_bytes(body.into_data_stream()).await?;
        Ok(self.finish())
    }

    /// Reads the file of a request, which is the body or a part of a form.
    pub(super) async fn read_file(mut self, request: Request) -> Result<BufferedBody, BodyError> {
        if !is_form(request.headers()) {
            return self.read(request.into_body()).await;
        }
        self.read_form(request).await?;
        Ok(self.finish())
    }

    fn finish(self) -> BufferedBody {
        BufferedBody { data: self.data.freeze(), reservations: self.reservations }
    }

    /// Reads a form to its end. Its first part of the right name is the file.
    async fn read_form(&mut self, request: Request) -> Result<(), BodyError> {
        let form = Multipart::from_request(request, &()).await;
        let mut form = form.map_err(|rejection| BodyError::unreadable(&rejection.body_text()))?;
        let mut has_file = false;
        let mut arrival = ArrivalTimeout::new();
        loop {
            let part = arrival.wait(self.data.len(), form.next_field()).await?;
            let part = part.map_err(|error| match error.status() {
                StatusCode::PAYLOAD_TOO_LARGE => BodyError::too_large(self.max_bytes),
                _ => BodyError::unreadable(&error.body_text()),
            })?;
            let Some(part) = part else { break };
            if part.name() == Some(FILE_PART) && !has_file {
                has_file = true;
                self.read_bytes(part).await?;
            }
        }
        if has_file {
            Ok(())
        } else {
            Err(BodyError::unreadable(&format!("the form has no part {FILE_PART:?}")))
        }
    }

    async fn read_bytes<E: Display>(
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
            let text = exceeded.describe("requests that have not arrived completely", bytes);
            let error = Error::new(Reason::ResourceExhausted, text);
            BodyError { error: error.with_retry_after(BUDGET_RETRY_AFTER), http_status: None }
        })?;
        self.reservations.push(reservation);
        self.reserved_bytes = goal;
        self.data.reserve(goal - self.data.len());
        Ok(())
    }
}

impl BodyError {
    fn too_large(max_bytes: usize) -> Self {
        let text = format!(
            "the request is too large: at most {max_bytes} bytes are allowed. Send less, or a file with jig.v1.TransferService"
        );
        let error = Error::new(Reason::ResourceExhausted, text);
        Self {
            error: error.with_metadata("limit", max_bytes.to_string()),
            http_status: Some(StatusCode::PAYLOAD_TOO_LARGE),
        }
    }

    fn unreadable(error: &impl Display) -> Self {
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

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        let http_status = error.http_status;
        Self::from(Status::from(error)).with_http_status(http_status)
    }
}

fn is_form(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(FORM_TYPE.as_bytes())
}
