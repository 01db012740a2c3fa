//! Calls with a request id whose work takes what their callers send, so that it cannot go on without one
//! of them:
//!
//! ```text
//! ours ──▶ let in ──▶ work ──▶ answered, for all who have the id
//!  ▲         │          ├────▶ broken off: the id is free again, and who comes next goes on
//!  │         │          └────▶ handed over, while it goes on or as its caller is gone, to who comes with
//!  │         ▼                 the same id
//!  └─────────┴──────────────────┘
//! ```
//!
//! Whose work was taken over waits for the answer with all others: the calls are one, and are let in once.

use std::{future::Future, sync::Arc};

use prost::Message;
use tokio_util::sync::CancellationToken;

use super::{
    Pipeline,
    idempotency::{
        Claimed, Left, Lost, Mark, Ticket,
        answer::{decode, encode, is_final},
    },
    repeatable::{Repeatable, left_alone, not_begun},
    subject::Permitted,
};
use crate::daemon::{
    error::{Error, Reason},
    task,
    tool::lost,
};

/// What work is given that takes what its caller sends.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Cancelled when it is to end: the caller is gone, or somebody else goes on with it.
    pub(crate) stop: CancellationToken,
    /// What has let it in.
    pub(crate) permitted: Permitted,
    /// Where it is to say that it may be done from here on; without an id, nowhere.
    pub(crate) mark: Option<Mark>,
    /// Whether a daemon died that had said so.
    pub(crate) may_be_done: bool,
}

impl Pipeline {
    /// Does `work`, once `permit` has let it in, or gets the answer of the call that did it before. Where it
    /// `is_resumable`, one that goes on is gone on with, and so is one that the daemon died under.
    pub(crate) async fn once_sent<R, P, W, F>(
        self: &Arc<Self>,
        call: Option<Repeatable>,
        method: &'static str,
        is_resumable: bool,
        permit: P,
        work: W,
    ) -> Result<R, Error>
    where
        R: Message + Default + 'static,
        P: Future<Output = Result<Permitted, Error>> + Send + 'static,
        W: FnOnce(Sent) -> F + Send + 'static,
        F: Future<Output = Result<R, Error>> + Send + 'static,
    {
        let stop = self.drain.end_token().child_token();
        // Dropped with the caller: nobody sends any more then.
        let _abandoned = stop.clone().drop_guard();
        let Some(call) = call else {
            let sent = Sent { stop, permitted: permit.await?, mark: None, may_be_done: false };
            return work(sent).await;
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
            let inherited = caller.ask_to_inherit();
            let answer = tokio::select! {
                biased;
                Ok(ticket) = inherited => break ticket,
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
        task::spawn_tracked("request", async move {
            let Some((ticket, permitted)) =
                let_in(ticket, method, is_resumable, permit, &stop).await
            else {
                return;
            };
            let sent = Sent {
                stop: stop.clone(),
                permitted: permitted.clone(),
                mark: Some(ticket.mark()),
                may_be_done: ticket.left() == Some(Left::Begun),
            };
            let mut work = std::pin::pin!(work(sent));
            let result = tokio::select! {
                result = &mut work => result,
                () = ticket.has_heir(), if is_resumable => {
                    stop.cancel();
                    work.await
                }
            };
            let goes_on = result.as_ref().is_err_and(is_broken_off) && stop.is_cancelled();
            let ticket = match goes_on {
                true => ticket.hand_over(permitted),
                false => Some(ticket),
            };
            if let Some(ticket) = ticket {
                answer(ticket, &result).await;
            }
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

/// Waits until a call is let in, for all who have its id: who was asked for that has decided about each of
/// them. None where somebody else goes on, or it was answered.
async fn let_in(
    mut ticket: Ticket,
    method: &str,
    is_resumable: bool,
    permit: impl Future<Output = Result<Permitted, Error>>,
    stop: &CancellationToken,
) -> Option<(Ticket, Permitted)> {
    let mut permitted = match ticket.take_permitted() {
        Some(permitted) => return Some((ticket, permitted)),
        None => {
            let permitted = tokio::select! {
                permitted = permit => permitted,
                () = ticket.left_alone() => Err(left_alone(method)),
            };
            match permitted {
                Ok(permitted) => permitted,
                Err(error) => {
                    not_begun(ticket, &error).await;
                    return None;
                }
            }
        }
    };
    loop {
        if is_resumable || stop.is_cancelled() {
            ticket = ticket.hand_over(permitted)?;
            permitted = ticket.take_permitted()?;
        }
        if !stop.is_cancelled() {
            return Some((ticket, permitted));
        }
        // What was decided is for who comes back.
        tokio::select! {
            () = ticket.has_heir() => {}
            () = ticket.left_alone() => return None,
        }
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
