//! Calls that carry a request id: whoever comes first does the work, in a task of its own, and all who
//! come with that id get its answer.

use std::{sync::Arc, time::Instant};

use prost::Message;

use super::{
    Checked, Pipeline,
    context::Incoming,
    idempotency::{
        Caller, Claimed, Lost, Ticket,
        answer::{decode, encode, encode_error, is_final, was_denied},
    },
    repeats::{Claim, FREE_AGAIN, claim_for},
    until_its_time_is_up,
};
use crate::daemon::{
    error::{Error, Reason},
    store::requests::{Asked, Key},
    task,
    tool::{Tool, lost},
};

/// A call with a request id.
#[derive(Debug)]
pub(crate) struct Repeatable {
    key: Key,
    asked: Asked,
    /// When its caller stops waiting.
    deadline: Option<Instant>,
}

impl Pipeline {
    /// What makes a call one that can be repeated: nothing, where it has no id.
    pub(crate) fn repeatable(
        &self,
        incoming: &Incoming,
        method: &str,
        request: &impl Message,
    ) -> Result<Option<Repeatable>, Error> {
        let Some(id) = incoming.request_id.clone() else {
            return Ok(None);
        };
        let workspace = self.scene(incoming)?.workspace.name().to_owned();
        Ok(Some(Repeatable {
            key: Key {
                principal: incoming.principal.name().to_owned(),
                workspace,
                id,
                holder: self.requests.holder(&incoming.principal),
            },
            deadline: incoming.deadline,
            asked: Asked {
                method: method.to_owned(),
                session: incoming.session.as_str().to_owned(),
                fingerprint: self.requests.fingerprint(&request.encode_to_vec()),
            },
        }))
    }

    /// Drops what is kept for request ids of keys that are revoked. Without a key file, nothing is.
    pub(crate) async fn drop_revoked_answers(&self) {
        let Some(holders) = self.access.key_holders() else {
            return;
        };
        if let Err(error) = self.requests.keep_holders(holders).await {
            // No caller gets them all the same: a claim names its holder.
            tracing::warn!(%error, "answers to request ids of revoked keys could not be dropped");
        }
    }

    /// Claims the id of a call.
    pub(super) async fn claim(&self, call: Repeatable) -> Result<Claimed, Error> {
        self.requests.claim(call.key, call.asked, Lost::IsTold).await
    }

    /// As [`Self::claim`], of a call that says something: see [`Claim`].
    pub(super) async fn claim_for<S>(
        &self,
        call: Repeatable,
        lost: Lost,
        says: S,
    ) -> Result<Claim<S>, Error> {
        let claimed = || self.claim_now(&call, lost);
        claim_for(claimed, says).await
    }

    /// Claims the id of a call, unless its work goes on already: then answers somebody who waits for it.
    pub(super) async fn claim_now(
        &self,
        call: &Repeatable,
        lost: Lost,
    ) -> Result<Result<Claimed, Caller>, Error> {
        let Repeatable { key, asked, deadline } = call;
        self.requests.claim_now(key, asked, lost, *deadline).await
    }

    /// Makes a call of the tool `T`, or gets the answer of the one that was made before.
    pub(super) async fn call_once<T: Tool>(
        self: &Arc<Self>,
        incoming: Incoming,
        checked: Checked<T>,
        call: Repeatable,
    ) -> Result<T::Response, Error>
    where
        T::Response: Message + Default,
    {
        let claim = self.claim_for(call, Lost::IsTold, checked).await?;
        let (ticket, checked) = match claim {
            Claim::Ours(ticket, checked) => (ticket, checked),
            Claim::Answered { answer, .. } => return decode(&answer),
            Claim::Lost(step) => return T::lost(step),
        };
        // Each caller's deadline ends its own wait, and not the work; that of the last one, the wait for a
        // place.
        let incoming = Incoming { deadline: None, ..incoming };
        let caller = ticket.caller();
        let pipeline = Arc::clone(self);
        task::spawn_tracked("request", async move {
            // It may have to be approved first, and who repeats it waits for the same decision.
            let begun = tokio::select! {
                begun = pipeline.begin::<T>(incoming, checked, Some(&ticket)) => begun,
                () = ticket.left_alone() => Err(left_alone(T::NAME)),
            };
            let begun = match begun {
                Ok(begun) => begun,
                Err(error) => return not_begun(ticket, &error).await,
            };
            // Before anything is done: should the daemon die then, it is known where to look.
            if let Err(error) = ticket.mark().begin(begun.work.step.number()).await {
                tracing::warn!(%error, "the step of a request could not be kept");
            }
            let until = begun.until;
            let (task, abandon) = begun.spawn(&pipeline);
            let guard = abandon.clone().drop_guard();
            let mut work = std::pin::pin!(until_its_time_is_up::<T>(task, until, guard));
            let result = tokio::select! {
                result = &mut work => result,
                () = ticket.left_alone() => {
                    abandon.cancel();
                    work.await
                }
            };
            answer(ticket, &result).await;
        });
        match caller.wait().await {
            Some(answer) => decode(&answer),
            None => Err(Error::internal("work with a request id was not answered")),
        }
    }

    /// Does `work`, which is no tool's, or gets the answer of the call that did it before.
    pub(crate) async fn once<R, W>(
        &self,
        call: Option<Repeatable>,
        method: &str,
        work: W,
    ) -> Result<R, Error>
    where
        R: Message + Default + 'static,
        W: Future<Output = Result<R, Error>> + Send + 'static,
    {
        let Some(call) = call else {
            return work.await;
        };
        let ticket = match self.claim(call).await? {
            Claimed::Ours(ticket) => ticket,
            Claimed::Answered { answer, .. } => return decode(&answer),
            Claimed::Lost(_) => return Err(lost(method)),
        };
        answered_by(ticket, work).await
    }

    /// Does `work`, to its end, whatever becomes of the caller, or gets the answer of the call that did it
    /// before. Where a daemon died that was asked the same, the work is told so: it must look what was
    /// done, and do the rest.
    pub(crate) async fn once_whole<R, W, F>(
        &self,
        call: Option<Repeatable>,
        work: W,
    ) -> Result<R, Error>
    where
        R: Message + Default + 'static,
        W: FnOnce(bool) -> F,
        F: Future<Output = Result<R, Error>> + Send + 'static,
    {
        let Some(call) = call else {
            let done = task::spawn_tracked("request", work(false)).await;
            return done.map_err(Error::internal)?;
        };
        let method = call.asked.method.clone();
        let claim = self.claim_for(call, Lost::IsResumed, work).await?;
        let (ticket, work) = match claim {
            Claim::Ours(ticket, work) => (ticket, work),
            Claim::Answered { answer, .. } => return decode(&answer),
            Claim::Lost(_) => return Err(lost(&method)),
        };
        let is_unfinished = ticket.left().is_some();
        answered_by(ticket, work(is_unfinished)).await
    }
}

/// The answer of `work`, which is done for all who have the request id.
async fn answered_by<R, F>(ticket: Ticket, work: F) -> Result<R, Error>
where
    R: Message + Default + 'static,
    F: Future<Output = Result<R, Error>> + Send + 'static,
{
    let caller = ticket.caller();
    task::spawn_tracked("request", async move {
        let result = work.await;
        answer(ticket, &result).await;
    });
    match caller.wait().await {
        Some(answer) => decode(&answer),
        None => Err(Error::internal("work with a request id was not answered")),
    }
}

/// What is told to who comes just then: all who waited had left.
pub(super) fn left_alone(tool: &str) -> Error {
    let text = format!(
        "nobody waited any more for this call of {tool}, and it was not begun: repeat it with the same id"
    );
    Error::new(Reason::ResourceExhausted, text).retry_after(FREE_AGAIN)
}

/// Answers all who wait for a call that was not begun. It may be tried again under its id, unless somebody
/// has denied it.
pub(super) async fn not_begun(ticket: Ticket, error: &Error) {
    log_defect(error);
    ticket.answer(encode_error(error), was_denied(error)).await;
}

/// Answers all who wait, and whoever comes later.
pub(super) async fn answer<R: Message>(ticket: Ticket, result: &Result<R, Error>) {
    if let Err(error) = result {
        log_defect(error);
    }
    ticket.answer(encode(result), is_final(result)).await;
}

fn log_defect(error: &Error) {
    if error.reason == Reason::Internal {
        // What it was caused by does not go along.
        let cause = error.cause.as_ref().map(ToString::to_string);
        tracing::error!(cause, %error, "work with a request id failed by a defect");
    }
}
