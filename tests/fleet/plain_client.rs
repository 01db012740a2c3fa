//! A plain NATS client: it publishes jobs as docs/operate/fleet.md describes, and reads their records.

use std::{collections::BTreeMap, time::Duration};

use async_nats::{
    ConnectOptions, HeaderMap,
    jetstream::{self, kv, stream},
};
use futures_util::StreamExt as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jig::api::v1::{FleetDaemonRecord, FleetJobRecord, FleetJobState, SubmitJobRequest};
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tokio::time::{sleep, timeout};

use super::nats_proxy::NatsProxy;
use crate::support::{eventually, eventually_within, hex, promptly};

/// Time limit of one request to the server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two attempts to publish a message.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time until jobs of a fleet have ended, on a machine that is busy with other tests.
pub(super) const MAX_FLEET_TIME: Duration = Duration::from_secs(180);

/// A client of the NATS server. Its connection survives restarts of the server.
#[derive(Debug, Clone)]
pub(super) struct PlainClient {
    client: async_nats::Client,
    jetstream: jetstream::Context,
    proxy: NatsProxy,
}

/// A message of the job stream.
#[derive(Debug, Clone)]
pub(super) struct JobMessage {
    subject: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl PlainClient {
    /// Connects with options that authenticate it.
    pub(super) async fn connect(server_port: u16, options: ConnectOptions) -> Self {
        let proxy = NatsProxy::start(server_port);
        let options = options
            .request_timeout(Some(REQUEST_TIMEOUT))
            .reconnect_delay_callback(|_attempts| Duration::from_millis(50));
        let connecting = options.connect(proxy.url());
        let client = promptly("the test connects to NATS", connecting).await.unwrap();
        let jetstream = jetstream::new(client.clone());
        Self { client, jetstream, proxy }
    }

    /// The network between this client and the server.
    pub(super) fn proxy(&self) -> &NatsProxy {
        &self.proxy
    }

    pub(super) fn client(&self) -> &async_nats::Client {
        &self.client
    }

    pub(super) fn jetstream(&self) -> &jetstream::Context {
        &self.jetstream
    }

    /// Publishes a message until the stream has acknowledged it. Returns whether it was a duplicate.
    pub(super) async fn publish(&self, message: &JobMessage) -> bool {
        let publishing = async {
            loop {
                if let Some(is_duplicate) = self.try_publish(message).await {
                    return is_duplicate;
                }
                sleep(RETRY_INTERVAL).await;
            }
        };
        timeout(MAX_FLEET_TIME, publishing).await.expect("the stream acknowledges a message")
    }

    /// Publishes a message. Returns whether it was a duplicate, if the stream acknowledges it.
    pub(super) async fn try_publish(&self, message: &JobMessage) -> Option<bool> {
        let mut headers = HeaderMap::new();
        for (name, value) in &message.headers {
            headers.append(*name, value.as_str());
        }
        let body = message.body.clone().into();
        let publishing =
            self.jetstream.publish_with_headers(message.subject.clone(), headers, body);
        let acknowledging = publishing.await.ok()?;
        Some(acknowledging.await.ok()?.duplicate)
    }

    /// Waits until the heartbeats of all daemons have these free places, in order.
    pub(super) async fn wait_for_free_places(&self, expected: &[u32]) {
        let what = format!("the free places are {expected:?}");
        eventually_within(MAX_FLEET_TIME, &what, async || {
            let Ok(bucket) = self.jetstream.get_key_value("JIG_JOBS_daemons").await else {
                return false;
            };
            let mut found = Vec::new();
            let mut keys = bucket.keys().await.unwrap();
            while let Some(Ok(key)) = keys.next().await {
                if let Some(record) = bucket.get(&key).await.unwrap() {
                    let record = FleetDaemonRecord::decode(record).unwrap();
                    found.push(record.free_places["build"]);
                }
            }
            found.sort_unstable();
            found == expected
        })
        .await;
    }

    /// The bucket of records.
    pub(super) async fn records(&self) -> kv::Store {
        let mut store = None;
        eventually_within(MAX_FLEET_TIME, "there is a bucket of records", async || {
            store = self.jetstream.get_key_value("JIG_JOBS_records").await.ok();
            store.is_some()
        })
        .await;

        store.unwrap()
    }

    /// The record of a job, if there is one and the server answers.
    pub(super) async fn record(&self, id: &str) -> Option<FleetJobRecord> {
        let store = self.jetstream.get_key_value("JIG_JOBS_records").await.ok()?;
        let value = store.get(id).await.ok()??;
        Some(FleetJobRecord::decode(value).unwrap())
    }

    /// Waits until the record of a job has a state, and returns it.
    pub(super) async fn wait_for_state(&self, id: &str, state: FleetJobState) -> FleetJobRecord {
        let mut record = None;
        eventually_within(MAX_FLEET_TIME, &format!("{id} is {state:?}"), async || {
            record = self.record(id).await;
            record.as_ref().is_some_and(|record| record.state() == state)
        })
        .await;

        record.unwrap()
    }

    /// Waits until a job has ended, and returns its record.
    pub(super) async fn wait_for_end(&self, id: &str) -> FleetJobRecord {
        let record = self.wait_for_state(id, FleetJobState::Ended).await;
        assert!(record.end_time.is_some(), "{record:?}");
        record
    }

    /// Waits until all jobs have ended. Returns their records, and checks that none changes.
    pub(super) async fn wait_for_ends(&self, ids: &[String]) -> BTreeMap<String, FleetJobRecord> {
        let store = self.records().await;
        let mut ended: BTreeMap<String, (u64, FleetJobRecord)> = BTreeMap::new();
        let what = format!("all of {} jobs have ended", ids.len());
        eventually_within(MAX_FLEET_TIME, &what, async || {
            for id in ids.iter().filter(|id| !ended.contains_key(*id)).cloned().collect::<Vec<_>>()
            {
                let Ok(Some(entry)) = store.entry(&id).await else {
                    return false;
                };
                let record = FleetJobRecord::decode(entry.value).unwrap();
                if record.state() != FleetJobState::Ended {
                    return false;
                }
                ended.insert(id, (entry.revision, record));
            }
            true
        })
        .await;

        eventually("no message is left", async || self.message_count().await == Some(0)).await;
        for (id, (revision, record)) in &ended {
            let entry = store.entry(id).await.unwrap().unwrap();
            assert_eq!(entry.revision, *revision, "the end of {id} changed: {record:?}");
        }

        ended.into_iter().map(|(id, (_, record))| (id, record)).collect()
    }

    /// The heartbeat of a daemon, and its revision.
    pub(super) async fn heartbeat(&self, daemon_id: &str) -> Option<(FleetDaemonRecord, u64)> {
        let store = self.jetstream.get_key_value("JIG_JOBS_daemons").await.ok()?;
        let entry = store.entry(daemon_id).await.ok()??;
        let is_put = entry.operation == kv::Operation::Put;
        is_put.then(|| (FleetDaemonRecord::decode(entry.value).unwrap(), entry.revision))
    }

    /// Messages of the stream, if the server answers.
    pub(super) async fn message_count(&self) -> Option<u64> {
        Some(self.stream_state().await?.messages)
    }

    /// State of the stream, if the server answers.
    pub(super) async fn stream_state(&self) -> Option<stream::State> {
        let mut stream = self.jetstream.get_stream("JIG_JOBS").await.ok()?;
        Some(stream.info().await.ok()?.state.clone())
    }

    /// Waits until the server has dropped the first message, and daemons have published so many.
    pub(super) async fn wait_for_old_message(&self, published: u64) {
        eventually("the first message is too old", async || {
            let state = self.stream_state().await;
            state.is_some_and(|state| state.first_sequence > 1 && state.last_sequence >= published)
        })
        .await;
    }

    /// Sets the maximum size of a stream.
    pub(super) async fn set_max_bytes(&self, stream: &str, max_bytes: i64) {
        let mut stream = self.jetstream.get_stream(stream).await.unwrap();
        let mut config = stream.info().await.unwrap().config.clone();
        config.max_bytes = max_bytes;
        self.jetstream.update_stream(config).await.unwrap();
    }

    /// Starts to receive the messages of a subject.
    pub(super) async fn subscribe(&self, subject: &'static str) -> async_nats::Subscriber {
        let subscriber = self.client.subscribe(subject).await.unwrap();
        self.client.flush().await.unwrap();
        subscriber
    }
}

/// The next message of a subscription.
pub(super) async fn next_message(subscriber: &mut async_nats::Subscriber) -> async_nats::Message {
    promptly("a message arrives", subscriber.next()).await.unwrap()
}

impl JobMessage {
    /// A message for the queue `build` of the workspace `main`.
    pub(super) fn new(request_id: &str, request: &SubmitJobRequest) -> Self {
        Self::with_body(request_id, request.encode_to_vec())
    }

    /// As [`Self::new`], with any body.
    pub(super) fn with_body(request_id: &str, body: Vec<u8>) -> Self {
        let subject = "jig.jobs.build.main".to_owned();
        Self { subject, headers: Vec::new(), body }.header("Nats-Msg-Id", request_id)
    }

    pub(super) fn subject(mut self, subject: &str) -> Self {
        subject.clone_into(&mut self.subject);
        self
    }

    pub(super) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub(super) fn without_header(mut self, name: &str) -> Self {
        self.headers.retain(|(header, _)| *header != name);
        self
    }

    pub(super) fn with_new_body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }

    /// Signs the message for a principal.
    pub(super) fn signed(self, key: &[u8], principal: &str) -> Self {
        let signed = self.header("Jig-Principal", principal);
        let signature = signed.signature(key);
        signed.header("Jig-Signature", &signature)
    }

    fn signature(&self, key: &[u8]) -> String {
        let header = |name: &str| {
            let mut values = self.headers.iter().filter(|(header, _)| *header == name);
            values.next().map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        let request_id = match header("Jig-Request-Id") {
            "" => header("Nats-Msg-Id"),
            request_id => request_id,
        };
        let texts = [&*self.subject, request_id, header("Jig-Principal"), header("Jig-Session")];
        for part in texts.map(str::as_bytes).into_iter().chain([&*self.body]) {
            mac.update(&u32::try_from(part.len()).unwrap().to_be_bytes());
            mac.update(part);
        }
        hex(&mac.finalize().into_bytes())
    }
}

/// The id of a job of the queue `build`.
pub(super) fn fleet_job_id(request_id: &str) -> String {
    queue_job_id("build", request_id)
}

/// The id of a job of a queue.
pub(super) fn queue_job_id(queue: &str, request_id: &str) -> String {
    let digest = Sha256::digest(format!("{queue}/{request_id}"));
    format!("fleet-{}", &hex(&digest)[..32])
}
