//! Reads an artifact from the object store: one chunk per request, so that a slow reader costs
//! neither memory nor a consumer on the server.

use std::fmt;

use async_nats::jetstream::{object_store::ObjectInfo, stream::Stream};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::object_digest::sha256_of;
use crate::daemon::{
    error::Error, fleet::work_source::SourceUnavailable, pipeline::fleet_jobs::FleetArtifactReader,
    task::BoxFuture,
};

/// An object that is being read.
pub(crate) struct ArtifactReader {
    stream: Stream,
    /// Subject of its chunks.
    subject: String,
    /// Sequence from which on the next chunk is. `None` before the first one.
    sequence: Option<u64>,
    remaining_bytes: u64,
    /// Digest of the chunks so far.
    digest: Sha256,
    sha256: Vec<u8>,
}

impl fmt::Debug for ArtifactReader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ArtifactReader").finish_non_exhaustive()
    }
}

impl ArtifactReader {
    pub(super) fn new(stream: Stream, subject: String, info: &ObjectInfo) -> Self {
        let remaining_bytes = info.size as u64;
        let sha256 = sha256_of(info);
        Self { stream, subject, sequence: None, remaining_bytes, digest: Sha256::new(), sha256 }
    }

    /// Reads the next chunk, or `None` after the last one. Checks the digest with the last one.
    async fn next_chunk(&mut self) -> Result<Option<Bytes>, SourceUnavailable> {
        if self.remaining_bytes == 0 {
            return Ok(None);
        }
        let chunk = self.stream.direct_get_next_for_subject(&*self.subject, self.sequence).await;
        let chunk = chunk.map_err(|error| {
            SourceUnavailable(format!("cannot read a part of an artifact: {error}"))
        })?;

        self.sequence = Some(chunk.sequence + 1);
        self.digest.update(&chunk.payload);
        let length = chunk.payload.len() as u64;
        let remaining = self.remaining_bytes.checked_sub(length).filter(|_| length > 0);
        let is_complete = remaining == Some(0);
        if remaining.is_none()
            || is_complete && *self.digest.finalize_reset() != *self.sha256.as_slice()
        {
            return Err(SourceUnavailable::new("an artifact in the object store is damaged"));
        }
        self.remaining_bytes = remaining.unwrap_or_default();
        Ok(Some(chunk.payload))
    }
}

impl FleetArtifactReader for ArtifactReader {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, Error>> {
        Box::pin(async { Ok(self.next_chunk().await?) })
    }
}
