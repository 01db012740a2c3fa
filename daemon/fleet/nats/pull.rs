//! Requests for the messages of consumers (`$JS.API.CONSUMER.MSG.NEXT`).
//!
//! When a subscription ends, the messages that the server is sending are lost: it delivers them again
//! after the wait for an acknowledgement only. The server has no way to cancel a request first. So a
//! subscription lasts until the server has answered its requests, and what arrives between two fetches
//! is handed back.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use async_nats::{StatusCode, Subscriber, client::PublishErrorKind, jetstream};
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::{acknowledgement::hand_back, connection::NatsConnection};
use crate::daemon::{fleet::work_source::SourceUnavailable, task};

/// Time that a request for messages waits on the server. It is lost if the server restarts.
pub(super) const FETCH_WAIT: Duration = Duration::from_secs(20);
/// Time limit of a request for the messages that there are.
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which the server has answered a request, or has lost it.
const MAX_REQUEST_AGE: Duration = Duration::from_secs(25);

/// Requests with one subscription for their replies, at most one for each consumer.
#[derive(Debug)]
pub(super) struct Pull {
    connection: NatsConnection,
    /// Of the messages. Their acknowledgements do not depend on the connection that brings them.
    context: jetstream::Context,
    /// Start of the subjects of replies. The consumer follows.
    inbox: String,
    arriving: Subscriber,
    /// The requests without a complete answer, by consumer.
    open: HashMap<String, OpenRequest>,
}

#[derive(Debug)]
struct OpenRequest {
    /// Messages that have not arrived.
    missing: usize,
    sent: Instant,
}

/// A [`Pull`] between two fetches. Messages that arrive are handed back until the server has answered
/// all requests, even when this is dropped.
#[derive(Debug)]
pub(super) struct IdlePull {
    resumed: CancellationToken,
    task: JoinHandle<Pull>,
}

/// What arrives for a request.
#[derive(Debug)]
pub(super) enum Arrival {
    Message(Box<jetstream::Message>),
    /// There are no messages, or not as many as requested.
    Done,
    Failed(SourceUnavailable),
}

#[derive(Serialize)]
struct NextMessages {
    batch: usize,
    no_wait: bool,
    /// Nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u128>,
}

impl Pull {
    /// Messages arrive at `connection`, and are acknowledged with `context`.
    pub(super) async fn open(
        connection: &NatsConnection,
        context: &jetstream::Context,
    ) -> Result<Self, SourceUnavailable> {
        let inbox = format!("{}.", connection.client().new_inbox());
        let arriving = connection.client().subscribe(format!("{inbox}*")).await;
        let arriving = arriving.map_err(|error| {
            // The subject is valid.
            connection.note_end();
            SourceUnavailable::new(error)
        })?;
        let (connection, context) = (connection.clone(), context.clone());
        Ok(Self { connection, context, inbox, arriving, open: HashMap::new() })
    }

    /// Requests messages of a consumer: those that there are, or with `wait` also those that come.
    pub(super) async fn request(
        &mut self,
        stream: &str,
        consumer: &str,
        batch: usize,
        wait: Option<Duration>,
    ) -> Result<(), SourceUnavailable> {
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        let expires = wait.map(|wait| wait.as_nanos());
        let request = NextMessages { batch, no_wait: wait.is_none(), expires };
        let request = serde_json::to_vec(&request).map_err(SourceUnavailable::new)?;
        let reply = format!("{}{consumer}", self.inbox);
        let open = OpenRequest { missing: batch, sent: Instant::now() };
        self.open.insert(consumer.to_owned(), open);

        let client = self.connection.client();
        let sent = client.publish_with_reply(subject, reply, request.into()).await;
        sent.map_err(|error| {
            if error.kind() == PublishErrorKind::Send {
                self.connection.note_end();
            }
            SourceUnavailable::new(error)
        })
    }

    /// Whether a consumer has a request that the server has not answered.
    pub(super) fn has_request(&self, consumer: &str) -> bool {
        self.open.get(consumer).is_some_and(|request| request.sent.elapsed() < MAX_REQUEST_AGE)
    }

    /// Hands back what arrives, until the pull is resumed.
    pub(super) fn idle(mut self) -> IdlePull {
        let resumed = CancellationToken::new();
        let resume = resumed.clone();
        let task = task::spawn("messages between two fetches", async move {
            let last = self.open.values().map(|request| request.sent).max();
            let deadline = last.map(|sent| sent + MAX_REQUEST_AGE);
            while !self.open.is_empty() {
                let arrival = tokio::select! {
                    biased;
                    () = resume.cancelled() => break,
                    arrival = self.next() => arrival,
                    () = task::sleep_until(deadline) => break,
                };
                if let Arrival::Message(message) = arrival {
                    hand_back(&message, Duration::ZERO).await;
                }
            }
            self
        });
        IdlePull { resumed, task }
    }

    /// Waits for what arrives next.
    pub(super) async fn next(&mut self) -> Arrival {
        loop {
            let Some(message) = self.arriving.next().await else {
                self.connection.note_end();
                self.open.clear();
                return Arrival::Failed(SourceUnavailable::new("the connection has ended"));
            };
            let Some(consumer) = message.subject.strip_prefix(&*self.inbox) else {
                let message = jetstream::Message { message, context: self.context.clone() };
                self.note_message(&message);
                return Arrival::Message(Box::new(message));
            };
            if message.status == Some(StatusCode::IDLE_HEARTBEAT) {
                continue;
            }
            self.open.remove(consumer);
            return match message.status {
                Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => Arrival::Done,
                status => {
                    let status = status.map(|status| status.to_string()).unwrap_or_default();
                    let text = message.description.unwrap_or_default();
                    Arrival::Failed(SourceUnavailable(format!("{status} {text}")))
                }
            };
        }
    }

    fn note_message(&mut self, message: &jetstream::Message) {
        let Ok(info) = message.info() else { return };
        if let Some(request) = self.open.get_mut(info.consumer) {
            request.missing -= 1;
            if request.missing == 0 {
                self.open.remove(info.consumer);
            }
        }
    }
}

impl IdlePull {
    /// Returns the pull with the requests that are open. What has arrived since is in it.
    pub(super) async fn resume(self) -> Option<Pull> {
        self.resumed.cancel();
        // A failure: the task has panicked.
        self.task.await.ok()
    }
}
