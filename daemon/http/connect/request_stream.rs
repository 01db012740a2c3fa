//! Requests that stream, as requests of gRPC.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use tonic::{Status, body::Body};

use super::call::{ConnectCall, PREFIX_BYTES};
use crate::daemon::{
    error::{Error, Reason},
    grpc::status::to_status,
};

/// Translates each message of a request of at most `max_bytes`, as it arrives.
pub(crate) fn translate_request_stream(
    call: Arc<ConnectCall>,
    body: Body,
    max_bytes: usize,
) -> Body {
    Body::new(RequestStream { call, body, received: BytesMut::new(), max_bytes })
}

struct RequestStream {
    call: Arc<ConnectCall>,
    body: Body,
    /// Received bytes that are no complete message yet.
    received: BytesMut,
    max_bytes: usize,
}

impl RequestStream {
    /// The next message as gRPC, or `None` if more must be received.
    fn next_message(&mut self) -> Result<Option<Bytes>, Error> {
        let Some([flags, length @ ..]) = self.received.first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let (flags, length) = (*flags, u32::from_be_bytes(*length));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > self.max_bytes {
            let text = format!(
                "a message of the request has {length} bytes; at most {} are allowed: send less",
                self.max_bytes
            );
            return Err(Error::new(Reason::ResourceExhausted, text));
        }
        if self.received.len() < PREFIX_BYTES + length {
            return Ok(None);
        }

        self.received.advance(PREFIX_BYTES);
        let message = self.received.split_to(length).freeze();
        self.call.translate_stream_message(flags, message).map(Some)
    }
}

impl HttpBody for RequestStream {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            match self.next_message() {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                Err(error) => return Poll::Ready(Some(Err(to_status(&error)))),
                Ok(None) => {}
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.received.extend_from_slice(&data);
                    }
                }
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None if self.received.is_empty() => return Poll::Ready(None),
                None => {
                    let error = Error::new(Reason::InvalidParams, "the last message is incomplete");
                    self.received.clear();
                    return Poll::Ready(Some(Err(to_status(&error))));
                }
            }
        }
    }
}
