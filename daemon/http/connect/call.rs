//! A call of the Connect protocol, and its messages as messages of gRPC.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, header::CONTENT_TYPE};
use prost::Message as _;
use prost_reflect::{DynamicMessage, MethodDescriptor};
use serde_json::{Map, Value as Json};

use crate::daemon::{
    catalog::json::read_json_message,
    error::{Error, Reason},
    http::unique_json::read_unique_json,
};

/// Flag and length in front of each message of gRPC, and of a Connect stream.
pub(crate) const PREFIX_BYTES: usize = 5;
/// Flag of a compressed message.
const COMPRESSED_FLAG: u8 = 1;
/// A call of the Connect protocol. An extension of its gRPC request.
#[derive(Debug)]
pub(crate) struct ConnectCall {
    pub(super) method: MethodDescriptor,
    pub(super) content: ContentType,
}

/// The content type of a request and its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContentType {
    pub(super) is_json: bool,
    /// Whether messages have a prefix, as in calls that stream.
    pub(super) is_stream: bool,
}

impl ContentType {
    pub(super) const ALL: [Self; 4] = [
        Self { is_json: true, is_stream: false },
        Self { is_json: false, is_stream: false },
        Self { is_json: true, is_stream: true },
        Self { is_json: false, is_stream: true },
    ];

    pub(super) fn name(self) -> &'static str {
        match (self.is_json, self.is_stream) {
            (true, false) => "application/json",
            (false, false) => "application/proto",
            (true, true) => "application/connect+json",
            (false, true) => "application/connect+proto",
        }
    }

    pub(super) fn parse(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let essence = value.split(';').next().unwrap_or_default().trim();
        Self::ALL.into_iter().find(|content| essence.eq_ignore_ascii_case(content.name()))
    }
}

impl ConnectCall {
    /// Whether a message of the request has a prefix with its length.
    pub(crate) fn has_prefix(&self) -> bool {
        self.content.is_stream
    }

    /// Whether the request must be translated, not only framed.
    pub(crate) fn is_json(&self) -> bool {
        self.content.is_json
    }

    /// Translates a complete request to a message of gRPC, with its prefix.
    pub(crate) fn translate_request(&self, request: &Bytes) -> Result<Bytes, Error> {
        if !self.content.is_stream {
            return self.frame_message(request.clone());
        }
        // The length was compared with the prefix when the request was received.
        match request.split_at_checked(PREFIX_BYTES) {
            Some(([flags, ..], message)) => {
                self.translate_stream_message(*flags, request.slice_ref(message))
            }
            _ => Err(Error::new(Reason::InvalidParams, "the request has no message: send one")),
        }
    }

    /// Translates a message of a request that streams.
    pub(super) fn translate_stream_message(
        &self,
        flags: u8,
        message: Bytes,
    ) -> Result<Bytes, Error> {
        match flags {
            0 => self.frame_message(message),
            COMPRESSED_FLAG => Err(compression_error()),
            flags => {
                let text = format!("the flags of a message are {flags}, and must be 0");
                Err(Error::new(Reason::InvalidParams, text))
            }
        }
    }

    /// The message of a request as a message of gRPC, with its prefix.
    fn frame_message(&self, message: Bytes) -> Result<Bytes, Error> {
        let mut framed;
        if self.content.is_json {
            let message = self.read_json(&message)?;
            framed = BytesMut::with_capacity(PREFIX_BYTES + message.encoded_len());
            put_prefix(&mut framed, 0, message.encoded_len());
            message.encode(&mut framed).map_err(Error::internal)?;
        } else {
            framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
            put_prefix(&mut framed, 0, message.len());
            framed.put(message);
        }
        Ok(framed.freeze())
    }

    /// Reads a message in JSON. Reports every field that does not fit.
    fn read_json(&self, json: &[u8]) -> Result<DynamicMessage, Error> {
        let problem = match read_unique_json(json) {
            Ok(Json::Object(fields)) => return self.read_fields(&fields),
            Ok(_) => String::new(),
            Err(error) => format!(": {error}"),
        };
        let text = format!("the request is no JSON object{problem}; an empty one is {{}}");
        Err(Error::new(Reason::InvalidParams, text))
    }

    fn read_fields(&self, fields: &Map<String, Json>) -> Result<DynamicMessage, Error> {
        read_json_message(&self.method.input(), fields).map_err(Error::invalid)
    }
}

/// Writes the prefix of a message.
pub(super) fn put_prefix(buffer: &mut BytesMut, flags: u8, length: usize) {
    buffer.put_u8(flags);
    buffer.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

pub(super) fn compression_error() -> Error {
    Error::invalid_field("content-encoding", "must be identity: send messages without compression")
}
