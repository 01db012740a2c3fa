//! Acknowledgements of messages.

use std::time::Duration;

use async_nats::jetstream::{self, AckKind};

/// Attempts to have an acknowledgement confirmed. The message of an ended job is harmless: when it is
/// delivered again, its record says that the job has ended.
const MAX_ATTEMPTS: usize = 2;

/// Acknowledges a message, and waits for the confirmation of the server.
pub(super) async fn acknowledge(message: &jetstream::Message, kind: AckKind) {
    let Some(subject) = message.reply.clone() else {
        return;
    };
    for _ in 0..MAX_ATTEMPTS {
        let client = message.context.client();
        match client.request(subject.clone(), kind.into()).await {
            Ok(_confirmation) => return,
            Err(error) => {
                tracing::debug!(%error, "the server has not confirmed an acknowledgement");
            }
        }
    }
}

/// Asks the server to deliver a message again after `delay`. Without an effect, it does so later.
pub(super) async fn hand_back(message: &jetstream::Message, delay: Duration) {
    if let Err(error) = message.ack_with(AckKind::Nak(Some(delay))).await {
        tracing::debug!(%error, "cannot hand a message of the fleet back");
    }
}
