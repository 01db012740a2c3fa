//! Reads keys of the buckets as they are now, and changes them only if no other daemon has: each change names the
//! revision that it replaces.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use async_nats::{
    HeaderMap,
    jetstream::{
        kv::{self, CreateErrorKind, Operation, UpdateErrorKind},
        stream::LastRawMessageErrorKind,
    },
};
use bytes::Bytes;

use crate::daemon::fleet::work_source::SourceUnavailable;

/// Header of the marker of a deleted key.
const OPERATION_HEADER: &str = "KV-Operation";

/// Why a key was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// It has a value already, or another revision.
    #[error("the record of the job was changed by another daemon")]
    Conflict,
    /// Unknown: the change may have been stored.
    #[error(transparent)]
    Unavailable(#[from] SourceUnavailable),
}

/// Notices that a bucket was deleted and made again: it lacks what daemons have stored then.
#[derive(Debug)]
pub(super) struct BucketAge {
    bucket: kv::Store,
    known: Mutex<KnownBucket>,
}

#[derive(Debug, Clone, Copy)]
struct KnownBucket {
    /// Unix time by the clock of the server, in nanoseconds.
    created: i128,
    /// Since when this daemon has known this one.
    since: Instant,
}

impl BucketAge {
    /// Returns the age of a bucket that was just opened.
    pub(super) fn new(bucket: kv::Store) -> Self {
        let created = bucket.stream.cached_info().created.unix_timestamp_nanos();
        Self { bucket, known: Mutex::new(KnownBucket { created, since: Instant::now() }) }
    }

    /// Since when this daemon has known the bucket, as of the last [`Self::update`].
    pub(super) fn known_since(&self) -> Instant {
        self.lock().since
    }

    /// Whether the bucket was made after `published` by the clock of the server, and this daemon has
    /// known it for less than `wait`.
    pub(super) fn is_newer(&self, published: i128, wait: Duration) -> bool {
        let known = *self.lock();
        published < known.created && known.since.elapsed() < wait
    }

    /// Asks the server whether it is still the same bucket. Returns since when this daemon has known
    /// it.
    pub(super) async fn update(&self) -> Result<Instant, SourceUnavailable> {
        let info = self.bucket.stream.get_info().await.map_err(SourceUnavailable::new)?;
        let created = info.created.unix_timestamp_nanos();
        let mut known = self.lock();
        if known.created != created {
            *known = KnownBucket { created, since: Instant::now() };
        }
        Ok(known.since)
    }

    fn lock(&self) -> MutexGuard<'_, KnownBucket> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stores the first value of a key. Returns its revision.
pub(super) async fn create_key(
    bucket: &kv::Store,
    key: &str,
    value: Vec<u8>,
) -> Result<u64, RecordError> {
    let created = bucket.create(key, value.into()).await;
    created.map_err(|error| match error.kind() {
        CreateErrorKind::AlreadyExists => RecordError::Conflict,
        CreateErrorKind::InvalidKey
        | CreateErrorKind::Publish
        | CreateErrorKind::Ack
        | CreateErrorKind::Other => SourceUnavailable::new(error).into(),
    })
}

/// Replaces the value of this revision. Returns the new revision.
pub(super) async fn replace_key(
    bucket: &kv::Store,
    key: &str,
    value: Vec<u8>,
    revision: u64,
) -> Result<u64, RecordError> {
    let replaced = bucket.update(key, value.into(), revision).await;
    replaced.map_err(|error| match error.kind() {
        UpdateErrorKind::WrongLastRevision => RecordError::Conflict,
        UpdateErrorKind::InvalidKey | UpdateErrorKind::TimedOut | UpdateErrorKind::Other => {
            SourceUnavailable::new(error).into()
        }
    })
}

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
        Ok(message) if !is_deletion(Some(&message.headers)) => {
            Ok(Some((message.payload, message.sequence)))
        }
        Ok(_deleted) => Ok(None),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(SourceUnavailable::new(error)),
    }
}

/// Whether a message of a bucket with these headers deletes its key.
pub(super) fn is_deletion(headers: Option<&HeaderMap>) -> bool {
    headers.is_some_and(|headers| headers.get(OPERATION_HEADER).is_some())
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
