//! Headers of dead letters: why no daemon runs a job, whose it is, and what is needed to publish it
//! again.

use async_nats::{HeaderMap, jetstream};

use super::{
    message::request_id_header,
    names::{
        DEAD_LETTER_JOB_ID_HEADER, DEAD_LETTER_MESSAGE_HEADER, DEAD_LETTER_REASON_HEADER,
        DEAD_LETTER_SUBJECT_HEADER, MESSAGE_ID_HEADER, PRINCIPAL_HEADER, REQUEST_ID_HEADER,
        SESSION_HEADER, SIGNATURE_HEADER, TRACEPARENT_HEADER, single_header,
    },
};
use crate::daemon::error::Error;

/// Bytes of the text of an error that a dead letter has.
const MAX_TEXT_BYTES: usize = 1024;
/// Bytes of a header that is copied. Those of valid messages have fewer.
const MAX_COPIED_BYTES: usize = 1024;
/// Text of a dead letter without its body.
const NO_BODY_TEXT: &str = "(without the body, which is too large with these headers)";

/// Returns the headers of the dead letter of a message. `id` identifies the job, if it has an id.
pub(super) fn build_headers(
    id: Option<&str>,
    message: &jetstream::Message,
    error: &Error,
) -> HeaderMap {
    let mut headers = copied_headers(message.headers.as_ref());
    // The same message has the same dead letter, also after a lost acknowledgement.
    if let Ok(info) = message.info() {
        let published = info.published.unix_timestamp_nanos();
        headers.insert(MESSAGE_ID_HEADER, format!("{}.{published}", info.stream_sequence));
    }
    if let Some(id) = id {
        headers.insert(DEAD_LETTER_JOB_ID_HEADER, id);
    }
    let text = error.to_string();
    let length = text.floor_char_boundary(MAX_TEXT_BYTES);
    headers.insert(DEAD_LETTER_REASON_HEADER, error.reason.name());
    headers.insert(DEAD_LETTER_MESSAGE_HEADER, text[..length].replace(char::is_control, " "));
    headers.insert(DEAD_LETTER_SUBJECT_HEADER, message.subject.as_str());
    headers
}

/// Returns the headers of a dead letter whose body is too large to be stored with them.
pub(super) fn without_body(mut headers: HeaderMap) -> HeaderMap {
    let text = headers.get(DEAD_LETTER_MESSAGE_HEADER).map(ToString::to_string);
    let text = format!("{} {NO_BODY_TEXT}", text.unwrap_or_default());
    headers.insert(DEAD_LETTER_MESSAGE_HEADER, text);
    headers
}

/// Copies the headers of a job, as its message has them. Leaves out what no valid message has.
pub(super) fn copied_headers(headers: Option<&HeaderMap>) -> HeaderMap {
    let mut copied = HeaderMap::new();
    for (from, to) in [
        (request_id_header(headers), REQUEST_ID_HEADER),
        (SESSION_HEADER, SESSION_HEADER),
        (PRINCIPAL_HEADER, PRINCIPAL_HEADER),
        (SIGNATURE_HEADER, SIGNATURE_HEADER),
        (TRACEPARENT_HEADER, TRACEPARENT_HEADER),
    ] {
        if let Ok(Some(value)) = single_header(headers, from)
            && value.len() <= MAX_COPIED_BYTES
            && !value.contains(char::is_control)
        {
            copied.insert(to, value);
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::pipeline::context::MAX_REQUEST_ID_CHARS;

    #[test]
    fn only_valid_headers_are_copied() {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", "m");
        headers.insert("Jig-Session", "s".repeat(MAX_COPIED_BYTES + 1).as_str());
        headers.insert("Jig-Principal", "key:ci");
        headers.append("traceparent", "a");
        headers.append("traceparent", "b");
        headers.insert("Jig-Reason", "FORGED");
        headers.insert("Nats-Expected-Stream", "other");

        let copied = copied_headers(Some(&headers));
        let values: Vec<_> = copied.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(copied.len(), 2, "{values:?}");
        assert_eq!(copied.get("Jig-Request-Id").unwrap().as_str(), "m");
        assert_eq!(copied.get("Jig-Principal").unwrap().as_str(), "key:ci");

        headers.insert("Jig-Request-Id", "r");
        let copied = copied_headers(Some(&headers));
        assert_eq!(copied.get("Jig-Request-Id").unwrap().as_str(), "r");
        assert!(copied_headers(None).is_empty());

        let longest = "\u{1f980}".repeat(MAX_REQUEST_ID_CHARS);
        headers.insert("Jig-Request-Id", longest.as_str());
        let copied = copied_headers(Some(&headers));
        assert_eq!(copied.get("Jig-Request-Id").unwrap().as_str(), longest);
    }

    #[test]
    fn a_letter_without_a_body_says_so() {
        let mut headers = HeaderMap::new();
        headers.insert(DEAD_LETTER_MESSAGE_HEADER, "no");
        let headers = without_body(headers);
        let text = headers.get(DEAD_LETTER_MESSAGE_HEADER).unwrap().as_str();
        assert!(text.starts_with("no ") && text.ends_with(NO_BODY_TEXT), "{text}");
    }
}
