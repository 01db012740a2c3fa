//! The streams, buckets and consumers of the fleet on its servers. The daemon creates what is
//! missing, and changes nothing that is there.

use std::{fmt, sync::Arc, time::Duration};

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, PullConsumer, pull},
    context::ConsumerInfoErrorKind,
    kv,
    object_store::{self, ObjectStore},
    stream::{self, DiscardPolicy, RetentionPolicy, StorageType, Stream},
};

use super::{
    bucket::BucketAge,
    names::{
        ALL_DEAD_LETTERS_SUBJECT, ALL_JOBS_SUBJECT, consumer_name, daemons_bucket,
        dead_letter_stream, job_subject, records_bucket, results_bucket,
    },
};
use crate::daemon::{
    config::fleet::{FleetConfig, FleetQueueConfig, NatsConfig},
    fleet::work_source::SourceUnavailable,
};

/// Time in which the stream drops a second message with the same request id. Later, the record of
/// the job has its end.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(600);
/// Messages of a consumer that daemons have and have not acknowledged: the running jobs of a queue
/// in the whole fleet.
const MAX_ACK_PENDING: i64 = 100_000;
/// Requests for messages that wait at a consumer: the idle daemons of a queue. The server's default is
/// 512, and it cannot be changed later.
const MAX_WAITING: i64 = 100_000;

/// Handles of what the fleet has on its servers.
#[derive(Clone)]
pub(super) struct NatsObjects {
    pub(super) stream: Stream,
    pub(super) records: kv::Store,
    pub(super) records_age: Arc<BucketAge>,
    pub(super) daemons: kv::Store,
    pub(super) daemons_age: Arc<BucketAge>,
    pub(super) results: ObjectStore,
    /// The stream of `results`.
    pub(super) results_stream: Stream,
    dead_letters: Stream,
}

impl fmt::Debug for NatsObjects {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("NatsObjects").finish_non_exhaustive()
    }
}

impl NatsObjects {
    /// Opens everything, and creates what is missing.
    pub(super) async fn open(
        jetstream: &jetstream::Context,
        nats: &NatsConfig,
        config: &FleetConfig,
    ) -> Result<Self, SourceUnavailable> {
        let opener = ObjectOpener { jetstream, replicas: nats.replicas };
        let (name, retention) = (&nats.stream, config.result_retention);
        let dead_letters = opener.open_stream(dead_letters(name, config)).await?;
        let (results, results_stream) =
            opener.open_results(results_bucket(name), retention).await?;
        let records = opener.open_bucket(records_bucket(name), retention).await?;
        let daemons = opener.open_bucket(daemons_bucket(name), config.lost_after).await?;
        // The last one: no job is older than the bucket of its record.
        let stream = opener.open_stream(job_stream(name, config)).await?;
        Ok(Self {
            stream,
            records_age: Arc::new(BucketAge::new(records.clone())),
            records,
            daemons_age: Arc::new(BucketAge::new(daemons.clone())),
            daemons,
            results,
            results_stream,
            dead_letters,
        })
    }

    /// Fails if the servers have lost a stream or bucket, beside that of heartbeats, or cannot be asked.
    pub(super) async fn require_all(&self) -> Result<(), SourceUnavailable> {
        let present = async |stream: &Stream| stream.get_info().await.map(|_| ());
        let Self { stream, results_stream, dead_letters, .. } = self;
        let streams = async {
            tokio::try_join!(present(stream), present(results_stream), present(dead_letters))
                .map_err(SourceUnavailable::new)
        };
        tokio::try_join!(self.records_age.update(), streams)?;
        Ok(())
    }

    /// Whether there is a consumer: a daemon has served its queue and workspace. `None` if the server
    /// cannot say.
    pub(super) async fn has_consumer(&self, name: &str) -> Option<bool> {
        match self.stream.consumer_info(name).await {
            Ok(_) => Some(true),
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => Some(false),
            Err(_) => None,
        }
    }

    /// Opens the consumers of a queue: that of jobs without a workspace, and one for each workspace.
    /// Returns their names.
    ///
    /// A stream whose messages are removed when they are acknowledged has one consumer for each
    /// subject. All daemons share it.
    pub(super) async fn open_consumers(
        &self,
        queue: &FleetQueueConfig,
        ack_wait: Duration,
    ) -> Result<Vec<String>, SourceUnavailable> {
        let mut consumers = Vec::new();
        for workspace in consumed_workspaces(queue) {
            let name = consumer_name(&queue.name, workspace);
            let wanted = pull::Config {
                durable_name: Some(name.clone()),
                ack_policy: AckPolicy::Explicit,
                ack_wait,
                // The records of jobs count their attempts.
                max_deliver: -1,
                filter_subject: job_subject(&queue.name, workspace),
                max_ack_pending: MAX_ACK_PENDING,
                max_waiting: MAX_WAITING,
                ..pull::Config::default()
            };
            let consumer = self.stream.get_or_create_consumer(&name, wanted.clone()).await;
            let consumer: PullConsumer = consumer.map_err(SourceUnavailable::new)?;

            let found = &consumer.cached_info().config;
            let object = &format!("consumer {name}");
            require_same(object, "filter_subject", &found.filter_subject, &wanted.filter_subject)?;
            require_same(object, "ack_wait (fleet.ack_wait)", &found.ack_wait, &wanted.ack_wait)?;
            require_same(object, "max_deliver", &found.max_deliver, &wanted.max_deliver)?;
            require_same(object, "headers_only", &found.headers_only, &wanted.headers_only)?;
            consumers.push(name);
        }
        Ok(consumers)
    }
}

/// Returns the workspaces of the consumers of a queue. `None`: jobs without a workspace.
pub(super) fn consumed_workspaces(queue: &FleetQueueConfig) -> impl Iterator<Item = Option<&str>> {
    [None].into_iter().chain(queue.workspaces.iter().map(|workspace| Some(workspace.as_str())))
}

fn job_stream(name: &str, config: &FleetConfig) -> stream::Config {
    stream::Config {
        name: name.to_owned(),
        description: Some("Jobs of the jig fleet".to_owned()),
        subjects: vec![ALL_JOBS_SUBJECT.to_owned()],
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        duplicate_window: DUPLICATE_WINDOW.min(config.result_retention),
        // A full stream rejects new jobs, and loses none of those that it has acknowledged.
        discard: DiscardPolicy::New,
        max_age: config.result_retention,
        ..stream::Config::default()
    }
}

fn dead_letters(name: &str, config: &FleetConfig) -> stream::Config {
    stream::Config {
        name: dead_letter_stream(name),
        description: Some("Jobs of the jig fleet that no daemon runs".to_owned()),
        subjects: vec![ALL_DEAD_LETTERS_SUBJECT.to_owned()],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        duplicate_window: DUPLICATE_WINDOW.min(config.result_retention),
        max_age: config.result_retention,
        ..stream::Config::default()
    }
}

/// Opens streams and buckets, and creates those that are missing. One of another shape is an error.
struct ObjectOpener<'a> {
    jetstream: &'a jetstream::Context,
    replicas: Option<usize>,
}

impl ObjectOpener<'_> {
    /// Replicas of what this daemon creates.
    fn new_replicas(&self) -> usize {
        self.replicas.unwrap_or(1)
    }

    async fn open_stream(&self, wanted: stream::Config) -> Result<Stream, SourceUnavailable> {
        let wanted = stream::Config { num_replicas: self.new_replicas(), ..wanted };
        let name = wanted.name.clone();
        let stream = self.jetstream.get_or_create_stream(wanted.clone()).await;
        let stream = stream.map_err(SourceUnavailable::new)?;

        let found = &stream.cached_info().config;
        require_same(&name, "subjects", &found.subjects, &wanted.subjects)?;
        require_same(&name, "retention", &found.retention, &wanted.retention)?;
        require_same(&name, "discard", &found.discard, &wanted.discard)?;
        self.require_shape(&name, found, wanted.max_age)?;
        Ok(stream)
    }

    async fn open_bucket(
        &self,
        bucket: String,
        max_age: Duration,
    ) -> Result<kv::Store, SourceUnavailable> {
        let store = match self.jetstream.get_key_value(&bucket).await {
            Ok(store) => store,
            Err(_) => {
                let config = kv::Config {
                    bucket: bucket.clone(),
                    history: 1,
                    max_age,
                    storage: StorageType::File,
                    num_replicas: self.new_replicas(),
                    ..kv::Config::default()
                };
                // Succeeds too if another daemon creates it at the same time.
                self.jetstream.create_key_value(config).await.map_err(SourceUnavailable::new)?
            }
        };

        self.require_shape(&bucket, &store.stream.cached_info().config, max_age)?;
        Ok(store)
    }

    async fn open_results(
        &self,
        bucket: String,
        max_age: Duration,
    ) -> Result<(ObjectStore, Stream), SourceUnavailable> {
        let store = match self.jetstream.get_object_store(&bucket).await {
            Ok(store) => store,
            Err(_) => {
                let config = object_store::Config {
                    bucket: bucket.clone(),
                    max_age,
                    storage: StorageType::File,
                    num_replicas: self.new_replicas(),
                    ..object_store::Config::default()
                };
                self.jetstream.create_object_store(config).await.map_err(SourceUnavailable::new)?
            }
        };

        let stream = self.jetstream.get_stream(format!("OBJ_{bucket}")).await;
        let stream = stream.map_err(SourceUnavailable::new)?;
        self.require_shape(&bucket, &stream.cached_info().config, max_age)?;
        Ok((store, stream))
    }

    /// Requires what all streams have. Without the setting, each number of replicas is as good.
    fn require_shape(
        &self,
        name: &str,
        found: &stream::Config,
        max_age: Duration,
    ) -> Result<(), SourceUnavailable> {
        let replicas = self.replicas.unwrap_or(found.num_replicas);
        let age = "max_age (fleet.result_retention; of heartbeats fleet.lost_after)";
        require_same(name, age, &found.max_age, &max_age)?;
        require_same(name, "num_replicas (fleet.replicas)", &found.num_replicas, &replicas)?;
        // Memory would lose jobs with the server, and a smaller size their results.
        require_same(name, "storage", &found.storage, &StorageType::File)?;
        require_same(name, "max_msg_size", &found.max_message_size, &-1)
    }
}

/// Returns an error that names the difference between what there is and what this daemon needs.
fn require_same<T: PartialEq + fmt::Debug>(
    object: &str,
    field: &str,
    found: &T,
    wanted: &T,
) -> Result<(), SourceUnavailable> {
    if found == wanted {
        return Ok(());
    }
    Err(SourceUnavailable(format!(
        "{object} on the server has {field} {found:?}, and this daemon needs {wanted:?}: give all daemons the same [fleet] settings, or change or delete {object} on the server"
    )))
}
