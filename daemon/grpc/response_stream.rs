//! Response streams for clients that may read slowly, or not at all.
//!
//! A stream always has a reserved permit of its channel for the error that ends it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::mpsc::{self, OwnedPermit, Sender},
    time::timeout,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;

use super::status;
use crate::daemon::{
    error::{Error, Reason},
    tool::WorkspaceContext,
};

/// How long a client may read nothing before its stream ends.
pub(super) const CLIENT_READ_TIMEOUT: Duration = Duration::from_secs(60);
/// What the client of a watch stream can do after it read too slowly.
pub(super) const RESUME_HINT: &str = "watch again when the client can keep up";

/// Default of `keep_alive_sec` in the contract.
const DEFAULT_KEEP_ALIVE_SEC: u32 = 30;

/// A message, or the error that ends the stream.
pub(super) type StreamItem<T> = Result<T, Status>;

/// The receiving end of a stream. [`super::handle_stream`] makes a [`WorkspaceStream`] of it.
pub(super) type ResponseStream<T> = ReceiverStream<StreamItem<T>>;

/// The stream of one RPC. Ends with an error when the workspace of the call is deleted: what
/// follows may be of another workspace with its name.
#[derive(Debug)]
pub(crate) struct WorkspaceStream<T> {
    /// `None` after the deletion.
    responses: Option<ResponseStream<T>>,
    /// Present for a call of a workspace that can be deleted.
    deletion: Option<WorkspaceDeletion>,
    call_id: String,
}

/// The deletion of the workspace of a stream.
#[derive(Debug)]
struct WorkspaceDeletion {
    workspace: Arc<WorkspaceContext>,
    deleted: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<T> WorkspaceStream<T> {
    /// Sends `responses` until the workspace that the call has found is deleted.
    pub(super) fn new(
        responses: ResponseStream<T>,
        workspace: Option<&Arc<WorkspaceContext>>,
        call_id: String,
    ) -> Self {
        let deletion = workspace.and_then(|workspace| {
            let deleted = Box::pin(workspace.deletion.clone()?.cancelled_owned());
            Some(WorkspaceDeletion { workspace: Arc::clone(workspace), deleted })
        });
        Self { responses: Some(responses), deletion, call_id }
    }
}

impl<T> Stream for WorkspaceStream<T> {
    type Item = StreamItem<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        // Before each message: none is sent after the deletion.
        if let Some(deletion) = &mut this.deletion
            && deletion.deleted.as_mut().poll(context).is_ready()
        {
            let error = deletion.workspace.deleted_error();
            this.deletion = None;
            if this.responses.take().is_some() {
                return Poll::Ready(Some(Err(status::to_logged_status(&error, &this.call_id))));
            }
        }
        match &mut this.responses {
            Some(responses) => Pin::new(responses).poll_next(context),
            None => Poll::Ready(None),
        }
    }
}

/// A reserved permit of a stream's channel, for the error that ends the stream early.
///
/// Without it, a client that reads nothing for a while would later see a regular end of the stream.
#[derive(Debug)]
pub(super) struct StreamTerminator<T> {
    reserved: Option<OwnedPermit<StreamItem<T>>>,
    call_id: String,
}

impl<T> StreamTerminator<T> {
    /// Ends the stream with an error. The caller must drop the sender afterwards.
    pub(super) fn fail(self, error: &Error) {
        let status = status::to_logged_status(error, &self.call_id);
        if let Some(permit) = self.reserved {
            permit.send(Err(status));
        }
    }
}

/// Returns the time without a message after which a stream sends `keep_alive`.
pub(super) fn keep_alive_interval(keep_alive_sec: Option<u32>) -> Duration {
    Duration::from_secs(keep_alive_sec.unwrap_or(DEFAULT_KEEP_ALIVE_SEC).into())
}

/// Creates the stream that responds to a call. Buffers at most `buffer` messages for a slow client.
pub(super) fn response_channel<T>(
    buffer: usize,
    call_id: &str,
) -> (Sender<StreamItem<T>>, StreamTerminator<T>, ResponseStream<T>) {
    let (sender, receiver) = mpsc::channel(buffer + 1);
    let terminator = StreamTerminator {
        // A new channel has a free permit, so this succeeds.
        reserved: sender.clone().try_reserve_owned().ok(),
        call_id: call_id.to_owned(),
    };
    (sender, terminator, ReceiverStream::new(receiver))
}

/// Sends a message, or fails if the client reads nothing within `read_timeout`.
///
/// # Errors
///
/// Returns the error to end the stream with, including `resume_hint`; `None` if the client has
/// gone.
pub(super) async fn send_or_timeout<T>(
    sender: &Sender<StreamItem<T>>,
    message: T,
    read_timeout: Duration,
    resume_hint: &str,
) -> Result<(), Option<Error>> {
    match timeout(read_timeout, sender.send(Ok(message))).await {
        Ok(sent) => sent.map_err(|_| None),
        Err(_) => {
            let seconds = read_timeout.as_secs();
            let text = format!("nothing was read for {seconds} seconds: {resume_hint}");
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
    async fn idle_client_gets_buffered_messages_and_then_the_error() {
        let (sender, terminator, mut responses) = response_channel(1, "id");
        let read_timeout = Duration::from_millis(20);
        send_or_timeout(&sender, 1, read_timeout, RESUME_HINT).await.unwrap();
        let error = send_or_timeout(&sender, 2, read_timeout, RESUME_HINT).await.unwrap_err();
        let error = error.expect("the client still listens");
        assert_eq!(error.reason, Reason::Timeout);

        terminator.fail(&error);
        drop(sender);
        assert_eq!(responses.next().await.unwrap().unwrap(), 1);
        let status = responses.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(responses.next().await.is_none());

        let (sender, _terminator, responses) = response_channel(1, "id");
        drop(responses);
        assert!(matches!(send_or_timeout(&sender, 1, read_timeout, RESUME_HINT).await, Err(None)));
    }
}
