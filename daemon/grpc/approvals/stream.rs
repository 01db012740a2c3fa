//! The stream of those who watch: what waits, then every change, no faster than the client takes it.

use std::{
    fmt,
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

/// Messages that are on their way to a client that does not take them.
const STREAM_BUFFER_MESSAGES: usize = 4;

/// A stream that goes on.
pub(super) struct ApprovalStream {
    pub(super) watch: ApprovalWatch,
    /// What it is about.
    pub(super) scope: CallerScope,
    pub(super) pipeline: Arc<Pipeline>,
    /// How long nothing is said before that is said.
    pub(super) keep_alive_interval: Duration,
    pub(super) deadline: Option<Instant>,
    pub(super) draining: CancellationToken,
    /// Id of the call that it answers.
    pub(super) call_id: String,
}

impl fmt::Debug for ApprovalStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").finish_non_exhaustive()
    }
}

impl ApprovalStream {
    /// Begins to send.
    pub(super) fn spawn(self) -> ResponseStream<WatchApprovalsResponse> {
        let (sender, last, answers) = response_channel(STREAM_BUFFER_MESSAGES, &self.call_id);
        task::spawn("approval stream", self.run(sender, last));
        answers
    }

    async fn run(
        mut self,
        sender: Sender<StreamItem<WatchApprovalsResponse>>,
        last: StreamTerminator<WatchApprovalsResponse>,
    ) {
        let (deadline, draining) = (self.deadline, self.draining.clone());
        let error = tokio::select! {
            biased;
            () = sender.closed() => return,
            told = self.send_events(&sender) => match told {
                Err(Some(error)) => error,
                Ok(()) | Err(None) => return,
            },
            () = task::sleep_until(deadline) => pipeline::timeout_error("WatchApprovals"),
            () = draining.cancelled() => {
                let text = "the daemon is shutting down, and nothing waits any more: watch again when it is back";
                Error::new(Reason::Draining, text)
            }
        };
        last.fail(&error);
    }

    /// Tells what waits and what changes. Answers why it cannot go on; nothing where nobody listens.
    async fn send_events(
        &mut self,
        sender: &Sender<StreamItem<WatchApprovalsResponse>>,
    ) -> Result<(), Option<Error>> {
        let say = async |event: Event| {
            let message = WatchApprovalsResponse { event: Some(event) };
            send_or_timeout(sender, message, CLIENT_READ_TIMEOUT, RESUME_HINT).await
        };
        let mut count = 0;
        for found in std::mem::take(&mut self.watch.pending) {
            if self.scope.contains_approval(&found.record) {
                say(Event::Approval(wire_approval(&found, &self.pipeline.catalog))).await?;
                count += 1;
            }
        }
        say(Event::Listed(ApprovalsListed { count })).await?;
        let mut last = Instant::now();
        loop {
            let event = tokio::select! {
                changed = self.watch.changes.recv() => match changed {
                    Ok(found) if self.scope.contains_approval(&found.record) => {
                        Event::Approval(wire_approval(&found, &self.pipeline.catalog))
                    }
                    Ok(_) => continue,
                    Err(RecvError::Lagged(_)) => return Err(Some(lagged_error())),
                    Err(RecvError::Closed) => return Ok(()),
                },
                // Since something was said: what others' calls do is none of this client's.
                () = task::sleep_until(last.checked_add(self.keep_alive_interval)) => Event::KeepAlive(ApprovalsKeepAlive {
                    pending: self.pending_count(),
                }),
            };
            say(event).await?;
            last = Instant::now();
        }
    }

    /// How many wait of those that it is about.
    fn pending_count(&self) -> u32 {
        let waiting = self.pipeline.approvals.list_pending();
        let seen = waiting.iter().filter(|found| self.scope.contains_approval(&found.record));
        u32::try_from(seen.count()).unwrap_or(u32::MAX)
    }
}

/// How much was missed is not told: it may be of workspaces that the caller may not know of.
fn lagged_error() -> Error {
    let text = "this stream has taken its messages too slowly and missed some: watch again, from what waits then";
    Error::new(Reason::ResourceExhausted, text).retry_after(Duration::ZERO)
}
