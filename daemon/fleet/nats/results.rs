//! Results of jobs: in their records, or in the object store if they are too large for a message.

use std::fmt;

use async_nats::{
    Client,
    jetstream::object_store::{ObjectMetadata, ObjectStore},
};
use bytes::Bytes;
use prost::Message as _;
use tokio::io::AsyncReadExt as _;

use super::object_chunks::{MESSAGE_OVERHEAD_BYTES, chunk_bytes};
use crate::{
    api::v1::{FleetJobRecord, InvokeResponse},
    daemon::fleet::work_source::SourceUnavailable,
};

/// Size of a record with its result, from which on the result is stored apart.
const MAX_RECORD_BYTES: usize = 1 << 20;
/// Size of a result that this daemon reads. The daemons store smaller ones.
const MAX_RESULT_BYTES: u64 = 256 << 20;

/// The object store of large results.
#[derive(Clone)]
pub(crate) struct FleetResults {
    client: Client,
    objects: ObjectStore,
}

impl fmt::Debug for FleetResults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FleetResults").finish_non_exhaustive()
    }
}

impl FleetResults {
    pub(super) fn new(client: Client, objects: ObjectStore) -> Self {
        Self { client, objects }
    }

    /// Moves the result of an ended job to the object store, if its record is too large.
    pub(super) async fn detach_large(
        &self,
        id: &str,
        record: &mut FleetJobRecord,
    ) -> Result<(), SourceUnavailable> {
        // The server may have another maximum since it was started again.
        let max_payload = self.client.max_payload();
        let max_record_bytes = MAX_RECORD_BYTES.min(max_payload);
        if record.encoded_len() <= max_record_bytes.saturating_sub(MESSAGE_OVERHEAD_BYTES) {
            return Ok(());
        }
        let Some(result) = record.job.as_mut().and_then(|job| job.result.take()) else {
            return Ok(());
        };

        // Daemons that take the same job for lost have names of their own.
        let name = format!("{id}.{}", record.daemon_id);
        let encoded = result.encode_to_vec();
        let object = ObjectMetadata {
            name: name.clone(),
            chunk_size: Some(chunk_bytes(max_payload)),
            ..ObjectMetadata::default()
        };
        let stored = self.objects.put(object, &mut encoded.as_slice()).await;
        if let Err(error) = stored {
            if let Some(job) = &mut record.job {
                job.result = Some(result);
            }
            return Err(SourceUnavailable::new(error));
        }
        record.result_object = name;
        Ok(())
    }

    /// Reads a result that is stored apart.
    pub(crate) async fn read(&self, name: &str) -> Result<InvokeResponse, SourceUnavailable> {
        let object = self.objects.get(name).await.map_err(SourceUnavailable::new)?;
        let mut encoded = Vec::new();
        let mut limited = object.take(MAX_RESULT_BYTES);
        limited.read_to_end(&mut encoded).await.map_err(SourceUnavailable::new)?;
        let malformed = |error| SourceUnavailable(format!("a result is malformed: {error}"));
        InvokeResponse::decode(Bytes::from(encoded)).map_err(malformed)
    }
}
