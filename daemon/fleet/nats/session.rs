//! What this daemon has on the NATS servers: its connections, and the objects that all parts use.

use std::{
    collections::HashSet,
    convert::Infallible,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use tokio::{
    sync::{OnceCell, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{
    artifact_objects::ArtifactObjects,
    claims::JobClaims,
    connection::{NatsConnection, NatsSetupError},
    inbound::InboundConnection,
    jobs::JobPublisher,
    liveness::{Heartbeats, OwnHeartbeat},
    names::{consumer_name, job_subject},
    objects::{NatsObjects, consumed_workspaces},
    records::FleetRecords,
    results::FleetResults,
    signature::SigningKey,
    unreadable::{SearchedMessages, UnreadableSearch, delete_message},
};
use crate::{
    api::v1::FleetDaemonRecord,
    daemon::{
        config::fleet::{FleetConfig, FleetQueueConfig, NatsConfig},
        fleet::{
            backoff::retry,
            identity::FleetIdentity,
            in_flight::InFlightClaims,
            job_log::FleetJobLog,
            work_source::{JobEnd, SourceUnavailable},
        },
    },
};

/// Messages that cannot be read and become dead letters before the next fetch.
const MAX_BURIED_MESSAGES: usize = 1000;
/// Heartbeats in the time after which a daemon without one is dead.
const HEARTBEATS_PER_LOST_AFTER: u32 = 3;

/// The part of the fleet that is on NATS. Usable before the first connection: requests fail then.
#[derive(Debug)]
pub(crate) struct NatsSession {
    config: FleetConfig,
    nats: NatsConfig,
    identity: FleetIdentity,
    log: Arc<FleetJobLog>,
    connection: NatsConnection,
    /// For requests to this daemon.
    inbound: InboundConnection,
    publisher: JobPublisher,
    in_flight: Arc<InFlightClaims>,
    /// Opened with the first connection.
    objects: OnceCell<NatsObjects>,
    /// When the last heartbeat was stored.
    last_heartbeat: watch::Sender<Option<Instant>>,
    own_heartbeat: Mutex<OwnHeartbeat>,
    /// Whether another daemon has the name of this one.
    is_name_taken: Arc<AtomicBool>,
    claims: Mutex<Option<Arc<JobClaims>>>,
    /// Names of consumers that daemons have created.
    served: Mutex<HashSet<String>>,
}

impl NatsSession {
    /// Begins to connect in the background.
    pub(crate) async fn start(
        config: FleetConfig,
        nats: &NatsConfig,
        identity: FleetIdentity,
        log: Arc<FleetJobLog>,
    ) -> Result<Arc<Self>, NatsSetupError> {
        let name = format!("jigd {}", identity.daemon_id);
        let connection = NatsConnection::start(nats, &name).await?;
        let signing_key = config.signing_key.as_ref().map(|key| SigningKey::new(key.bytes()));
        Ok(Arc::new(Self {
            publisher: JobPublisher::new(connection.jetstream().clone(), signing_key),
            connection,
            inbound: InboundConnection::new(nats.clone(), format!("{name} inbound")),
            nats: nats.clone(),
            config,
            identity,
            log,
            in_flight: Arc::default(),
            objects: OnceCell::new(),
            last_heartbeat: watch::Sender::new(None),
            own_heartbeat: Mutex::new(OwnHeartbeat::None),
            is_name_taken: Arc::default(),
            claims: Mutex::default(),
            served: Mutex::default(),
        }))
    }

    /// Name of this daemon in the fleet.
    pub(crate) fn daemon_id(&self) -> &str {
        &self.identity.daemon_id
    }

    /// Whether another daemon has the name of this one, which takes no jobs then.
    pub(crate) fn is_name_taken(&self) -> bool {
        self.is_name_taken.load(Ordering::Relaxed)
    }

    /// The client, for subjects without a stream whose messages are those of daemons.
    pub(crate) fn client(&self) -> &async_nats::Client {
        self.connection.client()
    }

    pub(super) fn connection(&self) -> &NatsConnection {
        &self.connection
    }

    /// The connection for requests to this daemon, which any program may have published.
    pub(super) async fn inbound(&self) -> Result<NatsConnection, SourceUnavailable> {
        self.inbound.get().await
    }

    /// Returns the connection for the messages of a queue, which begins when it is first needed.
    pub(super) fn queue_inbound(&self, queue: &str) -> InboundConnection {
        let name = format!("jigd {} inbound {queue}", self.identity.daemon_id);
        InboundConnection::new(self.nats.clone(), name)
    }

    /// Name of the stream of jobs.
    pub(super) fn stream(&self) -> &str {
        &self.nats.stream
    }

    pub(crate) fn publisher(&self) -> &JobPublisher {
        &self.publisher
    }

    /// Time that the servers store ended jobs.
    pub(crate) fn result_retention(&self) -> Duration {
        self.config.result_retention
    }

    /// The records of jobs.
    pub(crate) async fn records(&self) -> Result<FleetRecords, SourceUnavailable> {
        let bucket = self.objects().await?.records.clone();
        Ok(FleetRecords::new(self.client().clone(), bucket))
    }

    /// The large results.
    pub(crate) async fn results(&self) -> Result<FleetResults, SourceUnavailable> {
        let objects = self.objects().await?;
        Ok(FleetResults::new(self.client().clone(), objects.results.clone()))
    }

    /// The artifacts of ended jobs.
    pub(crate) async fn artifacts(&self) -> Result<ArtifactObjects, SourceUnavailable> {
        let objects = self.objects().await?;
        Ok(ArtifactObjects::new(
            self.connection.jetstream().clone(),
            objects.results.clone(),
            objects.results_stream.clone(),
            &self.nats.stream,
        ))
    }

    pub(super) async fn heartbeats(&self) -> Result<Heartbeats, SourceUnavailable> {
        let objects = self.objects().await?;
        Ok(Heartbeats {
            bucket: objects.daemons.clone(),
            age: Arc::clone(&objects.daemons_age),
            connection: self.connection.clone(),
            lost_after: self.config.lost_after,
            identity: self.identity.clone(),
            is_name_taken: Arc::clone(&self.is_name_taken),
            last: self.last_heartbeat.subscribe(),
        })
    }

    /// What makes claims, for all queues.
    pub(super) async fn claims(&self) -> Result<Arc<JobClaims>, SourceUnavailable> {
        let made = self.claims.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(claims) = made {
            return Ok(claims);
        }
        let claims = Arc::new(JobClaims {
            records: self.records().await?,
            records_age: Arc::clone(&self.objects().await?.records_age),
            results: self.results().await?,
            artifacts: self.artifacts().await?,
            publisher: self.publisher.clone(),
            heartbeats: self.heartbeats().await?,
            in_flight: Arc::clone(&self.in_flight),
            identity: self.identity.clone(),
            log: Arc::clone(&self.log),
            max_deliver: self.config.max_deliver,
            max_deliveries: max_deliveries(&self.config),
            ack_wait: self.config.ack_wait,
            result_retention: self.config.result_retention,
        });
        *self.claims.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&claims));
        Ok(claims)
    }

    /// Whether this daemon has the claim of a job still.
    pub(crate) async fn has_claim(&self, id: &str, claim: &str) -> Result<bool, SourceUnavailable> {
        self.claims().await?.has_claim(id, claim).await
    }

    /// Stores the end of a job, if this daemon has its claim still. Repeats it until the server has
    /// answered or `stop` is cancelled. Returns whether this daemon has the claim no more.
    pub(crate) async fn settle(
        &self,
        id: &str,
        claim: &str,
        end: &JobEnd,
        stop: &CancellationToken,
    ) -> bool {
        match retry(stop, id, "settle a fleet job", || self.claims()).await {
            Some(claims) => claims.settle(id, claim, end, stop).await,
            None => false,
        }
    }

    /// Opens the consumers of a queue. Creates streams and buckets again, if the server has lost them.
    pub(super) async fn open_consumers(
        &self,
        queue: &FleetQueueConfig,
    ) -> Result<Vec<String>, SourceUnavailable> {
        let objects = self.open_objects().await?;
        objects.open_consumers(queue, self.config.ack_wait).await
    }

    /// Moves messages of a queue that cannot be read to the dead letters: those that were delivered,
    /// and those that follow.
    pub(super) async fn bury_unreadable(
        &self,
        queue: &FleetQueueConfig,
    ) -> Result<SearchedMessages, SourceUnavailable> {
        // Creates the stream of dead letters again, if the server has lost it.
        let (stream, jetstream) = (self.open_objects().await?.stream, self.connection.jetstream());
        let claims = self.claims().await?;
        let mut searched = SearchedMessages::default();
        for workspace in consumed_workspaces(queue) {
            let subject = job_subject(&queue.name, workspace);
            let consumer = consumer_name(&queue.name, workspace);
            let search = UnreadableSearch::start(jetstream, &stream, consumer, subject).await?;
            let Some(mut search) = search else { continue };
            while searched.buried < MAX_BURIED_MESSAGES
                && let Some(found) = search.next().await?
            {
                claims.reject_unreadable(queue, &found.message).await?;
                delete_message(&stream, found.sequence).await?;
                searched.buried += 1;
            }
            searched.delivered.extend(search.delivered());
        }
        Ok(searched)
    }

    /// Whether no daemon has taken jobs of a queue and workspace so far. False if it is unknown.
    pub(crate) async fn is_unserved(&self, queue: &str, workspace: &str) -> bool {
        let consumer = consumer_name(queue, Some(workspace));
        if self.lock_served().contains(&consumer) {
            return false;
        }
        match self.objects().await {
            Ok(objects) => match objects.has_consumer(&consumer).await {
                Some(true) => {
                    self.lock_served().insert(consumer);
                    false
                }
                Some(false) => true,
                None => false,
            },
            Err(_) => false,
        }
    }

    fn lock_served(&self) -> MutexGuard<'_, HashSet<String>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn objects(&self) -> Result<&NatsObjects, SourceUnavailable> {
        self.objects.get_or_try_init(|| self.open_objects()).await
    }

    async fn open_objects(&self) -> Result<NatsObjects, SourceUnavailable> {
        NatsObjects::open(self.connection.jetstream(), &self.nats, &self.config).await
    }

    /// Renews the heartbeat, with the places that are free by queue, until `stop` is cancelled.
    pub(crate) async fn keep_alive(
        &self,
        free_places: impl Fn() -> Vec<(String, u32)>,
        stop: &CancellationToken,
    ) {
        let interval = self.config.lost_after / HEARTBEATS_PER_LOST_AFTER;
        let mut connection = self.connection.subscribe();
        loop {
            connection.mark_unchanged();
            let record = FleetDaemonRecord {
                daemon_id: self.identity.daemon_id.to_string(),
                start_id: self.identity.start_id.to_string(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                free_places: free_places().into_iter().collect(),
                time: Some(SystemTime::now().into()),
            };
            if !self.renew_heartbeat(&record).await && self.restore_objects().await {
                // Without a delay: its bucket may have been deleted.
                self.renew_heartbeat(&record).await;
            }

            // After a break of the connection, other daemons may be about to take this one for dead.
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(interval) => {}
                _changed = connection.changed() => {}
            }
        }
    }

    async fn renew_heartbeat(&self, record: &FleetDaemonRecord) -> bool {
        let renewed = self.beat(record).await;
        if let Err(error) = &renewed {
            tracing::warn!(%error, "cannot renew the heartbeat of this daemon");
        }
        renewed.is_ok()
    }

    /// Creates streams and buckets again that the servers have lost. Never ends. Heartbeats do not wait
    /// for this: a stream may be without an answer for long.
    pub(crate) async fn keep_objects(&self) -> Infallible {
        let look = async || self.objects().await?.require_all().await;
        loop {
            sleep(self.config.lost_after / HEARTBEATS_PER_LOST_AFTER).await;
            let Err(error) = look().await else { continue };
            tracing::warn!(%error, "cannot find all streams and buckets of the fleet");
            // The second look notices which of them are new.
            if self.restore_objects().await
                && let Err(error) = look().await
            {
                tracing::warn!(%error, "cannot find the restored streams and buckets");
            }
        }
    }

    /// Creates what the servers have lost, such as a bucket that an operator has deleted. Returns false
    /// if that is impossible.
    async fn restore_objects(&self) -> bool {
        if self.connection.connected_since().is_none() {
            return false;
        }
        let opened = self.open_objects().await;
        if let Err(error) = &opened {
            tracing::warn!(%error, "cannot open the streams and buckets of the fleet");
        }
        opened.is_ok()
    }

    async fn beat(&self, record: &FleetDaemonRecord) -> Result<(), SourceUnavailable> {
        let before = self.own_heartbeat();
        // Before the request: the server may have stored the heartbeat at any time after this.
        let begun = Instant::now();
        let after = self.heartbeats().await?.beat(record, &before).await?;

        let is_taken = matches!(after, OwnHeartbeat::Taken { .. });
        self.is_name_taken.store(is_taken, Ordering::Relaxed);
        self.last_heartbeat.send_replace((!is_taken).then_some(begun));
        let daemon_id = &*self.identity.daemon_id;
        match (&before, &after) {
            (OwnHeartbeat::Taken { start_id }, OwnHeartbeat::Taken { start_id: other })
                if start_id == other => {}
            (_, OwnHeartbeat::Taken { start_id }) => tracing::error!(
                daemon_id,
                other_start_id = start_id,
                start_id = %self.identity.start_id,
                "another daemon of the fleet has the id of this one, which takes no more of its jobs: give each daemon a state directory and a fleet.daemon_id of its own, then restart both"
            ),
            (OwnHeartbeat::Taken { .. }, _) => tracing::warn!(
                daemon_id,
                "the other daemon with the id of this one has gone: taking jobs of the fleet again"
            ),
            _ => {}
        }
        *self.own_heartbeat.lock().unwrap_or_else(PoisonError::into_inner) = after;
        Ok(())
    }

    fn own_heartbeat(&self) -> OwnHeartbeat {
        self.own_heartbeat.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Removes the heartbeat, so that other daemons need not wait until it is old.
    pub(crate) async fn leave(&self) {
        let left = match self.heartbeats().await {
            Ok(heartbeats) => heartbeats.end(&self.own_heartbeat()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = left {
            tracing::debug!(%error, "cannot remove the heartbeat of this daemon");
        }
    }

    /// Waits until other daemons know that this one is alive. Returns false if `stop` is cancelled
    /// first.
    pub(super) async fn wait_for_heartbeat(&self, stop: &CancellationToken) -> bool {
        let lost_after = self.config.lost_after;
        let is_fresh =
            |last: &Option<Instant>| last.is_some_and(|last| last.elapsed() < lost_after);
        let mut heartbeats = self.last_heartbeat.subscribe();
        tokio::select! {
            biased;
            () = stop.cancelled() => false,
            fresh = heartbeats.wait_for(is_fresh) => fresh.is_ok(),
        }
    }
}

/// Returns how many deliveries of a message `max_deliver` deaths of daemons can explain.
///
/// Until a daemon counts as dead, others hand its messages back, each after half of the wait for an
/// acknowledgement.
fn max_deliveries(config: &FleetConfig) -> u32 {
    let handed_back = config.lost_after.as_millis() * 2 / config.ack_wait.as_millis().max(1);
    let of_a_death = u32::try_from(handed_back).unwrap_or(u32::MAX).saturating_add(2);
    config.max_deliver.saturating_mul(of_a_death)
}
