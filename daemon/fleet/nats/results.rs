//! Results of jobs: in their records, or in the object store if they are too large for a message.

use std::fmt;

use async_nats::jetstream::object_store::ObjectStore;
use bytes::Bytes;
use prost::Message as _;
use tokio::io::AsyncReadExt as _;

use crate::{
    api::v1::{FleetJobRecord, InvokeResponse},
    daemon::fleet::work_source::SourceUnavailable,
};

/// Size of a record with its result, from which on the result is stored apart.
const MAX_RECORD_BYTES: usize = 1 << 20;
/// Bytes of a message beside the record: headers and subject.
const MESSAGE_OVERHEAD_BYTES: usize = 4 << 10;
/// Size of a result that this daemon reads. The daemons store smaller ones.
const MAX_RESULT_BYTES: u64 = 256 << 20;

/// The object store of large results.
#[derive(Clone)]
pub(crate) struct FleetResults {
    objects: ObjectStore,
    max_record_bytes: usize,
}

impl fmt::Debug for FleetResults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FleetResults").finish_non_exhaustive()
    }
}

impl FleetResults {
    /// `max_payload` is the size of the largest message that the server accepts.
    pub(super) fn new(objects: ObjectStore, max_payload: usize) -> Self {
        let max_record_bytes = MAX_RECORD_BYTES.min(max_payload);
        Self { objects, max_record_bytes: max_record_bytes.saturating_sub(MESSAGE_OVERHEAD_BYTES) }
    }

    /// Moves the result of an ended job to the object store, if its record is too large.
    pub(super) async fn detach_large(
        &self,
        id: &str,
        record: &mut FleetJobRecord,
    ) -> Result<(), SourceUnavailable> {
        if record.encoded_len() <= self.max_record_bytes {
            return Ok(());
        }
        let Some(result) = record.job.as_mut().and_then(|job| job.result.take()) else {
            return Ok(());
        };

        // Daemons that take the same job for lost have names of their own.
        let name = format!("{id}.{}", record.daemon_id);
        let encoded = result.encode_to_vec();
        let stored = self.objects.put(name.as_str(), &mut encoded.as_slice()).await;
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
