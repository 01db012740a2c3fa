//! Messages whose headers the client library cannot read ([`super::inbound`]). They never arrive, so
//! they are looked for among those that the server has delivered, in a form without headers.

use async_nats::{
    Message,
    jetstream::{
        self, ErrorCode,
        context::ConsumerInfoErrorKind,
        response::Response,
        stream::{RawMessage, Stream},
    },
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::daemon::fleet::work_source::SourceUnavailable;

/// A message that cannot be read.
#[derive(Debug)]
pub(super) struct UnreadableMessage {
    pub(super) sequence: u64,
    /// Its subject and its body.
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

/// Lists the messages of a consumer that were delivered, are not acknowledged, and cannot be read.
pub(super) async fn find_unreadable(
    jetstream: &jetstream::Context,
    stream: &Stream,
    consumer: &str,
    subject: &str,
) -> Result<Vec<UnreadableMessage>, SourceUnavailable> {
    let info = match stream.consumer_info(consumer).await {
        Ok(info) => info,
        Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(SourceUnavailable::new(error)),
    };
    let name = &stream.cached_info().config.name;
    let mut unreadable = Vec::new();
    let mut sequence = info.ack_floor.stream_sequence + 1;
    while sequence <= info.delivered.stream_sequence {
        let request = NextMessage { sequence, subject };
        let found = jetstream.request(format!("STREAM.MSG.GET.{name}"), &request).await;
        let message = match found.map_err(SourceUnavailable::new)? {
            Response::Ok(FoundMessage { message }) => message,
            Response::Err { error } if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => break,
            Response::Err { error } => return Err(SourceUnavailable::new(error)),
        };
        if message.sequence > info.delivered.stream_sequence {
            break;
        }
        sequence = message.sequence + 1;
        let headers = message.headers.as_deref().map(|headers| BASE64_STANDARD.decode(headers));
        if headers.is_some_and(|headers| !headers.is_ok_and(|headers| is_readable(&headers))) {
            let message_without_headers = without_headers(&message, jetstream);
            let sequence = message.sequence;
            unreadable.push(UnreadableMessage { sequence, message: message_without_headers });
        }
    }
    Ok(unreadable)
}

fn without_headers(stored: &RawMessage, context: &jetstream::Context) -> jetstream::Message {
    let payload = Bytes::from(BASE64_STANDARD.decode(&stored.payload).unwrap_or_default());
    let message = Message {
        subject: stored.subject.as_str().into(),
        reply: None,
        length: payload.len(),
        payload,
        headers: None,
        status: None,
        description: None,
    };
    jetstream::Message { message, context: context.clone() }
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
