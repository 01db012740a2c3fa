//! One queue of the fleet on NATS: fetches messages, and claims their jobs.

use std::{
    mem::take,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_nats::jetstream::{
    self, AckKind,
    consumer::{PullConsumer, pull::Batch},
};
use tokio::time::timeout;
use tokio_stream::{StreamExt as _, StreamMap};
use tokio_util::sync::CancellationToken;

use super::{claimed_job::NatsClaim, claims::JobClaims, session::NatsSession};
use crate::daemon::{
    config::fleet::FleetQueueConfig,
    fleet::work_source::{ClaimedWork, SourceUnavailable, WorkSource},
    task::{self, BoxFuture},
};

/// Time that a request for messages waits on the server. It is lost if the server restarts.
const FETCH_WAIT: Duration = Duration::from_secs(20);
/// Time limit of a request for the messages that there are.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// A queue, as this daemon takes jobs from it.
#[derive(Debug)]
pub(crate) struct NatsQueue {
    session: Arc<NatsSession>,
    queue: Arc<FleetQueueConfig>,
    /// The consumers of its subjects. Opened again after an error.
    consumers: Mutex<Vec<PullConsumer>>,
}

impl NatsQueue {
    pub(crate) fn new(session: Arc<NatsSession>, queue: FleetQueueConfig) -> Self {
        Self { session, queue: Arc::new(queue), consumers: Mutex::default() }
    }

    async fn claim_jobs(
        &self,
        max: usize,
        stop: &CancellationToken,
    ) -> Result<Vec<Box<dyn ClaimedWork>>, SourceUnavailable> {
        // A daemon without a heartbeat counts as dead, and its claims as lost.
        while self.session.wait_for_heartbeat(stop).await {
            let claims = self.session.claims().await?;
            let messages = self.fetch(max, stop).await?;
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
        messages: Vec<jetstream::Message>,
    ) -> Vec<Box<dyn ClaimedWork>> {
        let tasks: Vec<_> = messages
            .into_iter()
            .map(|message| {
                let (claims, queue) = (Arc::clone(claims), Arc::clone(&self.queue));
                task::spawn_tracked("claim of a fleet job", async move {
                    let claim = claims.claim(&queue, message).await?;
                    Some(NatsClaim::new(claims, claim))
                })
            })
            .collect();

        let mut claimed: Vec<Box<dyn ClaimedWork>> = Vec::new();
        for task in tasks {
            match task.await {
                Ok(Some(claim)) => claimed.push(Box::new(claim)),
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "the claim of a fleet job has panicked"),
            }
        }
        claimed
    }

    /// Fetches at most `max` messages. Waits for the first one, or until `stop` is cancelled.
    async fn fetch(
        &self,
        max: usize,
        stop: &CancellationToken,
    ) -> Result<Vec<jetstream::Message>, SourceUnavailable> {
        let consumers = self.open_consumers().await?;
        let fetched = async {
            let messages = fetch_present(&consumers, max).await?;
            if messages.is_empty() {
                self.await_message(&consumers, stop).await
            } else {
                Ok(messages)
            }
        };
        let mut messages = match fetched.await {
            Ok(messages) => messages,
            Err(error) => {
                self.set_consumers(Vec::new());
                return Err(error);
            }
        };

        for surplus in messages.drain(max.min(messages.len())..) {
            if let Err(error) = surplus.ack_with(AckKind::Nak(None)).await {
                tracing::debug!(%error, "cannot hand a message of the fleet back");
            }
        }
        // The subject that was first goes to the end, so that no other waits forever.
        let mut rotated = consumers;
        rotated.rotate_left(1);
        self.set_consumers(rotated);
        Ok(messages)
    }

    /// Waits for a message of any subject. Returns none after a while, and when the connection
    /// breaks: the server has forgotten the requests then.
    async fn await_message(
        &self,
        consumers: &[PullConsumer],
        stop: &CancellationToken,
    ) -> Result<Vec<jetstream::Message>, SourceUnavailable> {
        let mut connection = self.session.connection().subscribe();
        connection.mark_unchanged();
        let mut waiting = StreamMap::new();
        for (index, consumer) in consumers.iter().enumerate() {
            let batch = consumer.batch().max_messages(1).expires(FETCH_WAIT).messages().await;
            waiting.insert(index, batch.map_err(SourceUnavailable::new)?);
        }

        let first = tokio::select! {
            biased;
            first = waiting.next() => first,
            () = stop.cancelled() => None,
            _changed = connection.changed() => None,
        };
        let mut messages = Vec::new();
        collect(first, &mut messages)?;
        // Dropping the other requests cancels them. Messages that have arrived must not be dropped.
        while let Ok(Some(arrived)) = timeout(Duration::ZERO, waiting.next()).await {
            collect(Some(arrived), &mut messages)?;
        }
        Ok(messages)
    }

    async fn open_consumers(&self) -> Result<Vec<PullConsumer>, SourceUnavailable> {
        let consumers = take(&mut *self.lock_consumers());
        if !consumers.is_empty() {
            return Ok(consumers);
        }
        self.session.open_consumers(&self.queue).await
    }

    fn set_consumers(&self, consumers: Vec<PullConsumer>) {
        *self.lock_consumers() = consumers;
    }

    fn lock_consumers(&self) -> std::sync::MutexGuard<'_, Vec<PullConsumer>> {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkSource for NatsQueue {
    fn claim<'a>(
        &'a self,
        max: usize,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Vec<Box<dyn ClaimedWork>>, SourceUnavailable>> {
        Box::pin(self.claim_jobs(max, stop))
    }
}

/// Fetches at most `max` of the messages that there are, from one subject after the other.
async fn fetch_present(
    consumers: &[PullConsumer],
    max: usize,
) -> Result<Vec<jetstream::Message>, SourceUnavailable> {
    let mut messages = Vec::new();
    for consumer in consumers {
        let missing = max - messages.len();
        // Without `expires`, which would make the server wait for the rest of the messages.
        let batch = consumer.fetch().max_messages(missing).messages().await;
        let mut batch: Batch = batch.map_err(SourceUnavailable::new)?;
        loop {
            let error = match timeout(FETCH_TIMEOUT, batch.next()).await {
                Ok(Some(Ok(message))) => {
                    messages.push(message);
                    continue;
                }
                Ok(None) => break,
                Ok(Some(Err(error))) => SourceUnavailable::new(error),
                Err(elapsed) => SourceUnavailable::new(elapsed),
            };
            if messages.is_empty() {
                return Err(error);
            }
            // What was fetched before is claimed. The next fetch reports the error.
            return Ok(messages);
        }
        if messages.len() >= max {
            break;
        }
    }
    Ok(messages)
}

/// Adds a message. An error after the first message is left to the next request.
fn collect(
    item: Option<(usize, Result<jetstream::Message, async_nats::Error>)>,
    messages: &mut Vec<jetstream::Message>,
) -> Result<(), SourceUnavailable> {
    match item {
        Some((_, Ok(message))) => messages.push(message),
        Some((_, Err(error))) if messages.is_empty() => return Err(SourceUnavailable::new(error)),
        Some((_, Err(_))) | None => {}
    }
    Ok(())
}
