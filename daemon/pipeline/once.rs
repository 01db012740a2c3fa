//! Runs the work of a request id once. The first call does it in a task of its own; every call with
//! the same id gets its reply.
//!
//! Calls that hold a large payload (the request, or a closure over it) claim with
//! [`claim_with_payload`]: a duplicate that arrives while the work is in progress drops its payload
//! and waits for the reply.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use prost::Message;

use super::{
    Pipeline, ValidatedCall, await_with_timeout,
    context::CallContext,
    idempotency::{
        Claim, ClaimAttempt, ClaimOutcome, OnCrash, Waiter,
        reply::{decode, encode, encode_error, is_denied, is_final},
    },
};
use crate::daemon::{
    error::{Error, Reason},
    store::requests::{RequestIdentity, RequestKey},
    task,
    tool::{Tool, daemon_lost_error},
};

/// When to repeat a call that was not started. The database frees its id by then.
const RELEASED_RETRY_AFTER: Duration = Duration::from_millis(100);

/// A call that carries a request id.
#[derive(Debug)]
pub(crate) struct IdempotentCall {
    key: RequestKey,
    request: RequestIdentity,
    /// When the caller stops waiting.
    deadline: Option<Instant>,
}

/// The outcome of a claim by a call that holds a payload.
#[derive(Debug)]
pub(super) enum PayloadClaimOutcome<P> {
    /// This call does the work, with its payload.
    Acquired(Claim, P),
    /// The work is done; see [`ClaimOutcome::Completed`].
    Completed { reply: Bytes, is_current_generation: bool },
    /// See [`ClaimOutcome::Lost`].
    Lost(Option<u64>),
}

// Claiming.
impl Pipeline {
    /// Returns what identifies a call and its duplicates, or `None` without a request id.
    pub(crate) fn identify_call(
        &self,
        context: &CallContext,
        method: &str,
        request: &impl Message,
    ) -> Result<Option<IdempotentCall>, Error> {
        let Some(id) = context.request_id.clone() else {
            return Ok(None);
        };

        let workspace = self.resolve_workspace(context)?.workspace.name().to_owned();
        Ok(Some(self.identify(context, id, workspace, method, request)))
    }

    /// As [`Self::identify_call`], for an RPC that is about no workspace, or about one that it names
    /// itself.
    pub(crate) fn identify_daemon_call(
        &self,
        context: &CallContext,
        method: &str,
        request: &impl Message,
    ) -> Option<IdempotentCall> {
        let id = context.request_id.clone()?;
        Some(self.identify(context, id, String::new(), method, request))
    }

    fn identify(
        &self,
        context: &CallContext,
        id: String,
        workspace: String,
        method: &str,
        request: &impl Message,
    ) -> IdempotentCall {
        IdempotentCall {
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
        }
    }

    /// Claims the id of a call, or waits for the reply of the call that holds it.
    pub(super) async fn claim_call(&self, call: IdempotentCall) -> Result<ClaimOutcome, Error> {
        self.idempotency.claim(call.key, call.request, OnCrash::Report).await
    }

    /// As [`Self::claim_call`], for a call that holds a payload: see [`claim_with_payload`].
    pub(super) async fn claim_call_with_payload<P>(
        &self,
        call: IdempotentCall,
        on_crash: OnCrash,
        payload: P,
    ) -> Result<PayloadClaimOutcome<P>, Error> {
        let claim = || self.try_claim_call(&call, on_crash);
        claim_with_payload(claim, payload).await
    }

    /// Claims the id of a call. Returns a waiter if the work is in progress.
    pub(super) async fn try_claim_call(
        &self,
        call: &IdempotentCall,
        on_crash: OnCrash,
    ) -> Result<ClaimAttempt, Error> {
        self.idempotency.try_claim(&call.key, &call.request, on_crash, call.deadline).await
    }

    /// Deletes the stored replies of revoked keys. Does nothing without a key file.
    pub(crate) async fn drop_revoked_replies(&self) {
        let Some(principals) = self.access.key_principals() else {
            return;
        };

        if let Err(error) = self.idempotency.remove_revoked(principals).await {
            // Harmless for security: a claim contains the fingerprint of its key.
            tracing::warn!(%error, "cannot delete the stored replies of revoked keys");
        }
    }
}

/// Claims an id by `claim` for a call that holds `payload`. While another call does the work, waits
/// for its reply and drops the payload: there may be many duplicates.
async fn claim_with_payload<P, F>(
    claim: impl Fn() -> F,
    payload: P,
) -> Result<PayloadClaimOutcome<P>, Error>
where
    F: Future<Output = Result<ClaimAttempt, Error>>,
{
    let mut payload = Some(payload);
    loop {
        let waiter = match claim().await? {
            ClaimAttempt::Settled(ClaimOutcome::Acquired(claim)) => {
                // Without its payload this call cannot do the work. Dropping the claim frees the
                // id.
                let payload = payload.ok_or_else(released_error)?;
                return Ok(PayloadClaimOutcome::Acquired(claim, payload));
            }
            ClaimAttempt::Settled(ClaimOutcome::Completed { reply, is_current_generation }) => {
                return Ok(PayloadClaimOutcome::Completed { reply, is_current_generation });
            }
            ClaimAttempt::Settled(ClaimOutcome::Lost(step)) => {
                return Ok(PayloadClaimOutcome::Lost(step));
            }
            ClaimAttempt::InFlight(waiter) => waiter,
        };

        payload = None;
        if let Some(reply) = waiter.wait().await {
            return Ok(PayloadClaimOutcome::Completed { reply, is_current_generation: true });
        }
    }
}

// Running.
impl Pipeline {
    /// Runs a call of the tool `T`, or returns the reply of the call that ran before.
    pub(super) async fn call_once<T: Tool>(
        self: &Arc<Self>,
        context: CallContext,
        validated: ValidatedCall<T>,
        call: IdempotentCall,
    ) -> Result<T::Response, Error>
    where
        T::Response: Message + Default,
    {
        let on_crash = OnCrash::ReportAfterCheckpoint;
        let outcome = self.claim_call_with_payload(call, on_crash, validated).await?;
        let (claim, validated) = match outcome {
            PayloadClaimOutcome::Acquired(claim, validated) => (claim, validated),
            PayloadClaimOutcome::Completed { reply, .. } => return decode(&reply),
            PayloadClaimOutcome::Lost(step) => return T::daemon_lost_response(step),
        };

        let waiter = claim.waiter();
        let pipeline = Arc::clone(self);
        task::spawn_tracked("request", pipeline.run_claimed_call(context, validated, claim));
        await_reply(waiter).await
    }

    /// Runs a call of the tool `T` for all waiters of `claim`, and stores its reply.
    async fn run_claimed_call<T: Tool>(
        self: Arc<Self>,
        context: CallContext,
        validated: ValidatedCall<T>,
        claim: Claim,
    ) where
        T::Response: Message + Default,
    {
        // A waiter's deadline ends that waiter's wait, not the work. The latest deadline of all
        // waiters ends the wait for permits.
        let context = CallContext { deadline: None, ..context };

        // The call may need approval first. Its duplicates wait for the same decision.
        let started = tokio::select! {
            started = self.start_call::<T>(context, validated, Some(&claim)) => started,
            () = claim.abandoned() => Err(abandoned_error(T::NAME)),
        };
        let started = match started {
            Ok(started) => started,
            Err(error) => return complete_unstarted(claim, &error).await,
        };

        let timeout = started.timeout;
        let started = started.with_result_capture().with_checkpoint(claim.checkpoint());
        let (task, abandon_token) = started.spawn(&self);
        let guard = abandon_token.clone().drop_guard();
        let mut work = pin!(await_with_timeout::<T>(task, timeout, guard));
        let result = tokio::select! {
            result = &mut work => result,
            () = claim.abandoned() => {
                abandon_token.cancel();
                work.await
            }
        };

        complete_claim(claim, &result).await;
    }

    /// Runs `work`, which is no tool call, or returns the reply of the call that ran it before.
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

        match self.claim_call(call).await? {
            ClaimOutcome::Acquired(claim) => run_claimed(claim, work).await,
            ClaimOutcome::Completed { reply, .. } => decode(&reply),
            ClaimOutcome::Lost(_) => Err(daemon_lost_error(method)),
        }
    }

    /// As [`Self::run_once`], but runs `work` to its end even if the client disconnects.
    pub(crate) async fn run_once_to_end<R, W>(
        &self,
        call: Option<IdempotentCall>,
        method: &str,
        work: W,
    ) -> Result<R, Error>
    where
        R: Message + Default + 'static,
        W: Future<Output = Result<R, Error>> + Send + 'static,
    {
        match call {
            Some(call) => self.run_once(Some(call), method, work).await,
            None => run_to_end(work).await,
        }
    }

    /// As [`Self::run_once`], but runs `work` to its end even if the client disconnects.
    ///
    /// `work` receives whether an earlier daemon died during the same work. It must then check what
    /// was done, and do the rest.
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
            return run_to_end(work(false)).await;
        };

        let method = call.request.method.clone();
        match self.claim_call_with_payload(call, OnCrash::Resume, work).await? {
            PayloadClaimOutcome::Acquired(claim, work) => {
                let is_resumed = claim.crash_progress().is_some();
                run_claimed(claim, work(is_resumed)).await
            }
            PayloadClaimOutcome::Completed { reply, .. } => decode(&reply),
            PayloadClaimOutcome::Lost(_) => Err(daemon_lost_error(&method)),
        }
    }
}

/// Runs `work` in a task of its own, to its end even if the caller is dropped.
async fn run_to_end<R, F>(work: F) -> Result<R, Error>
where
    R: Send + 'static,
    F: Future<Output = Result<R, Error>> + Send + 'static,
{
    task::spawn_tracked("request", work).await.map_err(Error::internal)?
}

/// Runs `work` in a task of its own for all waiters of the request id.
async fn run_claimed<R, F>(claim: Claim, work: F) -> Result<R, Error>
where
    R: Message + Default + 'static,
    F: Future<Output = Result<R, Error>> + Send + 'static,
{
    let waiter = claim.waiter();
    task::spawn_tracked("request", async move {
        let result = work.await;
        complete_claim(claim, &result).await;
    });

    await_reply(waiter).await
}

/// Waits for the reply of a claimed call.
pub(super) async fn await_reply<R: Message + Default>(waiter: Waiter<Claim>) -> Result<R, Error> {
    match waiter.wait().await {
        Some(reply) => decode(&reply),
        None => Err(Error::internal("the work of a request id ended without a reply")),
    }
}

/// Replies to all waiters of a call that was not started. A later call may claim the id again,
/// unless an approver has denied the call.
pub(super) async fn complete_unstarted(claim: Claim, error: &Error) {
    log_internal_error(error);
    claim.complete(encode_error(error), is_denied(error)).await;
}

/// Replies to all waiters, and stores the reply for later calls if it is final.
pub(super) async fn complete_claim<R: Message>(claim: Claim, result: &Result<R, Error>) {
    if let Err(error) = result {
        log_internal_error(error);
    }

    claim.complete(encode(result), is_final(result)).await;
}

fn log_internal_error(error: &Error) {
    if error.reason == Reason::Internal {
        // Logged here because the stored reply does not contain the cause.
        let cause = error.cause.as_ref().map(ToString::to_string);
        tracing::error!(cause, %error, "internal error in a call with a request id");
    }
}

/// The reply of a call that was abandoned before it started.
pub(super) fn abandoned_error(tool: &str) -> Error {
    let text = format!(
        "this call of {tool} was abandoned before it started, because no client waited for it: repeat it with the same request id"
    );
    Error::new(Reason::ResourceExhausted, text).with_retry_after(RELEASED_RETRY_AFTER)
}

/// The reply to a duplicate whose first call gave up before it started.
fn released_error() -> Error {
    let text = "the first call with this request id gave up before it started: repeat it with the same request id";
    Error::new(Reason::ResourceExhausted, text).with_retry_after(RELEASED_RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::{
        pipeline::{idempotency::Idempotency, shutdown::Shutdown},
        store::{
            database::Database,
            requests::{KeyFingerprint, RequestTable},
            retention::rows::RetentionLimits,
        },
    };

    #[tokio::test]
    async fn duplicates_drop_their_payload_while_they_wait() {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::open(&dir.path().join("jig.db"), false).unwrap();
        let limits = RetentionLimits {
            max_age: Duration::from_secs(3600),
            max_rows: 100,
            max_bytes: 1 << 20,
        };
        let table = RequestTable::open(database, limits).await.unwrap();
        let idempotency = Idempotency::new(table, Duration::from_secs(60), &Shutdown::default());
        let key = RequestKey {
            principal: "p".to_owned(),
            workspace: "w".to_owned(),
            id: "id".to_owned(),
            key_fingerprint: KeyFingerprint::default(),
        };
        let request = RequestIdentity {
            method: "m".to_owned(),
            session: "s".to_owned(),
            fingerprint: [1; 32],
        };
        let claim = |payload: Arc<str>| {
            let (idempotency, key, request) =
                (Arc::clone(&idempotency), key.clone(), request.clone());
            async move {
                let claim = || idempotency.try_claim(&key, &request, OnCrash::Report, None);
                claim_with_payload(claim, payload).await
            }
        };

        let payload: Arc<str> = "large".into();
        let Ok(PayloadClaimOutcome::Acquired(first, first_payload)) =
            claim(Arc::clone(&payload)).await
        else {
            panic!("the first call acquires the claim");
        };
        assert_eq!(Arc::strong_count(&payload), 2);
        drop(first_payload);

        let duplicates =
            [(); 3].map(|()| task::spawn_tracked("repeat", claim(Arc::clone(&payload))));
        let dropped = async {
            while Arc::strong_count(&payload) > 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), dropped).await.unwrap();

        // The first call gives up. No duplicate has the payload to do its work.
        drop(first);
        for duplicate in duplicates {
            let error = duplicate.await.unwrap().unwrap_err();
            assert_eq!(error.reason, Reason::ResourceExhausted);
            assert_eq!(error.retry_after, Some(RELEASED_RETRY_AFTER));
        }

        // A call after the retry delay finds the id free.
        let mut again = claim(Arc::clone(&payload)).await;
        while let Err(error) = &again {
            tokio::time::sleep(error.retry_after.unwrap()).await;
            again = claim(Arc::clone(&payload)).await;
        }
        assert!(matches!(again, Ok(PayloadClaimOutcome::Acquired(..))), "{again:?}");
    }
}
