//! The records of fleet jobs: a key-value bucket, in which each change names the revision that it
//! replaces.

use std::{
    fmt,
    time::{Duration, Instant},
};

use async_nats::{
    Client,
    jetstream::{
        consumer::{DeliverPolicy, push},
        kv,
    },
};
use prost::Message as _;
use tokio::time::timeout_at;
use tokio_stream::StreamExt as _;

use super::bucket::{RecordError, create_key, is_deletion, read_key, replace_key};
use crate::{
    api::v1::{FleetJobRecord, FleetJobState},
    daemon::{fleet::work_source::SourceUnavailable, task},
};

/// How often a watch looks whether its record is there still, if the bucket stores records for
/// longer: the server tells no watcher that a record has expired.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Delay before a watch that has failed begins again.
const WATCH_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Attempts to watch a record. Servers restart, and daemons make a deleted bucket again, in less time.
const MAX_WATCH_ATTEMPTS: usize = 30;

/// The bucket of records.
#[derive(Debug, Clone)]
pub(crate) struct FleetRecords {
    client: Client,
    bucket: kv::Store,
}

impl FleetRecords {
    pub(super) fn new(client: Client, bucket: kv::Store) -> Self {
        Self { client, bucket }
    }

    /// Reads a record with its revision.
    pub(crate) async fn get(
        &self,
        id: &str,
    ) -> Result<Option<(FleetJobRecord, u64)>, SourceUnavailable> {
        let found = self.read(id).await?;
        found.map(|(record, revision)| Ok((record?, revision))).transpose()
    }

    /// Reads a record with its revision. An error in place of the record: it is malformed, so no daemon
    /// has written it.
    pub(super) async fn read(
        &self,
        id: &str,
    ) -> Result<Option<(Result<FleetJobRecord, SourceUnavailable>, u64)>, SourceUnavailable> {
        let found = read_key(&self.bucket, id).await?;
        Ok(found.map(|(record, revision)| (decode(record), revision)))
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
    pub(crate) fn watch(&self, id: &str) -> RecordWatch {
        let max_age = self.bucket.stream.cached_info().config.max_age;
        let check_interval = max_age.min(MAX_CHECK_INTERVAL);
        RecordWatch {
            records: self.clone(),
            id: id.to_owned(),
            changes: None,
            check_interval,
            next_check: Instant::now() + check_interval,
            failures: 0,
            retry: None,
        }
    }

    /// Subscribes to a record: the current one, then each change.
    async fn open_changes(&self, id: &str) -> Result<push::Ordered, SourceUnavailable> {
        let config = push::OrderedConfig {
            deliver_subject: self.client.new_inbox(),
            filter_subject: self.subject(id),
            deliver_policy: DeliverPolicy::LastPerSubject,
            ..push::OrderedConfig::default()
        };
        let consumer = self.bucket.stream.create_consumer(config).await;
        let changes = consumer.map_err(SourceUnavailable::new)?.messages().await;
        changes.map_err(SourceUnavailable::new)
    }

    fn subject(&self, id: &str) -> String {
        format!("{}{id}", self.bucket.prefix)
    }
}

/// The changes of a record.
pub(crate) struct RecordWatch {
    records: FleetRecords,
    id: String,
    /// `None` if they must be opened.
    changes: Option<push::Ordered>,
    check_interval: Duration,
    next_check: Instant,
    /// Since the last record.
    failures: usize,
    /// When to open the changes again after a failure.
    retry: Option<Instant>,
}

impl fmt::Debug for RecordWatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RecordWatch")
    }
}

impl RecordWatch {
    /// Waits for the next record. Returns `None` if there is none any more. Repeats a failed watch for
    /// some time. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<FleetJobRecord>, SourceUnavailable> {
        loop {
            if self.retry.is_some() {
                task::sleep_until(self.retry).await;
            }
            match self.try_next().await {
                Ok(record) => {
                    self.failures = 0;
                    self.retry = None;
                    return Ok(record);
                }
                Err(error) => {
                    tracing::debug!(%error, job = self.id, "the watch of a record failed");
                    self.failures += 1;
                    self.changes = None;
                    self.retry = Some(Instant::now() + WATCH_RETRY_INTERVAL);
                    if self.failures >= MAX_WATCH_ATTEMPTS {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// A program that may create consumers can have the server deliver messages to any subject. Those
    /// with the subject of the record are the record.
    async fn try_next(&mut self) -> Result<Option<FleetJobRecord>, SourceUnavailable> {
        let subject = self.records.subject(&self.id);
        loop {
            let changes = match &mut self.changes {
                Some(changes) => changes,
                none => none.insert(self.records.open_changes(&self.id).await?),
            };
            match timeout_at(self.next_check.into(), changes.next()).await {
                Ok(Some(Ok(message))) if message.subject.as_str() != subject => {
                    tracing::warn!(
                        job = self.id,
                        subject = message.subject.as_str(),
                        "another program has sent a message to a watch of this daemon: let no program list the consumers of the bucket of records"
                    );
                    // It counts in the order of the messages, so the next ones may be missed.
                    self.changes = None;
                }
                Ok(Some(Ok(message))) if is_deletion(message.headers.as_ref()) => return Ok(None),
                Ok(Some(Ok(message))) => return decode(message.payload.clone()).map(Some),
                Ok(Some(Err(error))) => return Err(SourceUnavailable::new(error)),
                Ok(None) => return Err(SourceUnavailable::new("the watch of a record ended")),
                Err(_elapsed) if self.records.get(&self.id).await?.is_none() => return Ok(None),
                Err(_elapsed) => self.next_check = Instant::now() + self.check_interval,
            }
        }
    }
}

fn decode(record: bytes::Bytes) -> Result<FleetJobRecord, SourceUnavailable> {
    let malformed =
        |problem: &dyn fmt::Display| SourceUnavailable(format!("a record is malformed: {problem}"));
    let record = FleetJobRecord::decode(record).map_err(|error| malformed(&error))?;
    // Bytes of another kind can decode to fields that are unknown.
    if record.state() == FleetJobState::Unspecified || record.queue.is_empty() {
        return Err(malformed(&"it has no state or no queue"));
    }
    Ok(record)
}
