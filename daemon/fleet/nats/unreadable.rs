//! Messages whose headers the client library cannot read ([`super::inbound`]). They never arrive, so
//! they are looked for among those that the server has delivered, in a form without headers.

use async_nats::{
    Message,
    jetstream::{
        self, ErrorCode,
        context::ConsumerInfoErrorKind,
        response::Response,
        stream::{DeleteMessageErrorKind, RawMessage, Stream},
    },
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::daemon::fleet::work_source::SourceUnavailable;

/// Readable messages in a row that end the search beyond the delivered messages.
const MAX_READABLE_AHEAD: usize = 16;
/// Sequences of delivered messages that a search notes.
const MAX_NOTED_SEQUENCES: usize = 100;

/// A message that cannot be read.
#[derive(Debug)]
pub(super) struct UnreadableMessage {
    pub(super) sequence: u64,
    /// Its subject, its body, and what the stream says of it.
    pub(super) message: jetstream::Message,
}

/// The request of `$JS.API.STREAM.MSG.GET`, which replies in JSON.
#[derive(Serialize)]
struct NextMessage<'a> {
    #[serde(rename = "seq")]
    sequence: u64,
    #[serde(rename = "next_by_subj")]
    subject: &'a str,
}

#[derive(Deserialize)]
struct FoundMessage {
    message: RawMessage,
}

/// What a search of the messages of a queue has found.
#[derive(Debug, Default)]
pub(super) struct SearchedMessages {
    /// Number of messages that could not be read.
    pub(super) buried: usize,
    /// Sequences of some that can be read, were delivered, and are not acknowledged.
    pub(super) delivered: Vec<u64>,
}

/// A search for messages of a consumer that cannot be read: among those that were delivered and are not
/// acknowledged, and among the next ones, as each would break a connection.
#[derive(Debug)]
pub(super) struct UnreadableSearch<'a> {
    jetstream: &'a jetstream::Context,
    stream: &'a str,
    consumer: String,
    subject: String,
    next_sequence: u64,
    last_delivered: u64,
    /// As in [`SearchedMessages`].
    delivered: Vec<u64>,
    /// Messages that can be read, after the delivered ones and after the last one that cannot.
    readable_ahead: usize,
}

impl<'a> UnreadableSearch<'a> {
    /// Returns `None` if there is no such consumer.
    pub(super) async fn start(
        jetstream: &'a jetstream::Context,
        stream: &'a Stream,
        consumer: String,
        subject: String,
    ) -> Result<Option<Self>, SourceUnavailable> {
        let info = match stream.consumer_info(&consumer).await {
            Ok(info) => info,
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(SourceUnavailable::new(error)),
        };
        Ok(Some(Self {
            jetstream,
            stream: &stream.cached_info().config.name,
            consumer,
            subject,
            next_sequence: info.ack_floor.stream_sequence + 1,
            last_delivered: info.delivered.stream_sequence,
            delivered: Vec::new(),
            readable_ahead: 0,
        }))
    }

    /// Sequences of delivered messages that can be read.
    pub(super) fn delivered(self) -> Vec<u64> {
        self.delivered
    }

    /// Returns the next message that cannot be read.
    pub(super) async fn next(&mut self) -> Result<Option<UnreadableMessage>, SourceUnavailable> {
        while self.readable_ahead < MAX_READABLE_AHEAD {
            let request = NextMessage { sequence: self.next_sequence, subject: &self.subject };
            let subject = format!("STREAM.MSG.GET.{}", self.stream);
            let found = self.jetstream.request(subject, &request).await;
            let message = match found.map_err(SourceUnavailable::new)? {
                Response::Ok(FoundMessage { message }) => message,
                Response::Err { error } if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => {
                    return Ok(None);
                }
                Response::Err { error } => return Err(SourceUnavailable::new(error)),
            };

            let sequence = message.sequence;
            self.next_sequence = sequence + 1;
            let headers = message.headers.as_deref().map(|headers| BASE64_STANDARD.decode(headers));
            if headers.is_some_and(|headers| !headers.is_ok_and(|headers| is_readable(&headers))) {
                self.readable_ahead = 0;
                let message = self.without_headers(&message);
                return Ok(Some(UnreadableMessage { sequence, message }));
            }
            if sequence > self.last_delivered {
                self.readable_ahead += 1;
            } else if self.delivered.len() < MAX_NOTED_SEQUENCES {
                self.delivered.push(sequence);
            }
        }
        Ok(None)
    }

    fn without_headers(&self, stored: &RawMessage) -> jetstream::Message {
        let payload = Bytes::from(BASE64_STANDARD.decode(&stored.payload).unwrap_or_default());
        let Self { stream, consumer, .. } = self;
        let (sequence, time) = (stored.sequence, stored.time.unix_timestamp_nanos());
        let message = Message {
            subject: stored.subject.as_str().into(),
            // As of a first delivery. Names the message, so that two daemons store one dead letter.
            reply: Some(format!("$JS.ACK.{stream}.{consumer}.1.{sequence}.1.{time}.0").into()),
            length: payload.len(),
            payload,
            headers: None,
            status: None,
            description: None,
        };
        jetstream::Message { message, context: self.jetstream.clone() }
    }
}

/// Deletes a message, unless another daemon has deleted it.
pub(super) async fn delete_message(
    stream: &Stream,
    sequence: u64,
) -> Result<(), SourceUnavailable> {
    match stream.delete_message(sequence).await {
        Ok(_deleted) => Ok(()),
        Err(error) => {
            if let DeleteMessageErrorKind::JetStream(refusal) = error.kind()
                && refusal.error_code() == ErrorCode::STREAM_MESSAGE_DELETE_FAILED
            {
                tracing::debug!(%error, sequence, "cannot delete a message of the fleet");
                return Ok(());
            }
            Err(SourceUnavailable::new(error))
        }
    }
}

/// Whether the client library can read headers.
fn is_readable(headers: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(headers) else { return false };
    let mut lines = text.lines();
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_graphic());
    // A line continues a value only directly after its header, or after a line that continues it.
    let mut may_continue = false;
    lines.next() == Some("NATS/1.0")
        && lines.all(|line| {
            let is_continuation = may_continue && line.starts_with(char::is_whitespace);
            let is_field = || line.split_once(':').is_some_and(|(name, _)| is_name(name));
            may_continue = !line.is_empty();
            !line.contains('\r') && (line.is_empty() || is_continuation || is_field())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_headers_are_unreadable() {
        for headers in [
            "NATS/1.0\r\n\r\n",
            "NATS/1.0\r\nA: b\r\nEmpty:\r\n\r\n",
            "NATS/1.0\r\nA: b:\u{fc}\r\n  c\r\n\td\r\n\r\n",
            "NATS/1.0\r\n\r\nA: b\r\n\r\n",
        ] {
            assert!(is_readable(headers.as_bytes()), "{headers:?}");
        }
        for headers in [
            "NATS/2.0\r\nA: b\r\n\r\n",
            "NATS/1.0 5\r\n\r\n",
            "NATS/1.0\r\nA\r\n\r\n",
            "NATS/1.0\r\nA b: c\r\n\r\n",
            "NATS/1.0\r\n\u{fc}: c\r\n\r\n",
            "NATS/1.0\r\nA: b\rc\r\n\r\n",
            "NATS/1.0\r\nA: b\r\n c\rd\r\n\r\n",
            "NATS/1.0\r\n b\r\nA: b\r\n\r\n",
            "NATS/1.0\r\n b: c\r\n\r\n",
            "NATS/1.0\r\nA: b\r\n\r\n c\r\n\r\n",
            "NATS/1.0\r\nA: b\r\n\r\n\u{b}: c\r\n\r\n",
        ] {
            assert!(!is_readable(headers.as_bytes()), "{headers:?}");
        }
        assert!(!is_readable(b"NATS/1.0\r\nA: \xfc\r\n\r\n"));
    }
}
