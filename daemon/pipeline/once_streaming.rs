//! Idempotent calls whose work consumes what the caller streams, so that it cannot continue without
//! a caller (uploads).
//!
//! ```text
//! acquired ──▶ authorized ──▶ work ──▶ completed: the reply goes to all callers with the id
//!  ▲              │            ├─────▶ interrupted: the id is free, and the next call continues
//!  │              │            └─────▶ transferred to a later call with the id, during the work or
//!  │              ▼                    after its client has disconnected
//!  └──────────────┴─────────────────────┘
//! ```
//!
//! A call whose work was taken over waits for the reply with all others. The calls count as one and
//! are authorized once.

use std::{future::Future, ops::ControlFlow, pin::pin, sync::Arc};

use prost::Message;
use tokio_util::sync::CancellationToken;

use super::{
    Pipeline,
    idempotency::{
        Checkpoint, Claim, ClaimAttempt, ClaimOutcome, CrashProgress, OnCrash,
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

/// What the work of a streaming call receives.
#[derive(Debug)]
pub(crate) struct StreamingContext {
    /// Cancelled when the work must stop: its client disconnected, or another call continues it.
    pub(crate) stop: CancellationToken,
    pub(crate) authorization: Authorization,
    /// Where the work records that it may be complete from here on. `None` without a request id.
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Whether a daemon died after such a record.
    pub(crate) may_have_completed: bool,
}

impl Pipeline {
    /// Runs `work` once `authorize` succeeds, or returns the reply of the call that ran it before.
    ///
    /// If `is_resumable`, a duplicate takes over work in progress, and work during which the daemon
    /// died.
    pub(crate) async fn run_once_streaming<R, A, W, F>(
        self: &Arc<Self>,
        call: Option<IdempotentCall>,
        method: &'static str,
        is_resumable: bool,
        authorize: A,
        work: W,
    ) -> Result<R, Error>
    where
        R: Message + Default + 'static,
        A: Future<Output = Result<Authorization, Error>> + Send + 'static,
        W: FnOnce(StreamingContext) -> F + Send + 'static,
        F: Future<Output = Result<R, Error>> + Send + 'static,
    {
        let stop = self.shutdown.terminate_token().child_token();
        // Dropped with the caller, which then sends nothing more.
        let _stop_guard = stop.clone().drop_guard();

        let Some(call) = call else {
            let context = StreamingContext {
                stop,
                authorization: authorize.await?,
                checkpoint: None,
                may_have_completed: false,
            };
            return work(context).await;
        };

        let claim = match self.claim_or_take_over(&call, method, is_resumable).await? {
            ControlFlow::Continue(claim) => claim,
            ControlFlow::Break(response) => return Ok(response),
        };

        let waiter = claim.waiter();
        let running = run_claimed_stream(claim, method, is_resumable, authorize, stop, work);
        task::spawn_tracked("request", running);
        match waiter.wait().await {
            Some(reply) => decode(&reply),
            None => {
                let text = format!(
                    "{method} with this request id was interrupted: repeat it with the same request id"
                );
                Err(Error::new(Reason::Timeout, text))
            }
        }
    }

    /// Claims the id of a call, or takes over the claim of the call in progress. Breaks with the
    /// response if the work completes first.
    async fn claim_or_take_over<R: Message + Default>(
        &self,
        call: &IdempotentCall,
        method: &'static str,
        is_resumable: bool,
    ) -> Result<ControlFlow<R, Claim>, Error> {
        let on_crash = if is_resumable { OnCrash::Resume } else { OnCrash::Report };
        loop {
            let waiter = match self.try_claim_call(call, on_crash).await? {
                ClaimAttempt::Settled(ClaimOutcome::Acquired(claim)) => {
                    return Ok(ControlFlow::Continue(claim));
                }
                ClaimAttempt::Settled(ClaimOutcome::Completed { reply, .. }) => {
                    return decode(&reply).map(ControlFlow::Break);
                }
                ClaimAttempt::Settled(ClaimOutcome::Lost(_)) => {
                    return Err(daemon_lost_error(method));
                }
                ClaimAttempt::InFlight(waiter) => waiter,
            };

            let takeover = waiter.request_takeover();
            let reply = tokio::select! {
                biased;
                Ok(claim) = takeover => return Ok(ControlFlow::Continue(claim)),
                reply = waiter.wait() => reply,
            };
            match reply.map(|reply| decode(&reply)) {
                // The id is free: claim it again.
                None => {}
                Some(Err(error)) if is_interrupted(&error) => {}
                Some(result) => return result.map(ControlFlow::Break),
            }
        }
    }
}

/// Authorizes and runs the work of a claim, until it completes or another call takes it over.
async fn run_claimed_stream<R, A, W, F>(
    claim: Claim,
    method: &'static str,
    is_resumable: bool,
    authorize: A,
    stop: CancellationToken,
    work: W,
) where
    R: Message,
    A: Future<Output = Result<Authorization, Error>>,
    W: FnOnce(StreamingContext) -> F,
    F: Future<Output = Result<R, Error>>,
{
    let Some((claim, authorization)) =
        await_authorization(claim, method, is_resumable, authorize, &stop).await
    else {
        return;
    };

    let context = StreamingContext {
        stop: stop.clone(),
        authorization: authorization.clone(),
        checkpoint: Some(claim.checkpoint()),
        may_have_completed: claim.crash_progress() == Some(CrashProgress::AfterCheckpoint),
    };
    let mut work = pin!(work(context));
    let result = tokio::select! {
        result = &mut work => result,
        () = claim.takeover_requested(), if is_resumable => {
            stop.cancel();
            work.await
        }
    };

    let was_stopped = result.as_ref().is_err_and(is_interrupted) && stop.is_cancelled();
    let claim = if was_stopped { claim.transfer(authorization) } else { Some(claim) };
    if let Some(claim) = claim {
        complete_streaming(claim, &result).await;
    }
}

/// Waits for the authorization of a claim, once for all callers with the id.
///
/// Returns `None` if another call has taken over the claim, or if the claim is completed.
async fn await_authorization(
    mut claim: Claim,
    method: &str,
    is_resumable: bool,
    authorize: impl Future<Output = Result<Authorization, Error>>,
    stop: &CancellationToken,
) -> Option<(Claim, Authorization)> {
    if let Some(authorization) = claim.take_authorization() {
        return Some((claim, authorization));
    }

    let authorized = tokio::select! {
        authorized = authorize => authorized,
        () = claim.abandoned() => Err(abandoned_error(method)),
    };
    let mut authorization = match authorized {
        Ok(authorization) => authorization,
        Err(error) => {
            complete_unstarted(claim, &error).await;
            return None;
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

        // The client has disconnected. The authorization is kept for a caller that comes back.
        tokio::select! {
            () = claim.takeover_requested() => {}
            () = claim.abandoned() => return None,
        }
    }
}

/// Replies to all waiters, and stores the reply unless the work was interrupted.
async fn complete_streaming<R: Message>(claim: Claim, result: &Result<R, Error>) {
    let keep = match result {
        Err(error) => !is_interrupted(error) && is_final(result),
        Ok(_) => true,
    };
    claim.complete(encode(result), keep).await;
}

/// Whether the caller may send more, or the same again, under the same id.
fn is_interrupted(error: &Error) -> bool {
    matches!(
        error.reason,
        Reason::Timeout | Reason::InvalidParams | Reason::Draining | Reason::ChecksumMismatch
    )
}
