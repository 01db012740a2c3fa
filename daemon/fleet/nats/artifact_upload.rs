//! Stores the artifacts of ended jobs in the object store, as any client of NATS stores objects.

use std::{collections::VecDeque, io};

use async_nats::{
    HeaderMap,
    jetstream::{
        self, ErrorCode,
        context::{PublishAckFuture, PublishError, PublishErrorKind},
        object_store::{ObjectInfo, ObjectOptions},
    },
};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::{
    artifact_objects::ArtifactObjects,
    claims::JobClaims,
    object_chunks::chunk_bytes,
    object_digest::{format_digest, sha256_of},
};
use crate::{
    api::v1::{FleetArtifact, FleetJobRecord},
    daemon::fleet::{
        backoff::Backoff,
        job_artifacts::{ArtifactFile, LocalArtifact},
        work_source::{JobEnd, SourceUnavailable},
    },
};

/// Chunks that the server has not acknowledged yet.
const MAX_PENDING_CHUNKS: usize = 8;

/// Why an artifact was not stored.
#[derive(Debug, thiserror::Error)]
enum UploadError {
    #[error("the server refuses it: {0}")]
    Refused(String),
    #[error("the daemon cannot read it: {0}")]
    Unreadable(#[from] io::Error),
    /// The server has not answered. It may do so later.
    #[error(transparent)]
    Unavailable(#[from] SourceUnavailable),
}

/// The chunks of an object.
struct StoredChunks {
    /// Bytes of all of them.
    size: usize,
    count: usize,
    chunk_bytes: usize,
    digest: String,
}

impl JobClaims {
    /// Stores the artifacts of an ended job, if it asks for that, and lists them in its record.
    ///
    /// Repeats that while the server does not answer. If it refuses an artifact, the record says so.
    /// Returns false if `stop` is cancelled first.
    pub(super) async fn store_artifacts(
        &self,
        id: &str,
        end: &JobEnd,
        record: &mut FleetJobRecord,
        stop: &CancellationToken,
    ) -> bool {
        let Some(artifacts) = end.artifacts.as_ref().filter(|_| record.store_artifacts) else {
            return true;
        };
        let opened = match artifacts.open().await {
            Ok(opened) => opened,
            Err(error) => {
                tracing::error!(%error, job = id, "cannot read the artifacts of a fleet job");
                let reason = UploadError::Unreadable(io::Error::other(error));
                record.artifacts = artifacts.paths().map(|path| missing(path, &reason)).into();
                return true;
            }
        };

        // Another claim of the job has objects of its own. A repetition for this one finds them.
        let prefix = format!("{id}.{}.{}", record.daemon_id, record.attempts);
        for artifact in opened {
            match self.artifacts.store(&prefix, artifact, stop).await {
                Some(stored) => record.artifacts.push(stored),
                None => return false,
            }
        }
        true
    }
}

impl ArtifactObjects {
    /// Stores an artifact. Returns `None` if `stop` is cancelled first.
    async fn store(
        &self,
        prefix: &str,
        artifact: LocalArtifact,
        stop: &CancellationToken,
    ) -> Option<FleetArtifact> {
        let LocalArtifact { path, file } = artifact;
        let Some(file) = file else {
            return Some(FleetArtifact { path, ..FleetArtifact::default() });
        };
        let name = format!("{prefix}/{path}");
        let mut backoff = Backoff::default();
        loop {
            let stored = tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                stored = self.find_or_put(&name, &file) => stored,
            };
            match stored {
                Ok(info) => {
                    return Some(FleetArtifact {
                        path,
                        size_bytes: file.size_bytes,
                        sha256: sha256_of(&info).into(),
                        object: name,
                        modify_time: Some(file.modified.into()),
                        missing_reason: String::new(),
                    });
                }
                Err(UploadError::Unavailable(error)) => {
                    tracing::warn!(%error, object = name, "cannot store an artifact of a fleet job yet");
                }
                Err(error @ (UploadError::Refused(_) | UploadError::Unreadable(_))) => {
                    tracing::error!(%error, object = name, "an artifact of a fleet job is not stored");
                    return Some(missing(path, &error));
                }
            }
            if !backoff.wait(stop).await {
                return None;
            }
        }
    }

    /// Returns the object of an earlier attempt, or stores one.
    async fn find_or_put(
        &self,
        name: &str,
        file: &ArtifactFile,
    ) -> Result<ObjectInfo, UploadError> {
        let found = self.find(name).await?;
        if let Some(found) = found.filter(|found| found.size as u64 == file.size_bytes) {
            return Ok(found);
        }

        let nuid = Ulid::generate().to_string();
        let mut pending = VecDeque::new();
        let chunks = match self.put_chunks(&nuid, file, &mut pending).await {
            Ok(chunks) => chunks,
            Err(error) => {
                self.remove_chunks(&nuid, pending, &error).await;
                return Err(error);
            }
        };
        let put = self.put_info(name, nuid.clone(), chunks).await;
        // Without an answer, the object may be there, and the next attempt finds it.
        if let Err(error @ UploadError::Refused(_)) = &put {
            self.remove_chunks(&nuid, pending, error).await;
        }
        put
    }

    /// Removes the chunks of an object without a description, which no client finds. They must not
    /// fill the store.
    async fn remove_chunks(
        &self,
        nuid: &str,
        pending: VecDeque<PublishAckFuture>,
        error: &UploadError,
    ) {
        // The server may still store those that are on their way. One that does not answer would
        // only delay the next attempt.
        if !matches!(error, UploadError::Unavailable(_)) {
            for chunk in pending {
                let _answer = chunk.await;
            }
        }
        if let Err(error) = self.stream.purge().filter(self.chunk_subject(nuid)).await {
            tracing::warn!(%error, nuid, "parts of an artifact remain in the object store");
        }
    }

    /// Publishes the chunks of an object, until the server has acknowledged all of them. After an
    /// error, it has not answered for those in `pending`.
    async fn put_chunks(
        &self,
        nuid: &str,
        file: &ArtifactFile,
        pending: &mut VecDeque<PublishAckFuture>,
    ) -> Result<StoredChunks, UploadError> {
        let subject = self.chunk_subject(nuid);
        let chunk_bytes = chunk_bytes(self.jetstream.client().max_payload());
        let mut digest = Sha256::new();
        let (mut size, mut count) = (0, 0);
        while (size as u64) < file.size_bytes {
            let chunk = file.read(size as u64, chunk_bytes).await?;
            digest.update(&chunk);
            size += chunk.len();
            count += 1;
            if pending.len() == MAX_PENDING_CHUNKS
                && let Some(oldest) = pending.pop_front()
            {
                oldest.await.map_err(upload_error)?;
            }
            let published = self.jetstream.publish(subject.clone(), chunk).await;
            pending.push_back(published.map_err(upload_error)?);
        }
        while let Some(oldest) = pending.pop_front() {
            oldest.await.map_err(upload_error)?;
        }
        Ok(StoredChunks { size, count, chunk_bytes, digest: format_digest(&digest.finalize()) })
    }

    /// Publishes the description of an object, which makes it visible.
    async fn put_info(
        &self,
        name: &str,
        nuid: String,
        chunks: StoredChunks,
    ) -> Result<ObjectInfo, UploadError> {
        let StoredChunks { size, count, chunk_bytes, digest } = chunks;
        let info = ObjectInfo {
            name: name.to_owned(),
            description: None,
            metadata: Default::default(),
            headers: None,
            options: Some(ObjectOptions { link: None, max_chunk_size: Some(chunk_bytes) }),
            bucket: self.bucket.clone(),
            nuid,
            size,
            chunks: count,
            modified: None,
            digest: Some(digest),
            deleted: false,
        };
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Rollup", "sub");
        let encoded = serde_json::to_vec(&info).map_err(io::Error::other)?;
        let subject = self.info_subject(name);
        let published = self.jetstream.publish_with_headers(subject, headers, encoded.into()).await;
        published.map_err(upload_error)?.await.map_err(upload_error)?;
        Ok(info)
    }
}

/// An artifact that is not stored.
fn missing(path: String, reason: &UploadError) -> FleetArtifact {
    FleetArtifact { path, missing_reason: reason.to_string(), ..FleetArtifact::default() }
}

/// Whether the server has refused a message, or has not answered.
fn upload_error(error: PublishError) -> UploadError {
    let refusal = std::error::Error::source(&error)
        .and_then(|source| source.downcast_ref::<jetstream::Error>());
    match refusal {
        Some(refusal) if !is_temporary(refusal.error_code()) => {
            UploadError::Refused(refusal.to_string())
        }
        None if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
            UploadError::Refused(error.to_string())
        }
        Some(_) | None => SourceUnavailable::new(error).into(),
    }
}

/// Whether the server may accept the same message soon.
fn is_temporary(code: ErrorCode) -> bool {
    [
        ErrorCode::CLUSTER_NOT_AVAILABLE,
        ErrorCode::CLUSTER_NOT_LEADER,
        ErrorCode::STREAM_TOO_MANY_REQUESTS,
    ]
    .contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_of_the_server_are_final() {
        let answered = |code: u64| {
            let answer = format!(r#"{{"code":503,"err_code":{code},"description":"text"}}"#);
            let refusal: jetstream::Error = serde_json::from_str(&answer).unwrap();
            upload_error(PublishError::with_source(PublishErrorKind::Other, refusal))
        };
        for code in [ErrorCode::STREAM_STORE_FAILED, ErrorCode::INSUFFICIENT_RESOURCES] {
            let error = answered(code.0);
            assert!(matches!(error, UploadError::Refused(_)), "{error}");
        }
        for error in [
            answered(ErrorCode::CLUSTER_NOT_LEADER.0),
            upload_error(PublishErrorKind::TimedOut.into()),
            upload_error(PublishErrorKind::StreamNotFound.into()),
        ] {
            assert!(matches!(error, UploadError::Unavailable(_)), "{error}");
        }
    }
}
