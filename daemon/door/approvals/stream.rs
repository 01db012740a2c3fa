//! The stream of those who watch: what waits, then every change, no faster than the client takes it.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{broadcast::error::RecvError, mpsc::Sender};
use tokio_util::sync::CancellationToken;

use super::{message::approval, scope::Scope};
use crate::{
    api::v1::{
        ApprovalsKeepAlive, ApprovalsListed, WatchApprovalsResponse,
        watch_approvals_response::Event,
    },
    daemon::{
        call::{self, Pipeline, approval::pending::Watch},
        door::outlet::{Answer, Answers, GO_ON, LastWord, SILENCE, outlet, tell},
        error::{Error, Reason},
        task,
    },
};

/// Messages that are on their way to a client that does not take them.
const MESSAGES_AHEAD: usize = 4;

/// A stream that goes on.
pub(super) struct Sending {
    pub(super) watch: Watch,
    /// What it is about.
    pub(super) scope: Scope,
    pub(super) pipeline: Arc<Pipeline>,
    /// How long nothing is said before that is said.
    pub(super) silence: Duration,
    pub(super) deadline: Option<Instant>,
    pub(super) draining: CancellationToken,
    /// Id of the call that it answers.
    pub(super) call_id: String,
}

impl fmt::Debug for Sending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").finish_non_exhaustive()
    }
}

impl Sending {
    /// Begins to send.
    pub(super) fn begin(self) -> Answers<WatchApprovalsResponse> {
        let (sender, last, answers) = outlet(MESSAGES_AHEAD, &self.call_id);
        task::spawn("approval stream", self.send(sender, last));
        answers
    }

    async fn send(
        mut self,
        sender: Sender<Answer<WatchApprovalsResponse>>,
        last: LastWord<WatchApprovalsResponse>,
    ) {
        let (deadline, draining) = (self.deadline, self.draining.clone());
        let error = tokio::select! {
            biased;
            () = sender.closed() => return,
            told = self.tell(&sender) => match told {
                Err(Some(error)) => error,
                Ok(()) | Err(None) => return,
            },
            () = task::until(deadline) => call::timed_out("WatchApprovals"),
            () = draining.cancelled() => {
                let text = "the daemon is shutting down, and nothing waits any more: watch again when it is back";
                Error::new(Reason::Draining, text)
            }
        };
        last.say(&error);
    }

    /// Tells what waits and what changes. Answers why it cannot go on; nothing where nobody listens.
    async fn tell(
        &mut self,
        sender: &Sender<Answer<WatchApprovalsResponse>>,
    ) -> Result<(), Option<Error>> {
        let say = async |event: Event| {
            let message = WatchApprovalsResponse { event: Some(event) };
            tell(sender, message, SILENCE, GO_ON).await
        };
        let mut count = 0;
        for found in std::mem::take(&mut self.watch.pending) {
            if self.scope.has(&found.record) {
                say(Event::Approval(approval(&found, &self.pipeline.catalog))).await?;
                count += 1;
            }
        }
        say(Event::Listed(ApprovalsListed { count })).await?;
        let mut last = Instant::now();
        loop {
            let event = tokio::select! {
                changed = self.watch.changes.recv() => match changed {
                    Ok(found) if self.scope.has(&found.record) => {
                        Event::Approval(approval(&found, &self.pipeline.catalog))
                    }
                    Ok(_) => continue,
                    Err(RecvError::Lagged(_)) => return Err(Some(behind())),
                    Err(RecvError::Closed) => return Ok(()),
                },
                // Since something was said: what others' calls do is none of this client's.
                () = task::until(last.checked_add(self.silence)) => Event::KeepAlive(ApprovalsKeepAlive {
                    pending: self.pending(),
                }),
            };
            say(event).await?;
            last = Instant::now();
        }
    }

    /// How many wait of those that it is about.
    fn pending(&self) -> u32 {
        let waiting = self.pipeline.approvals.waiting();
        let seen = waiting.iter().filter(|found| self.scope.has(&found.record));
        u32::try_from(seen.count()).unwrap_or(u32::MAX)
    }
}

/// How much was missed is not told: it may be of workspaces that the caller may not know of.
fn behind() -> Error {
    let text = "this stream has taken its messages too slowly and missed some: watch again, from what waits then";
    Error::new(Reason::ResourceExhausted, text).retry_after(Duration::ZERO)
}
