//! Responses of gRPC as responses of the Connect protocol.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt as _;
use prost_reflect::DynamicMessage;
use serde_json::{Map, Value as Json, json};
use tonic::{Code, Status, body::Body};

use super::{
    call::{ConnectCall, ContentType, PREFIX_BYTES, put_prefix},
    error::{error_json, http_status},
};
use crate::daemon::{
    catalog::json::write_whole_numbers, error::Error, grpc::status::to_status, task,
};

/// Flag of the last message of a stream, which has the error and the trailers.
const END_STREAM_FLAG: u8 = 2;
/// Larger messages are translated by a thread for blocking work.
const MAX_INLINE_BYTES: usize = 64 << 10;

/// Translates the response of the gRPC layers.
pub(crate) async fn translate_response(
    call: Arc<ConnectCall>,
    response: Response<Body>,
) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let status = Status::from_header_map(&parts.headers);
    let headers = metadata(mem::take(&mut parts.headers));

    if call.content.is_stream {
        let state = match status {
            Some(status) => StreamState::Ending(Box::new(status), HeaderMap::new()),
            None => StreamState::Open,
        };
        let body = StreamBody { body, received: BytesMut::new(), call: Arc::clone(&call), state };
        return ok_response(&call, headers, Body::new(body));
    }

    if let Some(status) = status {
        return with_headers(error_response(&call, &status), headers);
    }
    match unary_message(&call, body).await {
        Ok((message, trailers)) => {
            let mut response =
                ok_response(&call, headers, Body::new(http_body_util::Full::new(message)));
            add_trailers(response.headers_mut(), trailers);
            response
        }
        Err((status, trailers)) => {
            let mut response = with_headers(error_response(&call, &status), headers);
            add_trailers(response.headers_mut(), trailers);
            response
        }
    }
}

/// The response to a call that failed. One that streams has the error in its body.
pub(super) fn error_response(call: &ConnectCall, status: &Status) -> Response<Body> {
    if call.content.is_stream {
        let body = http_body_util::Full::new(end_of_stream(status, &HeaderMap::new()));
        return ok_response(call, HeaderMap::new(), Body::new(body));
    }
    unary_error_response(status)
}

pub(super) fn unary_error_response(status: &Status) -> Response<Body> {
    let json = error_json(status).to_string();
    let mut response = Response::new(Body::new(http_body_util::Full::new(Bytes::from(json))));
    *response.status_mut() = http_status(status.code());
    let content = ContentType { is_json: true, is_stream: false };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content.name()));
    response
}

fn ok_response(call: &ConnectCall, headers: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::OK;
    *response.headers_mut() = headers;
    let content_type = HeaderValue::from_static(call.content.name());
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn with_headers(mut response: Response<Body>, headers: HeaderMap) -> Response<Body> {
    response.headers_mut().extend(headers);
    response
}

/// The headers or trailers without those of gRPC itself.
fn metadata(mut headers: HeaderMap) -> HeaderMap {
    for name in [
        "grpc-status",
        "grpc-message",
        "grpc-status-details-bin",
        "grpc-encoding",
        "grpc-accept-encoding",
    ] {
        headers.remove(name);
    }
    headers.remove(CONTENT_TYPE);
    headers.remove(CONTENT_LENGTH);
    headers
}

/// Adds trailers to the headers of a unary response, as the protocol names them.
fn add_trailers(headers: &mut HeaderMap, trailers: HeaderMap) {
    for (name, value) in &metadata(trailers) {
        if let Ok(name) = HeaderName::try_from(format!("trailer-{name}")) {
            headers.append(name, value.clone());
        }
    }
}

/// The message of a unary response in the content type of the call, and the trailers.
async fn unary_message(
    call: &Arc<ConnectCall>,
    body: Body,
) -> Result<(Bytes, HeaderMap), (Status, HeaderMap)> {
    let collected = body.collect().await.map_err(|status| (status, HeaderMap::new()))?;
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let mut body = BytesMut::from(collected.to_bytes());

    let status = Status::from_header_map(&trailers).unwrap_or_else(missing_status);
    if status.code() != Code::Ok {
        return Err((status, trailers));
    }
    let message = take_message(&mut body).unwrap_or_default();
    let translated = if call.content.is_json && message.len() > MAX_INLINE_BYTES {
        let call = Arc::clone(call);
        let translated = task::spawn_blocking(move || call.translate_message(message)).await;
        translated.map_err(Error::internal).flatten()
    } else {
        call.translate_message(message)
    };
    match translated {
        Ok(message) => Ok((message, trailers)),
        Err(error) => Err((to_status(&error), trailers)),
    }
}

fn missing_status() -> Status {
    to_status(&Error::internal("a response has no status"))
}

/// Takes a complete message of gRPC from the received bytes.
fn take_message(received: &mut BytesMut) -> Option<Bytes> {
    let prefix = received.first_chunk::<PREFIX_BYTES>()?;
    let [_, length @ ..] = *prefix;
    let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
    if received.len() < PREFIX_BYTES + length {
        return None;
    }
    received.advance(PREFIX_BYTES);
    Some(received.split_to(length).freeze())
}

impl ConnectCall {
    /// A message of the response in the content type of the call.
    fn translate_message(&self, message: Bytes) -> Result<Bytes, Error> {
        if !self.content.is_json {
            return Ok(message);
        }
        let message =
            DynamicMessage::decode(self.method.output(), message).map_err(Error::internal)?;
        let mut json = serde_json::to_value(&message).map_err(Error::internal)?;
        write_whole_numbers(&mut json);
        Ok(json.to_string().into())
    }
}

/// The last message of a stream.
fn end_of_stream(status: &Status, trailers: &HeaderMap) -> Bytes {
    let mut end = Map::new();
    if status.code() != Code::Ok {
        end.insert("error".to_owned(), error_json(status));
    }
    let metadata = metadata_json(trailers);
    if !metadata.is_empty() {
        end.insert("metadata".to_owned(), metadata.into());
    }
    let json = Json::from(end).to_string();

    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + json.len());
    put_prefix(&mut framed, END_STREAM_FLAG, json.len());
    framed.put(json.as_bytes());
    framed.freeze()
}

/// Trailers as the protocol's JSON: lists of texts by name. Those of names that end in `-bin` are
/// Base64 already.
fn metadata_json(trailers: &HeaderMap) -> Map<String, Json> {
    let trailers = metadata(trailers.clone());
    let values = |name| {
        let values = trailers.get_all(name).iter();
        let text = |value: &HeaderValue| match value.to_str() {
            Ok(text) => text.to_owned(),
            Err(_) => STANDARD_NO_PAD.encode(value.as_bytes()),
        };
        json!(values.map(text).collect::<Vec<_>>())
    };
    trailers.keys().map(|name| (name.as_str().to_owned(), values(name))).collect()
}

/// The body of a response that streams.
struct StreamBody {
    body: Body,
    /// Received bytes that are no complete message yet.
    received: BytesMut,
    call: Arc<ConnectCall>,
    state: StreamState,
}

enum StreamState {
    Open,
    /// The last message is to be sent.
    Ending(Box<Status>, HeaderMap),
    Ended,
}

impl StreamBody {
    /// The next message of the response, or `None` if more must be received.
    fn next_message(&mut self) -> Option<Bytes> {
        let message = take_message(&mut self.received)?;
        match self.call.translate_message(message) {
            Ok(message) => {
                let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
                put_prefix(&mut framed, 0, message.len());
                framed.put(message);
                Some(framed.freeze())
            }
            Err(error) => {
                self.state = StreamState::Ending(Box::new(to_status(&error)), HeaderMap::new());
                None
            }
        }
    }
}

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            match mem::replace(&mut self.state, StreamState::Ended) {
                StreamState::Ended => return Poll::Ready(None),
                StreamState::Ending(status, trailers) => {
                    return Poll::Ready(Some(Ok(Frame::data(end_of_stream(&status, &trailers)))));
                }
                StreamState::Open => self.state = StreamState::Open,
            }

            if let Some(message) = self.next_message() {
                return Poll::Ready(Some(Ok(Frame::data(message))));
            }
            if !matches!(self.state, StreamState::Open) {
                continue;
            }

            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            self.state = match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => {
                    self.received.extend_from_slice(&data);
                    StreamState::Open
                }
                Some(Ok(Err(frame))) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let status = Status::from_header_map(&trailers).unwrap_or_else(missing_status);
                    StreamState::Ending(Box::new(status), trailers)
                }
                Some(Err(status)) => StreamState::Ending(Box::new(status), HeaderMap::new()),
                None => StreamState::Ending(Box::new(missing_status()), HeaderMap::new()),
            };
        }
    }
}
