//! Streams of answers to clients who may leave them lying: there is always room to tell why one ends.

use std::time::Duration;

use tokio::{
    sync::mpsc::{self, OwnedPermit, Sender},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::status;
use crate::daemon::error::{Error, Reason};

/// How long a client may read nothing, as of a download.
pub(super) const CLIENT_READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How one goes on who has watched what comes in an order.
pub(super) const RESUME_HINT: &str = "watch again when you can, from where you have got to";

/// A message, or why no more come.
pub(super) type StreamItem<T> = Result<T, Status>;

/// What a client reads.
pub(super) type ResponseStream<T> = ReceiverStream<StreamItem<T>>;

/// Room for the error that ends a stream early: a client that reads nothing now must not take the end
/// of the stream for the end of what it tells about when it does.
#[derive(Debug)]
pub(super) struct StreamTerminator<T> {
    reserved: Option<OwnedPermit<StreamItem<T>>>,
    /// Of the call that the stream answers.
    call_id: String,
}

impl<T> StreamTerminator<T> {
    /// Ends the stream with an error. The sender must be dropped after it.
    pub(super) fn fail(self, error: &Error) {
        let status = status::to_logged_status(error, &self.call_id);
        if let Some(room) = self.reserved {
            room.send(Err(status));
        }
    }
}

/// The two ends of a stream that answers the call of this id. At most `ahead` messages are on their way
/// to a client that does not take them.
pub(super) fn response_channel<T>(
    ahead: usize,
    call_id: &str,
) -> (Sender<StreamItem<T>>, StreamTerminator<T>, ResponseStream<T>) {
    let (sender, receiver) = mpsc::channel(ahead + 1);
    let last = StreamTerminator {
        // The first place of a channel that has several is free.
        reserved: sender.clone().try_reserve_owned().ok(),
        call_id: call_id.to_owned(),
    };
    (sender, last, ReceiverStream::new(receiver))
}

/// Sends a message, unless the client takes none for so long. Where it fails, answers what is to be said last,
/// with `how` to go on; nothing where nobody listens.
pub(super) async fn send_or_timeout<T>(
    sender: &Sender<StreamItem<T>>,
    message: T,
    silence: Duration,
    how: &str,
) -> Result<(), Option<Error>> {
    match timeout(silence, sender.send(Ok(message))).await {
        Ok(sent) => sent.map_err(|_| None),
        Err(_) => {
            let text = format!("nothing was read for {} seconds: {how}", silence.as_secs());
            Err(Some(Error::new(Reason::Timeout, text)))
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn who_reads_nothing_is_told_so_behind_what_is_on_its_way() {
        let (sender, last, mut answers) = response_channel(1, "id");
        let silence = Duration::from_millis(20);
        send_or_timeout(&sender, 1, silence, RESUME_HINT).await.unwrap();
        let error = send_or_timeout(&sender, 2, silence, RESUME_HINT).await.unwrap_err();
        let error = error.expect("somebody listens");
        assert_eq!(error.reason, Reason::Timeout);
        last.fail(&error);
        drop(sender);
        assert_eq!(answers.next().await.unwrap().unwrap(), 1);
        let status = answers.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(answers.next().await.is_none());
        let (sender, _last, answers) = response_channel(1, "id");
        drop(answers);
        assert!(matches!(send_or_timeout(&sender, 1, silence, RESUME_HINT).await, Err(None)));
    }
}
