//! The records of fleet jobs: a key-value bucket, in which each change names the revision that it
//! replaces.

use std::{
    fmt,
    time::{Duration, Instant},
};

use async_nats::jetstream::kv::{self, Operation};
use prost::Message as _;
use tokio::time::timeout_at;
use tokio_stream::StreamExt as _;

use super::bucket::{RecordError, create_key, read_key, replace_key};
use crate::{api::v1::FleetJobRecord, daemon::fleet::work_source::SourceUnavailable};

/// How often a watch looks whether its record is there still, if the bucket stores records for
/// longer: the server tells no watcher that a record has expired.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The bucket of records.
#[derive(Debug, Clone)]
pub(crate) struct FleetRecords {
    bucket: kv::Store,
}

impl FleetRecords {
    pub(super) fn new(bucket: kv::Store) -> Self {
        Self { bucket }
    }

    /// Reads a record with its revision.
    pub(crate) async fn get(
        &self,
        id: &str,
    ) -> Result<Option<(FleetJobRecord, u64)>, SourceUnavailable> {
        let found = read_key(&self.bucket, id).await?;
        found.map(|(record, revision)| Ok((decode(record)?, revision))).transpose()
    }

    /// Stores the first record of a job. Returns its revision.
    pub(crate) async fn create(
        &self,
        id: &str,
        record: &FleetJobRecord,
    ) -> Result<u64, RecordError> {
        create_key(&self.bucket, id, record.encode_to_vec()).await
    }

    /// Replaces the record of this revision. Returns the new revision.
    pub(crate) async fn update(
        &self,
        id: &str,
        record: &FleetJobRecord,
        revision: u64,
    ) -> Result<u64, RecordError> {
        replace_key(&self.bucket, id, record.encode_to_vec(), revision).await
    }

    /// Watches a record: first the current one, if there is one, then each change.
    pub(crate) async fn watch(&self, id: &str) -> Result<RecordWatch, SourceUnavailable> {
        let changes = self.bucket.watch_with_history(id).await.map_err(SourceUnavailable::new)?;
        let max_age = self.bucket.stream.cached_info().config.max_age;
        let check_interval = max_age.min(MAX_CHECK_INTERVAL);
        Ok(RecordWatch {
            records: self.clone(),
            id: id.to_owned(),
            changes,
            check_interval,
            next_check: Instant::now() + check_interval,
        })
    }
}

/// The changes of a record.
pub(crate) struct RecordWatch {
    records: FleetRecords,
    id: String,
    changes: kv::Watch,
    check_interval: Duration,
    next_check: Instant,
}

impl fmt::Debug for RecordWatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RecordWatch")
    }
}

impl RecordWatch {
    /// Waits for the next record. Returns `None` if there is none any more. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<FleetJobRecord>, SourceUnavailable> {
        loop {
            match timeout_at(self.next_check.into(), self.changes.next()).await {
                Ok(Some(Ok(entry))) if entry.operation == Operation::Put => {
                    return decode(entry.value).map(Some);
                }
                Ok(Some(Ok(_deleted))) => return Ok(None),
                Ok(Some(Err(error))) => return Err(SourceUnavailable::new(error)),
                Ok(None) => return Err(SourceUnavailable::new("the watch of a record ended")),
                Err(_elapsed) if self.records.get(&self.id).await?.is_none() => return Ok(None),
                Err(_elapsed) => self.next_check = Instant::now() + self.check_interval,
            }
        }
    }
}

fn decode(record: bytes::Bytes) -> Result<FleetJobRecord, SourceUnavailable> {
    let malformed = |error| SourceUnavailable(format!("a record is malformed: {error}"));
    FleetJobRecord::decode(record).map_err(malformed)
}
