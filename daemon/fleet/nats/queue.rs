//! One queue of the fleet on NATS: fetches messages, and claims their jobs.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::jetstream;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    acknowledgement::hand_back,
    claimed_job::NatsClaim,
    claims::JobClaims,
    connection::NatsConnection,
    inbound::InboundConnection,
    pull::{Arrival, FETCH_TIMEOUT, FETCH_WAIT, IdlePull, Pull},
    session::NatsSession,
};
use crate::daemon::{
    config::fleet::FleetQueueConfig,
    fleet::{
        counts::{FleetPlace, FleetQueueState},
        work_source::{PlacedWork, SourceUnavailable, WorkSource},
    },
    task::{self, BoxFuture},
};

/// Fetches of one message after some could not be read. What is delivered to a connection after a
/// message that breaks it waits until it is delivered again.
const SINGLE_FETCHES: u32 = 8;
/// Breaks of the connection in a row, without a message that explains them, that are an error.
const MAX_UNEXPLAINED_BREAKS: u32 = 3;

/// A queue, as this daemon takes jobs from it.
#[derive(Debug)]
pub(crate) struct NatsQueue {
    session: Arc<NatsSession>,
    queue: Arc<FleetQueueConfig>,
    /// What breaks it harms this queue only.
    inbound: InboundConnection,
    opened: Mutex<Option<OpenedConsumers>>,
    /// Breaks of `inbound` alone since a message explained one.
    unexplained_breaks: AtomicU32,
}

/// A message, and the place that its job takes.
type PlacedMessage = (jetstream::Message, FleetPlace);

/// The consumers of the subjects of a queue, and the connection that fetches their messages.
#[derive(Debug)]
struct OpenedConsumers {
    inbound: NatsConnection,
    /// Since when `inbound` stood, and the other connection of this daemon.
    connected_since: [Option<Instant>; 2],
    /// Names. None after an error: they are opened again.
    consumers: Vec<String>,
    /// The requests that wait for messages. They stay open from one fetch to the next.
    waiting: Option<IdlePull>,
    /// Fetches of one message that are left.
    single_fetches: u32,
}

impl OpenedConsumers {
    fn is_broken(&self) -> bool {
        self.inbound.has_ended() || self.inbound.connected_since() != self.connected_since[0]
    }

    /// Waits until the connection is broken: the server has forgotten the requests then.
    async fn broken(&self) {
        let mut connection = self.inbound.subscribe();
        // An error: it has ended.
        let _ended = connection.wait_for(|since| *since != self.connected_since[0]).await;
    }
}

impl NatsQueue {
    pub(crate) fn new(session: Arc<NatsSession>, queue: FleetQueueConfig) -> Self {
        let inbound = session.queue_inbound(&queue.name);
        let (opened, unexplained_breaks) = (Mutex::default(), AtomicU32::new(0));
        Self { session, queue: Arc::new(queue), inbound, opened, unexplained_breaks }
    }

    async fn claim_jobs(
        &self,
        places: &Arc<FleetQueueState>,
        stop: &CancellationToken,
    ) -> Result<Vec<PlacedWork>, SourceUnavailable> {
        while stop.run_until_cancelled(places.wait_for_places(true)).await.is_some()
            // A daemon without a heartbeat counts as dead, and its claims as lost.
            && self.session.wait_for_heartbeat(stop).await
        {
            let claims = self.session.claims().await?;
            let messages = self.fetch(places, stop).await?;
            let claimed = self.claim_all(&claims, messages).await;
            if !claimed.is_empty() {
                return Ok(claimed);
            }
        }
        Ok(Vec::new())
    }

    /// Claims the jobs of messages, all at once: each takes two requests to the server.
    async fn claim_all(
        &self,
        claims: &Arc<JobClaims>,
        messages: Vec<PlacedMessage>,
    ) -> Vec<PlacedWork> {
        let tasks: Vec<_> = messages
            .into_iter()
            .map(|(message, place)| {
                let (claims, queue) = (Arc::clone(claims), Arc::clone(&self.queue));
                task::spawn_tracked("claim of a fleet job", async move {
                    let claim = claims.claim(&queue, message).await?;
                    Some((NatsClaim::new(claims, claim), place))
                })
            })
            .collect();

        let mut claimed: Vec<PlacedWork> = Vec::new();
        for task in tasks {
            match task.await {
                Ok(Some((claim, place))) => claimed.push((Box::new(claim), place)),
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "the claim of a fleet job has panicked"),
            }
        }
        claimed
    }

    /// Fetches as many messages as there are free places. Waits for the first one, until `stop` is
    /// cancelled or there is no free place.
    async fn fetch(
        &self,
        places: &Arc<FleetQueueState>,
        stop: &CancellationToken,
    ) -> Result<Vec<PlacedMessage>, SourceUnavailable> {
        let mut opened = self.open_consumers().await?;
        let fetched = match self.fetch_opened(&mut opened, places, stop).await {
            Ok(messages) => {
                // The subject that was first goes to the end, so that no other waits forever.
                opened.consumers.rotate_left(1);
                Ok(messages)
            }
            // The next fetch looks for the cause.
            Err(_) if opened.is_broken() => Ok(Vec::new()),
            Err(error) => {
                opened.consumers.clear();
                Err(error)
            }
        };
        *self.lock_opened() = Some(opened);
        fetched
    }

    async fn fetch_opened(
        &self,
        opened: &mut OpenedConsumers,
        places: &Arc<FleetQueueState>,
        stop: &CancellationToken,
    ) -> Result<Vec<PlacedMessage>, SourceUnavailable> {
        let waiting = match opened.waiting.take() {
            Some(waiting) => waiting.resume().await,
            None => None,
        };
        let mut waiting = match waiting {
            Some(waiting) => waiting,
            None => self.open_pull(opened).await?,
        };
        let fetched = async {
            let messages = {
                let _turn = places.wait_for_turn().await;
                let max = if opened.single_fetches > 0 { 1 } else { places.free_places() };
                place(self.fetch_present(opened, max).await?, places).await
            };
            opened.single_fetches = opened.single_fetches.saturating_sub(1);
            // Without a place, no message may come.
            if !messages.is_empty() || places.free_places() == 0 {
                return Ok(messages);
            }
            let stopped = async {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = places.wait_for_places(false) => {}
                }
            };
            let messages = self.await_message(opened, &mut waiting, stopped).await?;
            Ok(place(messages, places).await)
        };
        let fetched = fetched.await;
        opened.waiting = Some(waiting.idle());
        fetched
    }

    /// Fetches at most `max` of the messages that there are, from one subject after the other.
    async fn fetch_present(
        &self,
        opened: &OpenedConsumers,
        max: usize,
    ) -> Result<Vec<jetstream::Message>, SourceUnavailable> {
        let mut pull = self.open_pull(opened).await?;
        let mut messages = Vec::new();
        for consumer in &opened.consumers {
            if messages.len() >= max {
                break;
            }
            pull.request(self.session.stream(), consumer, max - messages.len(), None).await?;
            while messages.len() < max {
                let arrival = tokio::select! {
                    biased;
                    arrival = pull.next() => arrival,
                    () = opened.broken() => failed("the connection broke"),
                    () = sleep(FETCH_TIMEOUT) => failed("the server does not reply"),
                };
                match arrival {
                    Arrival::Message(message) => messages.push(*message),
                    Arrival::Done => break,
                    Arrival::Failed(error) => {
                        drop(pull.idle());
                        // What was fetched before is claimed. The next fetch reports the error.
                        return if messages.is_empty() { Err(error) } else { Ok(messages) };
                    }
                }
            }
        }
        Ok(messages)
    }

    /// Waits for the first message of any subject. Returns none after a while, and when `stopped` ends
    /// or the connection breaks.
    async fn await_message(
        &self,
        opened: &OpenedConsumers,
        pull: &mut Pull,
        stopped: impl Future<Output = ()>,
    ) -> Result<Vec<jetstream::Message>, SourceUnavailable> {
        let (mut end, mut stopped) = (pin!(sleep(FETCH_WAIT)), pin!(stopped));
        loop {
            for consumer in &opened.consumers {
                if !pull.has_request(consumer) {
                    pull.request(self.session.stream(), consumer, 1, Some(FETCH_WAIT)).await?;
                }
            }
            let arrival = tokio::select! {
                biased;
                arrival = pull.next() => arrival,
                () = &mut stopped => return Ok(Vec::new()),
                () = opened.broken() => return Ok(Vec::new()),
                () = &mut end => return Ok(Vec::new()),
            };
            match arrival {
                Arrival::Message(message) => return Ok(vec![*message]),
                // A request has expired, and is made again.
                Arrival::Done => {}
                Arrival::Failed(error) => return Err(error),
            }
        }
    }

    async fn open_pull(&self, opened: &OpenedConsumers) -> Result<Pull, SourceUnavailable> {
        Pull::open(&opened.inbound, self.session.connection().jetstream()).await
    }

    /// Opens the consumers, unless they are open. If only the connection for messages has broken, one of
    /// them may have broken it: those are moved to the dead letters first.
    async fn open_consumers(&self) -> Result<OpenedConsumers, SourceUnavailable> {
        let connection = self.session.connection();
        let kept = self.lock_opened().take();
        let mut single_fetches = 0;
        match kept {
            Some(opened) if opened.is_broken() => {
                if connection.connected_since() == opened.connected_since[1] {
                    match self.bury_unreadable().await {
                        Ok(0) => {}
                        Ok(_) => single_fetches = SINGLE_FETCHES,
                        Err(error) => {
                            *self.lock_opened() = Some(opened);
                            return Err(error);
                        }
                    }
                }
            }
            Some(opened) if !opened.consumers.is_empty() => return Ok(opened),
            Some(_) | None => {}
        }

        let consumers = self.session.open_consumers(&self.queue).await?;
        let inbound = self.inbound.get().await?;
        let connected_since = [inbound.connected_since(), connection.connected_since()];
        Ok(OpenedConsumers { inbound, connected_since, consumers, waiting: None, single_fetches })
    }

    /// Moves messages that cannot be read to the dead letters. Returns their number.
    async fn bury_unreadable(&self) -> Result<usize, SourceUnavailable> {
        let searched = self.session.bury_unreadable(&self.queue).await?;
        if searched.buried > 0 || searched.delivered.is_empty() {
            self.unexplained_breaks.store(0, Ordering::Relaxed);
        } else if self.unexplained_breaks.fetch_add(1, Ordering::Relaxed) + 1
            == MAX_UNEXPLAINED_BREAKS
        {
            self.unexplained_breaks.store(0, Ordering::Relaxed);
            tracing::error!(
                queue = self.queue.name,
                sequences = ?searched.delivered,
                stream = self.session.stream(),
                remedy = "if this repeats, a message may be the cause: look at those of these sequences whose jobs do not run with `nats stream get`, and delete it with `nats stream rmm`",
                "the connection for messages of a queue has broken several times, and no message is unreadable"
            );
        }
        Ok(searched.buried)
    }

    fn lock_opened(&self) -> MutexGuard<'_, Option<OpenedConsumers>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkSource for NatsQueue {
    fn claim<'a>(
        &'a self,
        places: &'a Arc<FleetQueueState>,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Vec<PlacedWork>, SourceUnavailable>> {
        Box::pin(self.claim_jobs(places, stop))
    }
}

/// Takes a place for each message. Hands those back for which there is none.
async fn place(
    mut messages: Vec<jetstream::Message>,
    places: &Arc<FleetQueueState>,
) -> Vec<PlacedMessage> {
    let taken = places.take_places(messages.len());
    for message in messages.drain(taken.len()..) {
        hand_back(&message, Duration::ZERO).await;
    }
    messages.into_iter().zip(taken).collect()
}

fn failed(text: &str) -> Arrival {
    Arrival::Failed(SourceUnavailable::new(text))
}
