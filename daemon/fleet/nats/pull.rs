//! Requests for the messages of consumers (`$JS.API.CONSUMER.MSG.NEXT`).
//!
//! Dropping those of the client library loses the messages that the server is sending: it would deliver
//! them again after the wait for an acknowledgement only. Here, they are handed back.

use std::time::Duration;

use async_nats::{Client, StatusCode, Subject, Subscriber, jetstream};
use serde::Serialize;
use tokio_stream::StreamExt as _;

use super::acknowledgement::hand_back;
use crate::daemon::{fleet::work_source::SourceUnavailable, task};

/// Requests with one subject for their replies.
#[derive(Debug)]
pub(super) struct Pull {
    client: Client,
    /// Of the messages. Their acknowledgements do not depend on the connection that brings them.
    context: jetstream::Context,
    inbox: Subject,
    arriving: Subscriber,
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
    /// Messages arrive at `client`, and are acknowledged with `context`.
    pub(super) async fn open(
        client: &Client,
        context: &jetstream::Context,
    ) -> Result<Self, SourceUnavailable> {
        let inbox = Subject::from(client.new_inbox());
        let arriving = client.subscribe(inbox.clone()).await.map_err(SourceUnavailable::new)?;
        Ok(Self { client: client.clone(), context: context.clone(), inbox, arriving })
    }

    /// Requests messages of a consumer: those that there are, or with `wait` also those that come.
    pub(super) async fn request(
        &self,
        stream: &str,
        consumer: &str,
        batch: usize,
        wait: Option<Duration>,
    ) -> Result<(), SourceUnavailable> {
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        let expires = wait.map(|wait| wait.as_nanos());
        let request = NextMessages { batch, no_wait: wait.is_none(), expires };
        let request = serde_json::to_vec(&request).map_err(SourceUnavailable::new)?;
        let inbox = self.inbox.clone();
        let sent = self.client.publish_with_reply(subject, inbox, request.into()).await;
        sent.map_err(SourceUnavailable::new)
    }

    /// Cancels the requests that wait, and hands back what the server has sent meanwhile.
    pub(super) fn cancel(mut self) {
        task::spawn("messages of cancelled requests", async move {
            if self.arriving.drain().await.is_err() {
                return;
            }
            while let Some(message) = self.arriving.next().await {
                if message.subject != self.inbox {
                    let context = self.context.clone();
                    hand_back(&jetstream::Message { message, context }, Duration::ZERO).await;
                }
            }
        });
    }

    /// Waits for what arrives next.
    pub(super) async fn next(&mut self) -> Arrival {
        loop {
            let Some(message) = self.arriving.next().await else {
                return Arrival::Failed(SourceUnavailable::new("the connection has ended"));
            };
            if message.subject != self.inbox {
                let context = self.context.clone();
                return Arrival::Message(Box::new(jetstream::Message { message, context }));
            }
            match message.status {
                Some(StatusCode::IDLE_HEARTBEAT) => {}
                Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => return Arrival::Done,
                status => {
                    let status = status.map(|status| status.to_string()).unwrap_or_default();
                    let text = message.description.unwrap_or_default();
                    return Arrival::Failed(SourceUnavailable(format!("{status} {text}")));
                }
            }
        }
    }
}
