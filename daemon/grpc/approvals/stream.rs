//! A stream that watches approvals: the pending ones, then every change, at the speed of its
//! client.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{broadcast::error::RecvError, mpsc::Sender};
use tokio_util::sync::CancellationToken;

use super::{scope::CallerScope, wire::wire_approval};
use crate::{
    api::v1::{
        ApprovalsKeepAlive, ApprovalsListed, WatchApprovalsResponse,
        watch_approvals_response::Event,
    },
    daemon::{
        error::{Error, Reason},
        grpc::response_stream::{
            CLIENT_READ_TIMEOUT, RESUME_HINT, ResponseStream, StreamItem, StreamTerminator,
            response_channel, send_or_timeout,
        },
        pipeline::{self, Pipeline, approval::pending::ApprovalWatch},
        task,
    },
};

/// Messages buffered for a slow client.
const STREAM_BUFFER_MESSAGES: usize = 4;

/// An open stream.
pub(super) struct ApprovalStream {
    pub(super) watch: ApprovalWatch,
    pub(super) scope: CallerScope,
    pub(super) pipeline: Arc<Pipeline>,
    /// How long the stream may be silent before it sends a keep-alive.
    pub(super) keep_alive_interval: Duration,
    pub(super) deadline: Option<Instant>,
    pub(super) draining: CancellationToken,
    pub(super) call_id: String,
}

impl ApprovalStream {
    /// Starts a task that sends the stream.
    pub(super) fn spawn(self) -> ResponseStream<WatchApprovalsResponse> {
        let (sender, terminator, responses) =
            response_channel(STREAM_BUFFER_MESSAGES, &self.call_id);
        task::spawn("approval stream", self.run(sender, terminator));
        responses
    }

    async fn run(
        mut self,
        sender: Sender<StreamItem<WatchApprovalsResponse>>,
        terminator: StreamTerminator<WatchApprovalsResponse>,
    ) {
        let (deadline, draining) = (self.deadline, self.draining.clone());
        let error = tokio::select! {
            biased;
            () = sender.closed() => return,
            result = self.send_events(&sender) => match result {
                Err(Some(error)) => error,
                Ok(()) | Err(None) => return,
            },
            () = task::sleep_until(deadline) => pipeline::stream_deadline_error("WatchApprovals"),
            () = draining.cancelled() => {
                let text = "the daemon is shutting down, and no approval is pending any more: watch again when it is back";
                Error::new(Reason::Draining, text)
            }
        };
        terminator.fail(&error);
    }

    /// Sends the pending approvals, then all changes.
    ///
    /// # Errors
    ///
    /// Returns the error to end the stream with; `None` if the client has disconnected.
    async fn send_events(
        &mut self,
        sender: &Sender<StreamItem<WatchApprovalsResponse>>,
    ) -> Result<(), Option<Error>> {
        let send = async |event: Event| {
            let message = WatchApprovalsResponse { event: Some(event) };
            send_or_timeout(sender, message, CLIENT_READ_TIMEOUT, RESUME_HINT).await
        };

        let mut count = 0;
        for approval in std::mem::take(&mut self.watch.pending) {
            if self.scope.contains_approval(&approval) {
                send(Event::Approval(wire_approval(&approval, &self.pipeline.catalog))).await?;
                count += 1;
            }
        }
        send(Event::Listed(ApprovalsListed { count })).await?;

        let mut last_sent = Instant::now();
        loop {
            // Counted from the last message sent: changes outside of the scope must not show, not
            // even as a delayed keep-alive.
            let keep_alive_at = last_sent.checked_add(self.keep_alive_interval);
            let event = tokio::select! {
                changed = self.watch.changes.recv() => match changed {
                    Ok(approval) if self.scope.contains_approval(&approval) => {
                        Event::Approval(wire_approval(&approval, &self.pipeline.catalog))
                    }
                    Ok(_) => continue,
                    Err(RecvError::Lagged(_)) => return Err(Some(lagged_error())),
                    Err(RecvError::Closed) => return Ok(()),
                },
                () = task::sleep_until(keep_alive_at) => {
                    Event::KeepAlive(ApprovalsKeepAlive { pending: self.pending_count() })
                }
            };
            send(event).await?;
            last_sent = Instant::now();
        }
    }

    /// Number of pending approvals in the scope.
    fn pending_count(&self) -> u32 {
        let pending = self.pipeline.approvals.list_pending();
        let in_scope = pending.iter().filter(|it| self.scope.contains_approval(it));
        u32::try_from(in_scope.count()).unwrap_or(u32::MAX)
    }
}

/// The error of a slow client. Does not say how many changes it missed: some may be of workspaces
/// that the caller must not know of.
fn lagged_error() -> Error {
    let text = "this stream was read too slowly and missed changes: watch again, from the pending approvals on";
    Error::new(Reason::ResourceExhausted, text).with_retry_after(Duration::ZERO)
}
