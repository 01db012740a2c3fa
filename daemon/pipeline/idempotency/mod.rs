//! Idempotency keys: the work of a `jig-request-id` is done once, and every call with that id gets
//! its reply, even after a restart.
//!
//! ```text
//! claim ──▶ acquired ──▶ work ──▶ completed: the reply is stored, and sent to all waiters
//!   │          └───────▶ released: nothing was done; the next call may claim the id
//!   ├──▶ in flight: another call does the work; wait for its reply
//!   ├──▶ completed: return the stored reply
//!   └──▶ lost: the daemon died during the work, or could not store the reply, or has evicted it
//! ```
//!
//! The database may be unable to store a reply (no space, or locked by another program). The reply
//! then stays in memory until the database takes it. Duplicates get it from memory until then.
//!
//! Work with a request id outlives its callers by `detached_timeout`, because a caller may
//! reconnect. A call that is still queued for permits at the deadline of its last waiter is not
//! started: that waiter has received the error.

mod checkpoint;
mod claim_state;
mod finish;
pub(super) mod reply;
mod request_match;
mod revoked_keys;
mod takeover;
mod waiters;

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{sync::watch, time::sleep};

pub(crate) use self::checkpoint::Checkpoint;
pub(crate) use self::waiters::Waiters;
pub(super) use self::{checkpoint::CrashProgress, claim_state::OnCrash, waiters::Waiter};
use self::{
    claim_state::ClaimState, request_match::require_same_request, takeover::TakeoverRequests,
    waiters::InFlightRequest,
};
use super::{policy_input::Authorization, shutdown::Shutdown, state_error::state_database_error};
use crate::daemon::{
    error::Error,
    store::requests::{RecordState, RequestIdentity, RequestKey, RequestTable},
    task,
};

/// The request ids in use, in memory and in the database.
#[derive(Debug)]
pub(crate) struct Idempotency {
    table: RequestTable,
    /// How long work continues after its last waiter has disconnected.
    detached_timeout: Duration,
    shutdown: Shutdown,
    in_flight: Arc<InFlightRequests>,
    /// Bytes of the replies that are not stored yet.
    unstored_bytes: AtomicUsize,
}

/// Requests whose work is in progress, or whose end is not stored yet.
#[derive(Debug, Default)]
struct InFlightRequests(Mutex<HashMap<RequestKey, Arc<InFlightRequest<Claim>>>>);

#[derive(Debug)]
pub(super) enum ClaimOutcome {
    /// The holder of this claim does the work.
    Acquired(Claim),
    /// The work was done before.
    Completed {
        reply: Bytes,
        /// Whether the call was completed since the daemon started.
        is_current_generation: bool,
    },
    /// The daemon died during the work, could not store the reply, or has evicted it. Holds the
    /// step of the session, if known.
    Lost(Option<u64>),
}

/// The result of an attempt to claim a request id, without waiting.
#[derive(Debug)]
pub(super) enum ClaimAttempt {
    Settled(ClaimOutcome),
    /// Another call does the work.
    InFlight(Waiter<Claim>),
}

/// The right and the duty to do the work of a request id. Dropping it without a reply releases the
/// id.
#[derive(Debug)]
pub(super) struct Claim {
    idempotency: Arc<Idempotency>,
    key: RequestKey,
    in_flight: Arc<InFlightRequest<Claim>>,
    /// When the caller that made the claim stops waiting.
    deadline: Option<Instant>,
    is_pending: bool,
    /// How far an earlier daemon had come when it died during the work.
    crash_progress: Option<CrashProgress>,
    /// The authorization, if the previous holder was authorized before it transferred the claim.
    authorization: Option<Authorization>,
}

impl Idempotency {
    /// Starts with the request ids in `table`, and applies its retention in the background.
    pub(crate) fn new(
        table: RequestTable,
        detached_timeout: Duration,
        shutdown: &Shutdown,
    ) -> Arc<Self> {
        let retention_trigger = table.retention_trigger();
        let idempotency = Arc::new(Self {
            table,
            detached_timeout,
            shutdown: shutdown.clone(),
            in_flight: Arc::default(),
            unstored_bytes: AtomicUsize::new(0),
        });

        let weak = Arc::downgrade(&idempotency);
        task::spawn("retention of request ids", async move {
            while let Some(idempotency) = weak.upgrade() {
                idempotency.retain().await;
                drop(idempotency);
                retention_trigger.wait_until_due().await;
            }
        });

        idempotency
    }

    /// Returns a digest that distinguishes one request message from another.
    pub(super) fn fingerprint(&self, message: &[u8]) -> [u8; 32] {
        self.table.fingerprint(message)
    }

    /// How long work continues after its last waiter has disconnected.
    pub(super) fn detached_timeout(&self) -> Duration {
        self.detached_timeout
    }

    /// Claims a request id. Waits for the reply if its work is in progress.
    pub(super) async fn claim(
        self: &Arc<Self>,
        key: RequestKey,
        request: RequestIdentity,
        on_crash: OnCrash,
    ) -> Result<ClaimOutcome, Error> {
        loop {
            let waiter = match self.try_claim(&key, &request, on_crash, None).await? {
                ClaimAttempt::Settled(outcome) => return Ok(outcome),
                ClaimAttempt::InFlight(waiter) => waiter,
            };
            if let Some(reply) = waiter.wait().await {
                return Ok(ClaimOutcome::Completed { reply, is_current_generation: true });
            }
        }
    }

    /// Claims a request id. If its work is in progress, returns a waiter, which waits until
    /// `deadline`.
    pub(super) async fn try_claim(
        self: &Arc<Self>,
        key: &RequestKey,
        request: &RequestIdentity,
        on_crash: OnCrash,
        deadline: Option<Instant>,
    ) -> Result<ClaimAttempt, Error> {
        match self.join(key, request, deadline)? {
            JoinOutcome::Acquired(claim) => {
                let mut storing = Box::pin(claim.store(request.clone(), on_crash));
                // In a task of its own if that takes time: if the caller goes away, the database must
                // still be asked, or nothing would know whether it holds the claim.
                let polled = poll_fn(|context| Poll::Ready(storing.as_mut().poll(context))).await;
                let claimed = match polled {
                    Poll::Ready(claimed) => claimed,
                    Poll::Pending => {
                        task::spawn_tracked("claim", storing).await.map_err(Error::internal)?
                    }
                };
                claimed.map(ClaimAttempt::Settled)
            }
            JoinOutcome::InFlight(waiter) => Ok(ClaimAttempt::InFlight(waiter)),
        }
    }

    fn join(
        self: &Arc<Self>,
        key: &RequestKey,
        request: &RequestIdentity,
        deadline: Option<Instant>,
    ) -> Result<JoinOutcome, Error> {
        let mut in_flight_requests = self.in_flight.lock();
        if let Some(in_flight) = in_flight_requests.get(key) {
            require_same_request(key, request, &in_flight.request)?;
            if let Some(error) = in_flight.release_error.get() {
                return Err(state_database_error(error));
            }
            return Ok(JoinOutcome::InFlight(Waiter::new(in_flight, deadline)));
        }

        let in_flight = Arc::new(InFlightRequest {
            request: request.clone(),
            is_stored: Arc::default(),
            state: watch::Sender::new(ClaimState::InFlight),
            waiters: watch::Sender::default(),
            takeover_requests: TakeoverRequests::default(),
            release_error: OnceLock::new(),
        });
        in_flight_requests.insert(key.clone(), Arc::clone(&in_flight));

        Ok(JoinOutcome::Acquired(Claim {
            idempotency: Arc::clone(self),
            key: key.clone(),
            in_flight,
            deadline,
            is_pending: true,
            crash_progress: None,
            authorization: None,
        }))
    }

    /// Forgets a request in flight, and notifies its waiters.
    fn close(&self, key: &RequestKey, in_flight: &InFlightRequest<Claim>, state: ClaimState) {
        self.in_flight.lock().remove(key);
        in_flight.state.send_replace(state);
    }

    async fn retain(&self) {
        let in_flight = Arc::clone(&self.in_flight);
        let is_in_flight = move |key: &RequestKey| in_flight.lock().contains_key(key);
        if let Err(error) = self.table.apply_retention(is_in_flight).await {
            tracing::warn!(%error, "cannot remove old request ids");
        }
    }
}

impl InFlightRequests {
    fn lock(&self) -> MutexGuard<'_, HashMap<RequestKey, Arc<InFlightRequest<Claim>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum JoinOutcome {
    Acquired(Claim),
    InFlight(Waiter<Claim>),
}

impl Claim {
    /// Stores the claim in the database, or leaves that to its checkpoint. Returns what the database
    /// has of the id.
    async fn store(
        mut self,
        request: RequestIdentity,
        on_crash: OnCrash,
    ) -> Result<ClaimOutcome, Error> {
        let (table, key) = (&self.idempotency.table, self.key.clone());
        let found = match on_crash {
            OnCrash::ReportAfterCheckpoint => table.find(key).await,
            OnCrash::Report | OnCrash::Resume => {
                let found = table.claim(key, request.clone()).await;
                found.inspect(|_| self.in_flight.is_stored.store(true, Ordering::Release))
            }
        };
        let found =
            found.inspect_err(|_| self.release()).map_err(|error| state_database_error(&error))?;

        let Some(record) = found else {
            return Ok(ClaimOutcome::Acquired(self));
        };
        match record {
            // The stored record is not this claim's: only the entry in memory is released.
            RecordState::Completed { request: before, reply, is_current_generation } => {
                self.release();
                require_same_request(&self.key, &request, &before)?;
                Ok(ClaimOutcome::Completed { reply, is_current_generation })
            }
            RecordState::Incomplete { request: before, step } => {
                require_same_request(&self.key, &request, &before)
                    .inspect_err(|_| self.release())?;
                if on_crash == OnCrash::Resume {
                    return self.resume(step).await;
                }
                self.release();
                Ok(ClaimOutcome::Lost(step))
            }
            // The work was done, and its result may have been changed since: it is not repeated.
            RecordState::Evicted { request: before, step } => {
                self.release();
                require_same_request(&self.key, &request, &before)?;
                Ok(ClaimOutcome::Lost(step))
            }
        }
    }

    /// Takes over work during which an earlier daemon died.
    async fn resume(mut self, step: Option<u64>) -> Result<ClaimOutcome, Error> {
        let reclaimed = self.idempotency.table.reclaim(self.key.clone()).await;
        reclaimed.inspect_err(|_| self.release()).map_err(|error| state_database_error(&error))?;

        self.crash_progress = Some(match step {
            None => CrashProgress::BeforeCheckpoint,
            Some(_) => CrashProgress::AfterCheckpoint,
        });
        Ok(ClaimOutcome::Acquired(self))
    }

    /// How far an earlier daemon had come when it died during the work.
    pub(super) fn crash_progress(&self) -> Option<CrashProgress> {
        self.crash_progress
    }

    pub(super) fn checkpoint(&self) -> Checkpoint {
        let InFlightRequest { request, is_stored, .. } = &*self.in_flight;
        let table = self.idempotency.table.clone();
        Checkpoint::new(table, self.key.clone(), request.clone(), Arc::clone(is_stored))
    }

    /// Takes the authorization of the previous holder, if the claim was transferred.
    pub(super) fn take_authorization(&mut self) -> Option<Authorization> {
        self.authorization.take()
    }

    /// Returns a new waiter for the reply.
    pub(super) fn waiter(&self) -> Waiter<Claim> {
        Waiter::new(&self.in_flight, self.deadline)
    }

    /// Observes the calls that wait for the reply.
    pub(super) fn waiters(&self) -> watch::Receiver<Waiters> {
        self.in_flight.waiters.subscribe()
    }

    /// Waits until there has been no waiter for `detached_timeout`. Cancel safe.
    pub(super) async fn abandoned(&self) {
        let mut waiters = self.in_flight.waiters.subscribe();
        loop {
            // The channel cannot close: this claim holds the sender.
            drop(waiters.wait_for(Waiters::is_empty).await);
            tokio::select! {
                () = sleep(self.idempotency.detached_timeout) => return,
                _returned = waiters.wait_for(|waiters| !waiters.is_empty()) => {}
            }
        }
    }

    /// Waits until another call asks to continue the work. Cancel safe.
    pub(super) async fn takeover_requested(&self) {
        self.in_flight.takeover_requests.wait_for_any().await;
    }

    /// Transfers the claim, with its authorization, to the latest call that asked for it and still
    /// waits. Drops the other requests. Returns the claim if there is no such call.
    pub(super) fn transfer(mut self, authorization: Authorization) -> Option<Self> {
        let requests = self.in_flight.takeover_requests.take_all();
        self.authorization = Some(authorization);
        for request in requests.into_iter().rev() {
            self = request.send(self).err()?;
        }
        Some(self)
    }

    /// Sends the reply to all waiters, and stores it if `keep`.
    pub(super) async fn complete(mut self, reply: Bytes, keep: bool) {
        self.is_pending = false;
        let stored = keep.then(|| reply.clone());
        self.finish(ClaimState::Completed(reply), stored).await;
    }

    fn finish(&self, state: ClaimState, reply: Option<Bytes>) -> impl Future<Output = ()> + use<> {
        let (idempotency, in_flight) = (Arc::clone(&self.idempotency), Arc::clone(&self.in_flight));
        idempotency.finish(self.key.clone(), in_flight, state, reply)
    }

    fn release(&mut self) {
        self.is_pending = false;
        self.idempotency.close(&self.key, &self.in_flight, ClaimState::Released);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_pending || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        task::spawn_tracked("release of a request id", self.finish(ClaimState::Released, None));
    }
}

#[cfg(test)]
mod tests;
