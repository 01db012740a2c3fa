//! Streams of answers to clients who may leave them lying: there is always room to tell why one ends.

use tokio::sync::mpsc::{self, OwnedPermit, Sender};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::status;
use crate::daemon::error::Error;

/// A message, or why no more come.
pub(super) type Answer<T> = Result<T, Status>;

/// What a client reads.
pub(super) type Answers<T> = ReceiverStream<Answer<T>>;

/// Room for the error that ends a stream early: a client that reads nothing now must not take the end
/// of the stream for the end of what it tells about when it does.
#[derive(Debug)]
pub(super) struct LastWord<T> {
    room: Option<OwnedPermit<Answer<T>>>,
    /// Of the call that the stream answers.
    call_id: String,
}

impl<T> LastWord<T> {
    /// Ends the stream with an error. The sender must be dropped after it.
    pub(super) fn say(self, error: &Error) {
        let status = status::answer(error, &self.call_id);
        if let Some(room) = self.room {
            room.send(Err(status));
        }
    }
}

/// The two ends of a stream that answers the call of this id. At most `ahead` messages are on their way
/// to a client that does not take them.
pub(super) fn outlet<T>(
    ahead: usize,
    call_id: &str,
) -> (Sender<Answer<T>>, LastWord<T>, Answers<T>) {
    let (sender, receiver) = mpsc::channel(ahead + 1);
    let last = LastWord {
        // The first place of a channel that has several is free.
        room: sender.clone().try_reserve_owned().ok(),
        call_id: call_id.to_owned(),
    };
    (sender, last, ReceiverStream::new(receiver))
}
