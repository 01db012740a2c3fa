//! The object store of the fleet, as far as it has artifacts of jobs.

use std::fmt;

use async_nats::jetstream::{
    self,
    object_store::{InfoErrorKind, ObjectInfo, ObjectStore},
    stream::Stream,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE};

use super::{artifact_reader::ArtifactReader, names::results_bucket};
use crate::daemon::fleet::work_source::SourceUnavailable;

/// The object store of artifacts and large results.
#[derive(Clone)]
pub(crate) struct ArtifactObjects {
    pub(super) jetstream: jetstream::Context,
    store: ObjectStore,
    /// The stream of `store`.
    pub(super) stream: Stream,
    pub(super) bucket: String,
}

impl fmt::Debug for ArtifactObjects {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ArtifactObjects").finish_non_exhaustive()
    }
}

impl ArtifactObjects {
    /// `name` is that of the stream of jobs.
    pub(super) fn new(
        jetstream: jetstream::Context,
        store: ObjectStore,
        stream: Stream,
        name: &str,
    ) -> Self {
        Self { jetstream, store, stream, bucket: results_bucket(name) }
    }

    /// Opens an object. Returns `None` if there is none of this name.
    pub(crate) async fn open(
        &self,
        name: &str,
    ) -> Result<Option<ArtifactReader>, SourceUnavailable> {
        let info = self.find(name).await?;
        Ok(info.map(|info| {
            let subject = self.chunk_subject(&info.nuid);
            ArtifactReader::new(self.stream.clone(), subject, &info)
        }))
    }

    /// Finds an object.
    pub(super) async fn find(&self, name: &str) -> Result<Option<ObjectInfo>, SourceUnavailable> {
        match self.store.info(name).await {
            Ok(info) => Ok(Some(info).filter(|info| !info.deleted)),
            Err(error) if error.kind() == InfoErrorKind::NotFound => Ok(None),
            Err(error) => Err(SourceUnavailable::new(error)),
        }
    }

    /// Subject of the chunks of an object.
    pub(super) fn chunk_subject(&self, nuid: &str) -> String {
        format!("$O.{}.C.{nuid}", self.bucket)
    }

    /// Subject of the description of an object.
    pub(super) fn info_subject(&self, name: &str) -> String {
        format!("$O.{}.M.{}", self.bucket, URL_SAFE.encode(name))
    }
}
