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
        Checkpoint, Claim, ClaimOutcome, CrashProgress, OnCrash,
        reply::{decode, encode, is_final},
    },
    once::{IdempotentCall, abandoned_error, complete_unstarted},
    policy_input::Authorization,
};
use crate::daemon::{
    error::{Error, Reason},
    task,
    tool::daemon_lost_error,
};

/// What work is given that takes what its caller sends.
#[derive(Debug)]
pub(crate) struct StreamingContext {
    /// Cancelled when it is to end: the caller is gone, or somebody else goes on with it.
    pub(crate) stop: CancellationToken,
    /// What has let it in.
    pub(crate) authorization: Authorization,
    /// Where it is to say that it may be done from here on; without an id, nowhere.
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Whether a daemon died that had said so.
    pub(crate) may_have_completed: bool,
}

impl Pipeline {
    /// Does `work`, once `permit` has let it in, or gets the answer of the call that did it before. Where it
    /// `is_resumable`, one that goes on is gone on with, and so is one that the daemon died under.
    pub(crate) async fn run_once_streaming<R, P, W, F>(
        self: &Arc<Self>,
        call: Option<IdempotentCall>,
        method: &'static str,
        is_resumable: bool,
        permit: P,
        work: W,
    ) -> Result<R, Error>
    where
        R: Message + Default + 'static,
        P: Future<Output = Result<Authorization, Error>> + Send + 'static,
        W: FnOnce(StreamingContext) -> F + Send + 'static,
        F: Future<Output = Result<R, Error>> + Send + 'static,
    {
        let stop = self.shutdown.terminate_token().child_token();
        // Dropped with the caller: nobody sends any more then.
        let _abandoned = stop.clone().drop_guard();
        let Some(call) = call else {
            let sent = StreamingContext {
                stop,
                authorization: permit.await?,
                checkpoint: None,
                may_have_completed: false,
            };
            return work(sent).await;
        };
        let ticket = loop {
            let lost_one = match is_resumable {
                true => OnCrash::Resume,
                false => OnCrash::Report,
            };
            let caller = match self.try_claim_call(&call, lost_one).await? {
                Ok(ClaimOutcome::Acquired(ticket)) => break ticket,
                Ok(ClaimOutcome::Completed { reply: answer, .. }) => return decode(&answer),
                Ok(ClaimOutcome::Lost(_)) => return Err(daemon_lost_error(method)),
                Err(caller) => caller,
            };
            let inherited = caller.request_takeover();
            let answer = tokio::select! {
                biased;
                Ok(ticket) = inherited => break ticket,
                answer = caller.wait() => answer,
            };
            match answer.map(|answer| decode(&answer)) {
                // It is this caller's turn.
                None => {}
                Some(Err(error)) if is_interrupted(&error) => {}
                Some(answer) => return answer,
            }
        };
        let caller = ticket.waiter();
        task::spawn_tracked("request", async move {
            let Some((ticket, permitted)) =
                await_authorization(ticket, method, is_resumable, permit, &stop).await
            else {
                return;
            };
            let sent = StreamingContext {
                stop: stop.clone(),
                authorization: permitted.clone(),
                checkpoint: Some(ticket.checkpoint()),
                may_have_completed: ticket.crash_progress() == Some(CrashProgress::AfterCheckpoint),
            };
            let mut work = std::pin::pin!(work(sent));
            let result = tokio::select! {
                result = &mut work => result,
                () = ticket.takeover_requested(), if is_resumable => {
                    stop.cancel();
                    work.await
                }
            };
            let goes_on = result.as_ref().is_err_and(is_interrupted) && stop.is_cancelled();
            let ticket = match goes_on {
                true => ticket.transfer(permitted),
                false => Some(ticket),
            };
            if let Some(ticket) = ticket {
                complete_streaming(ticket, &result).await;
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
async fn await_authorization(
    mut claim: Claim,
    method: &str,
    is_resumable: bool,
    permit: impl Future<Output = Result<Authorization, Error>>,
    stop: &CancellationToken,
) -> Option<(Claim, Authorization)> {
    let mut authorization = match claim.take_authorization() {
        Some(permitted) => return Some((claim, permitted)),
        None => {
            let authorization = tokio::select! {
                permitted = permit => permitted,
                () = claim.abandoned() => Err(abandoned_error(method)),
            };
            match authorization {
                Ok(permitted) => permitted,
                Err(error) => {
                    complete_unstarted(claim, &error).await;
                    return None;
                }
            }
        }
    };
    loop {
        if is_resumable || stop.is_cancelled() {
            claim = claim.transfer(authorization)?;
            authorization = claim.take_authorization()?;
        }
        if !stop.is_cancelled() {
            return Some((claim, authorization));
        }
        // What was decided is for who comes back.
        tokio::select! {
            () = claim.takeover_requested() => {}
            () = claim.abandoned() => return None,
        }
    }
}

/// Answers all who wait, and, unless the work was broken off, whoever comes later.
async fn complete_streaming<R: Message>(claim: Claim, result: &Result<R, Error>) {
    let is_kept = match result {
        Err(error) => !is_interrupted(error) && is_final(result),
        Ok(_) => true,
    };
    claim.complete(encode(result), is_kept).await;
}

/// Whether there is more to come, or the same again: the id is for that, too.
fn is_interrupted(error: &Error) -> bool {
    matches!(
        error.reason,
        Reason::Timeout | Reason::InvalidParams | Reason::Draining | Reason::ChecksumMismatch
    )
}
