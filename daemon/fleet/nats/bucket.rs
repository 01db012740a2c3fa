//! Reads keys of the buckets as they are now.

use async_nats::jetstream::{
    kv::{self, Operation},
    stream::LastRawMessageErrorKind,
};
use bytes::Bytes;

use crate::daemon::fleet::work_source::SourceUnavailable;

/// Header of the marker of a deleted key.
const OPERATION_HEADER: &str = "KV-Operation";

/// Reads the value of a key, and its revision. `None` if it has none, or was deleted.
pub(super) async fn read_key(
    bucket: &kv::Store,
    key: &str,
) -> Result<Option<(Bytes, u64)>, SourceUnavailable> {
    // A damaged record names what no key can be.
    if !is_key(key) {
        return Ok(None);
    }
    if bucket.stream.cached_info().config.num_replicas > 1 {
        return read_from_leader(bucket, key).await;
    }
    let entry = bucket.entry(key).await.map_err(SourceUnavailable::new)?;
    let entry = entry.filter(|entry| entry.operation == Operation::Put);
    Ok(entry.map(|entry| (entry.value, entry.revision)))
}

/// Reads a key from the leader of a bucket. Any replica answers other reads, also one that does not
/// have the last change yet: a caller would not find the job that it has just submitted.
async fn read_from_leader(
    bucket: &kv::Store,
    key: &str,
) -> Result<Option<(Bytes, u64)>, SourceUnavailable> {
    let subject = format!("{}{key}", bucket.prefix);
    match bucket.stream.get_last_raw_message_by_subject(&subject).await {
        Ok(message) if message.headers.get(OPERATION_HEADER).is_none() => {
            Ok(Some((message.payload, message.sequence)))
        }
        Ok(_deleted) => Ok(None),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(SourceUnavailable::new(error)),
    }
}

/// Whether a bucket can have this key. A subject with others could be of several keys.
fn is_key(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-/_=.".contains(&byte);
    !text.is_empty() && !text.starts_with('.') && !text.ends_with('.') && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_single_tokens() {
        for (text, expected) in
            [("fleet-1", true), ("a_b.c", true), ("", false), ("*", false), ("a b", false)]
        {
            assert_eq!(is_key(text), expected, "{text:?}");
        }
        assert!(!is_key(".a") && !is_key("a."));
    }
}
