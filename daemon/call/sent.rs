//! Calls with a request id whose work takes what their callers send, so that it cannot go on without one
//! of them:
//!
//! ```text
//! ours ──▶ work ──▶ answered, for all who have the id
//!  ▲         ├────▶ broken off: the id is free again, and who comes next goes on
//!  │         └────▶ handed over, while it goes on, to who comes with the same id
//!  └──────────────────┘
//! ```
//!
//! Whose work was taken over waits for the answer with all others: the calls are one.

use std::{future::Future, sync::Arc};

use prost::Message;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    Pipeline,
    idempotency::{
        Claimed, Lost, Ticket,
        answer::{decode, encode, is_final},
    },
    repeatable::Repeatable,
};
use crate::daemon::{
    error::{Error, Reason},
    task,
    tool::lost,
};

impl Pipeline {
    /// Does `work`, which ends when its token is cancelled, or gets the answer of the call that did it
    /// before. Where it `is_resumable`, one that goes on is gone on with, and so is one that the daemon
    /// died under.
    pub(crate) async fn once_sent<R, W, F>(
        self: &Arc<Self>,
        call: Option<Repeatable>,
        method: &str,
        is_resumable: bool,
        work: W,
    ) -> Result<R, Error>
    where
        R: Message + Default + 'static,
        W: FnOnce(CancellationToken) -> F,
        F: Future<Output = Result<R, Error>> + Send + 'static,
    {
        let stop = self.drain.end_token().child_token();
        // Dropped with the caller: nobody sends any more then.
        let _abandoned = stop.clone().drop_guard();
        let Some(call) = call else {
            return work(stop).await;
        };
        let ticket = loop {
            let lost_one = match is_resumable {
                true => Lost::IsResumed,
                false => Lost::IsTold,
            };
            let caller = match self.claim_now(&call, lost_one).await? {
                Ok(Claimed::Ours(ticket)) => break ticket,
                Ok(Claimed::Answered { answer, .. }) => return decode(&answer),
                Ok(Claimed::Lost(_)) => return Err(lost(method)),
                Err(caller) => caller,
            };
            let inherited = is_resumable.then(|| caller.ask_to_inherit());
            let answer = tokio::select! {
                biased;
                Some(ticket) = inherit(inherited) => break ticket,
                answer = caller.wait() => answer,
            };
            match answer.map(|answer| decode(&answer)) {
                // It is this caller's turn.
                None => {}
                Some(Err(error)) if is_broken_off(&error) => {}
                Some(answer) => return answer,
            }
        };
        let caller = ticket.caller();
        let work = work(stop.clone());
        task::spawn_tracked("request", async move {
            let mut work = std::pin::pin!(work);
            let heir = tokio::select! {
                result = &mut work => return answer(ticket, &result).await,
                heir = ticket.heir() => heir,
            };
            stop.cancel();
            let result = work.await;
            hand_over(ticket, heir, &result).await;
        });
        match caller.wait().await {
            Some(answer) => decode(&answer),
            None => {
                let text = format!(
                    "{method} with this request id was broken off: repeat it with the same id"
                );
                Err(Error::new(Reason::Timeout, text))
            }
        }
    }
}

/// The ticket of who did the work so far, if there was one to ask.
async fn inherit(ticket: Option<oneshot::Receiver<Ticket>>) -> Option<Ticket> {
    ticket?.await.ok()
}

/// Gives the ticket of work that was ended for that to its heir, unless it was done by then, or the
/// heir is gone.
async fn hand_over<R: Message>(
    ticket: Ticket,
    heir: oneshot::Sender<Ticket>,
    result: &Result<R, Error>,
) {
    let is_done = result
        .as_ref()
        .err()
        .is_none_or(|error| !is_broken_off(error));
    if is_done {
        return answer(ticket, result).await;
    }
    if let Err(ticket) = heir.send(ticket) {
        answer(ticket, result).await;
    }
}

/// Answers all who wait, and, unless the work was broken off, whoever comes later.
async fn answer<R: Message>(ticket: Ticket, result: &Result<R, Error>) {
    let is_kept = match result {
        Err(error) => !is_broken_off(error) && is_final(result),
        Ok(_) => true,
    };
    ticket.answer(encode(result), is_kept).await;
}

/// Whether there is more to come, or the same again: the id is for that, too.
fn is_broken_off(error: &Error) -> bool {
    matches!(
        error.reason,
        Reason::Timeout | Reason::InvalidParams | Reason::Draining | Reason::ChecksumMismatch
    )
}
