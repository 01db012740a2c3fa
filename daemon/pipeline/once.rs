//! Calls that carry a request id: whoever comes first does the work, in a task of its own, and all who
//! come with that id get its answer.

use std::{sync::Arc, time::Instant};

use prost::Message;

use super::{
    Pipeline, ValidatedCall, await_with_timeout,
    context::CallContext,
    idempotency::{
        Claim, ClaimOutcome, OnCrash, Waiter,
        reply::{decode, encode, encode_error, is_denied, is_final},
    },
    once_claim::{PayloadClaimOutcome, RELEASED_RETRY_AFTER, claim_with_payload},
};
use crate::daemon::{
    error::{Error, Reason},
    store::requests::{RequestIdentity, RequestKey},
    task,
    tool::{Tool, daemon_lost_error},
};

/// A call with a request id.
#[derive(Debug)]
pub(crate) struct IdempotentCall {
    key: RequestKey,
    request: RequestIdentity,
    /// When its caller stops waiting.
    deadline: Option<Instant>,
}

impl Pipeline {
    /// What makes a call one that can be repeated: nothing, where it has no id.
    pub(crate) fn idempotent_call(
        &self,
        context: &CallContext,
        method: &str,
        request: &impl Message,
    ) -> Result<Option<IdempotentCall>, Error> {
        let Some(id) = context.request_id.clone() else {
            return Ok(None);
        };
        let workspace = self.workspace_context(context)?.workspace.name().to_owned();
        Ok(Some(IdempotentCall {
            key: RequestKey {
                principal: context.principal.name().to_owned(),
                workspace,
                id,
                key_fingerprint: self.idempotency.key_fingerprint(&context.principal),
            },
            deadline: context.deadline,
            request: RequestIdentity {
                method: method.to_owned(),
                session: context.session.as_str().to_owned(),
                fingerprint: self.idempotency.fingerprint(&request.encode_to_vec()),
            },
        }))
    }

    /// Drops what is kept for request ids of keys that are revoked. Without a key file, nothing is.
    pub(crate) async fn drop_revoked_replies(&self) {
        let Some(holders) = self.access.key_holders() else {
            return;
        };
        if let Err(error) = self.idempotency.remove_revoked(holders).await {
            // No caller gets them all the same: a claim names its holder.
            tracing::warn!(%error, "answers to request ids of revoked keys could not be dropped");
        }
    }

    /// Claims the id of a call.
    pub(super) async fn claim_call(&self, call: IdempotentCall) -> Result<ClaimOutcome, Error> {
        self.idempotency.claim(call.key, call.request, OnCrash::Report).await
    }

    /// As [`Self::claim`], of a call that says something: see [`Claim`].
    pub(super) async fn claim_call_with_payload<S>(
        &self,
        call: IdempotentCall,
        on_crash: OnCrash,
        says: S,
    ) -> Result<PayloadClaimOutcome<S>, Error> {
        let claimed = || self.try_claim_call(&call, on_crash);
        claim_with_payload(claimed, says).await
    }

    /// Claims the id of a call, unless its work goes on already: then answers somebody who waits for it.
    pub(super) async fn try_claim_call(
        &self,
        call: &IdempotentCall,
        on_crash: OnCrash,
    ) -> Result<Result<ClaimOutcome, Waiter>, Error> {
        let IdempotentCall { key, request: asked, deadline } = call;
        self.idempotency.try_claim(key, asked, on_crash, *deadline).await
    }

    /// Makes a call of the tool `T`, or gets the answer of the one that was made before.
    pub(super) async fn call_once<T: Tool>(
        self: &Arc<Self>,
        context: CallContext,
        checked: ValidatedCall<T>,
        call: IdempotentCall,
    ) -> Result<T::Response, Error>
    where
        T::Response: Message + Default,
    {
        let claim = self.claim_call_with_payload(call, OnCrash::Report, checked).await?;
        let (ticket, checked) = match claim {
            PayloadClaimOutcome::Acquired(ticket, checked) => (ticket, checked),
            PayloadClaimOutcome::Completed { reply: answer, .. } => return decode(&answer),
            PayloadClaimOutcome::Lost(step) => return T::daemon_lost_response(step),
        };
        // Each caller's deadline ends its own wait, and not the work; that of the last one, the wait for a
        // place.
        let context = CallContext { deadline: None, ..context };
        let caller = ticket.waiter();
        let pipeline = Arc::clone(self);
        task::spawn_tracked("request", async move {
            // It may have to be approved first, and who repeats it waits for the same decision.
            let begun = tokio::select! {
                begun = pipeline.start_call::<T>(context, checked, Some(&ticket)) => begun,
                () = ticket.abandoned() => Err(abandoned_error(T::NAME)),
            };
            let begun = match begun {
                Ok(begun) => begun,
                Err(error) => return complete_unstarted(ticket, &error).await,
            };
            // Before anything is done: should the daemon die then, it is known where to look.
            if let Err(error) =
                ticket.checkpoint().record_step(begun.tool_context.step.number()).await
            {
                tracing::warn!(%error, "the step of a request could not be kept");
            }
            let until = begun.timeout_at;
            let (task, abandon) = begun.spawn(&pipeline);
            let guard = abandon.clone().drop_guard();
            let mut work = std::pin::pin!(await_with_timeout::<T>(task, until, guard));
            let result = tokio::select! {
                result = &mut work => result,
                () = ticket.abandoned() => {
                    abandon.cancel();
                    work.await
                }
            };
            complete_claim(ticket, &result).await;
        });
        match caller.wait().await {
            Some(answer) => decode(&answer),
            None => Err(Error::internal("work with a request id was not answered")),
        }
    }

    /// Does `work`, which is no tool's, or gets the answer of the call that did it before.
    pub(crate) async fn run_once<R, W>(
        &self,
        call: Option<IdempotentCall>,
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
        let ticket = match self.claim_call(call).await? {
            ClaimOutcome::Acquired(ticket) => ticket,
            ClaimOutcome::Completed { reply: answer, .. } => return decode(&answer),
            ClaimOutcome::Lost(_) => return Err(daemon_lost_error(method)),
        };
        run_claimed(ticket, work).await
    }

    /// Does `work`, to its end, whatever becomes of the caller, or gets the answer of the call that did it
    /// before. Where a daemon died that was asked the same, the work is told so: it must look what was
    /// done, and do the rest.
    pub(crate) async fn run_once_detached<R, W, F>(
        &self,
        call: Option<IdempotentCall>,
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
        let method = call.request.method.clone();
        let claim = self.claim_call_with_payload(call, OnCrash::Resume, work).await?;
        let (ticket, work) = match claim {
            PayloadClaimOutcome::Acquired(ticket, work) => (ticket, work),
            PayloadClaimOutcome::Completed { reply: answer, .. } => return decode(&answer),
            PayloadClaimOutcome::Lost(_) => return Err(daemon_lost_error(&method)),
        };
        let is_unfinished = ticket.crash_progress().is_some();
        run_claimed(ticket, work(is_unfinished)).await
    }
}

/// The answer of `work`, which is done for all who have the request id.
async fn run_claimed<R, F>(claim: Claim, work: F) -> Result<R, Error>
where
    R: Message + Default + 'static,
    F: Future<Output = Result<R, Error>> + Send + 'static,
{
    let caller = claim.waiter();
    task::spawn_tracked("request", async move {
        let result = work.await;
        complete_claim(claim, &result).await;
    });
    match caller.wait().await {
        Some(answer) => decode(&answer),
        None => Err(Error::internal("work with a request id was not answered")),
    }
}

/// What is told to who comes just then: all who waited had left.
pub(super) fn abandoned_error(tool: &str) -> Error {
    let text = format!(
        "nobody waited any more for this call of {tool}, and it was not begun: repeat it with the same id"
    );
    Error::new(Reason::ResourceExhausted, text).retry_after(RELEASED_RETRY_AFTER)
}

/// Answers all who wait for a call that was not begun. It may be tried again under its id, unless somebody
/// has denied it.
pub(super) async fn complete_unstarted(claim: Claim, error: &Error) {
    log_internal_error(error);
    claim.complete(encode_error(error), is_denied(error)).await;
}

/// Answers all who wait, and whoever comes later.
pub(super) async fn complete_claim<R: Message>(claim: Claim, result: &Result<R, Error>) {
    if let Err(error) = result {
        log_internal_error(error);
    }
    claim.complete(encode(result), is_final(result)).await;
}

fn log_internal_error(error: &Error) {
    if error.reason == Reason::Internal {
        // What it was caused by does not go along.
        let cause = error.cause.as_ref().map(ToString::to_string);
        tracing::error!(cause, %error, "work with a request id failed by a defect");
    }
}
