//! Calls that may be repeated: the work is done once for each `jig-request-id`, and every call with that
//! id gets its answer, also after a restart.
//!
//! ```text
//! claim ──▶ ours ──▶ work ──▶ answered ──▶ kept in the log, and told to all who wait
//!   │         └─────▶ released: nothing was done, so that the next one may claim it
//!   ├──▶ somebody else's, who works: wait with him
//!   ├──▶ answered: the answer again
//!   └──▶ lost: the daemon died while it worked, or had no room for the answer, or not any more
//! ```
//!
//! What the log cannot take at the moment, for want of room or because another program holds it, is kept in
//! memory and told from there until the log has it.
//!
//! Work with an id does not end with its caller: it goes on for a while when nobody waits any more, as
//! the caller may be on his way back. What still waits for a place when the last one's deadline comes is not
//! begun: he is told so, and is not on his way back.

mod checkpoint;
mod claim_state;
pub(super) mod reply;
mod request_match;
mod revoked_keys;
mod takeover;
mod waiters;

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, timeout},
};

pub(crate) use self::checkpoint::Checkpoint;
pub(crate) use self::waiters::Waiters;
pub(super) use self::{checkpoint::CrashProgress, claim_state::OnCrash};
use self::{
    claim_state::ClaimState, request_match::require_same_request, takeover::TakeoverRequests,
};
use super::{policy_input::Authorization, shutdown::Shutdown, state_error::state_database_error};
use crate::daemon::{
    error::Error,
    store::{
        database::DatabaseError,
        requests::{RecordState, RequestIdentity, RequestKey, RequestTable},
    },
    task,
};

/// How long those who wait for an answer wait until it is kept, too: some hundred times what that takes.
const STORE_REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait before the log is asked again to take what it could not.
const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// The same while the daemon waits for nothing else, maybe.
const DRAINING_STORE_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes of what waits for the log: as much as some thousands of usual answers, and little beside what the
/// daemon may need otherwise. More than that is told to be lost.
const MAX_UNSTORED_REPLY_BYTES: usize = 64 << 20;
/// What it takes of them to know of an answer.
const UNSTORED_REPLY_OVERHEAD_BYTES: usize = 1024;

/// The request ids.
#[derive(Debug)]
pub(crate) struct Idempotency {
    log: RequestTable,
    /// How long work goes on when nobody waits for it.
    detached_timeout: Duration,
    shutdown: Shutdown,
    in_flight: Arc<InFlightRequests>,
    /// Bytes of what waits for the log.
    unstored_bytes: AtomicUsize,
}

/// Those whose work goes on, or of whom the log does not have yet how it ended.
#[derive(Debug, Default)]
struct InFlightRequests(Mutex<HashMap<RequestKey, Arc<InFlightRequest>>>);

/// A call that goes on, for all who wait for it.
#[derive(Debug)]
struct InFlightRequest {
    request: RequestIdentity,
    state: watch::Sender<ClaimState>,
    /// Who waits.
    waiters: watch::Sender<Waiters>,
    /// Who would go on with the work in place of the one who does it.
    takeover_requests: TakeoverRequests<Claim>,
    /// Why it cannot be claimed again, though nothing was done.
    release_error: OnceLock<DatabaseError>,
}

/// What became of a claim.
#[derive(Debug)]
pub(super) enum ClaimOutcome {
    /// The work is to be done by who holds this.
    Acquired(Claim),
    /// It was done before.
    Completed {
        /// How it was answered.
        reply: Bytes,
        /// Whether this life of the daemon did it.
        is_recent: bool,
    },
    /// The daemon died while it was done, as this step of its session, or had no room for the answer, or
    /// not any more.
    Lost(Option<u64>),
}

/// The right and the duty to do the work of a request id. Dropped without an answer, it is given back.
#[derive(Debug)]
pub(super) struct Claim {
    idempotency: Arc<Idempotency>,
    key: RequestKey,
    in_flight: Arc<InFlightRequest>,
    /// When who has claimed it stops waiting.
    deadline: Option<Instant>,
    is_pending: bool,
    /// Where a daemon died that did it: how far it had come.
    crash_progress: Option<CrashProgress>,
    /// What has let the work in, where somebody was asked before it was handed over.
    authorization: Option<Authorization>,
}

/// Somebody who waits for an answer.
#[derive(Debug)]
pub(super) struct Waiter {
    in_flight: Arc<InFlightRequest>,
    deadline: Option<Instant>,
    state: watch::Receiver<ClaimState>,
}

impl Idempotency {
    /// The request ids of `log`.
    pub(crate) fn new(log: RequestTable, linger: Duration, shutdown: &Shutdown) -> Arc<Self> {
        let growth = log.retention_trigger();
        let idempotency = Arc::new(Self {
            log,
            detached_timeout: linger,
            shutdown: shutdown.clone(),
            in_flight: Arc::default(),
            unstored_bytes: AtomicUsize::new(0),
        });
        let weak = Arc::downgrade(&idempotency);
        task::spawn("retention of request ids", async move {
            while let Some(idempotency) = weak.upgrade() {
                idempotency.retain().await;
                drop(idempotency);
                growth.wait_until_due().await;
            }
        });
        idempotency
    }

    /// What tells a request message from another.
    pub(super) fn fingerprint(&self, message: &[u8]) -> [u8; 32] {
        self.log.fingerprint(message)
    }

    /// How long work goes on when nobody waits for it.
    pub(super) fn detached_timeout(&self) -> Duration {
        self.detached_timeout
    }

    /// Claims a request id. Where its work goes on already, waits for its answer.
    pub(super) async fn claim(
        self: &Arc<Self>,
        key: RequestKey,
        request: RequestIdentity,
        on_crash: OnCrash,
    ) -> Result<ClaimOutcome, Error> {
        loop {
            let shared = match self.try_claim(&key, &request, on_crash, None).await? {
                Ok(claimed) => return Ok(claimed),
                Err(caller) => caller,
            };
            if let Some(answer) = shared.wait().await {
                return Ok(ClaimOutcome::Completed { reply: answer, is_recent: true });
            }
        }
    }

    /// Claims a request id, unless its work goes on already: then answers somebody who waits for its
    /// answer until his `deadline`.
    pub(super) async fn try_claim(
        self: &Arc<Self>,
        key: &RequestKey,
        request: &RequestIdentity,
        on_crash: OnCrash,
        deadline: Option<Instant>,
    ) -> Result<Result<ClaimOutcome, Waiter>, Error> {
        match self.join(key, request, deadline)? {
            JoinOutcome::Acquired(ticket) => {
                // In a task of its own: a caller who goes away must not leave it unknown whether the
                // log holds the claim.
                let claim =
                    task::spawn_tracked("claim", ticket.claim_in_log(request.clone(), on_crash));
                claim.await.map_err(Error::internal)?.map(Ok)
            }
            JoinOutcome::InFlight(caller) => Ok(Err(caller)),
        }
    }

    fn join(
        self: &Arc<Self>,
        key: &RequestKey,
        request: &RequestIdentity,
        deadline: Option<Instant>,
    ) -> Result<JoinOutcome, Error> {
        let mut going = self.in_flight.lock();
        if let Some(shared) = going.get(key) {
            require_same_request(key, request, &shared.request)?;
            if let Some(error) = shared.release_error.get() {
                return Err(state_database_error(error));
            }
            return Ok(JoinOutcome::InFlight(Waiter::new(shared, deadline)));
        }
        let shared = Arc::new(InFlightRequest {
            request: request.clone(),
            state: watch::Sender::new(ClaimState::InFlight),
            waiters: watch::Sender::default(),
            takeover_requests: TakeoverRequests::default(),
            release_error: OnceLock::new(),
        });
        going.insert(key.clone(), Arc::clone(&shared));
        Ok(JoinOutcome::Acquired(Claim {
            idempotency: Arc::clone(self),
            key: key.clone(),
            in_flight: shared,
            deadline,
            is_pending: true,
            crash_progress: None,
            authorization: None,
        }))
    }

    /// Has the log take how work has ended, and tells those who wait: as soon as the log has it or, if it
    /// cannot take it at the moment, before that. `kept`: the answer to every repeat; without it, the next
    /// one may claim the id.
    async fn finish(
        self: Arc<Self>,
        key: RequestKey,
        shared: Arc<InFlightRequest>,
        state: ClaimState,
        kept: Option<Bytes>,
    ) {
        let taken = timeout(STORE_REPLY_TIMEOUT, self.store_end(&key, kept.as_ref()));
        let taken = taken.await.unwrap_or(Err(DatabaseError::Busy));
        let Err(error) = taken else {
            return self.close(&key, &shared, state);
        };
        let bytes = kept.as_ref().map_or(0, Bytes::len) + UNSTORED_REPLY_OVERHEAD_BYTES;
        if self.unstored_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
            > MAX_UNSTORED_REPLY_BYTES
        {
            self.unstored_bytes.fetch_sub(bytes, Ordering::Relaxed);
            // A repeat will learn that it is not known how it ended.
            tracing::error!(%error, "the answer to a request id could not be kept");
            return self.close(&key, &shared, state);
        }
        tracing::warn!(%error, "the answer to a request id cannot be kept yet");
        if kept.is_none() {
            let _was_free = shared.release_error.set(error);
        }
        shared.state.send_replace(state);
        task::spawn_tracked("answer to a request id", async move {
            self.store_end_later(&key, kept.as_ref()).await;
            self.unstored_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.in_flight.lock().remove(&key);
        });
    }

    /// Has the log take how work has ended as soon as it can, as long as the daemon may wait for that.
    async fn store_end_later(&self, key: &RequestKey, kept: Option<&Bytes>) {
        let (begun, end) = (self.shutdown.draining_token(), self.shutdown.terminate_token());
        let mut is_over = pin!(async {
            end.cancelled().await;
            sleep(STORE_REPLY_TIMEOUT).await;
        });
        loop {
            let is_draining = begun.is_cancelled();
            let pause =
                if is_draining { DRAINING_STORE_RETRY_INTERVAL } else { STORE_RETRY_INTERVAL };
            let is_last = tokio::select! {
                biased;
                () = &mut is_over => true,
                () = begun.cancelled(), if !is_draining => false,
                () = sleep(pause) => false,
            };
            match self.store_end(key, kept).await {
                Ok(()) => return,
                Err(error) if is_last => {
                    tracing::error!(%error, "the answer to a request id could not be kept");
                    return;
                }
                Err(_) => {}
            }
        }
    }

    async fn store_end(&self, key: &RequestKey, kept: Option<&Bytes>) -> Result<(), DatabaseError> {
        match kept {
            Some(answer) => self.log.complete(key.clone(), answer.clone()).await,
            None => self.log.release(key.clone()).await,
        }
    }

    /// Lets the next one claim it, and tells those who wait.
    fn close(&self, key: &RequestKey, shared: &InFlightRequest, state: ClaimState) {
        self.in_flight.lock().remove(key);
        shared.state.send_replace(state);
    }

    async fn retain(&self) {
        let going = Arc::clone(&self.in_flight);
        let goes_on = move |key: &RequestKey| going.lock().contains_key(key);
        if let Err(error) = self.log.apply_retention(goes_on).await {
            tracing::warn!(%error, "old request ids could not be removed");
        }
    }
}

impl InFlightRequests {
    fn lock(&self) -> MutexGuard<'_, HashMap<RequestKey, Arc<InFlightRequest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum JoinOutcome {
    Acquired(Claim),
    InFlight(Waiter),
}

impl Claim {
    async fn claim_in_log(
        mut self,
        request: RequestIdentity,
        on_crash: OnCrash,
    ) -> Result<ClaimOutcome, Error> {
        let found = self.idempotency.log.claim(self.key.clone(), request.clone()).await;
        let found = found.inspect_err(|_| self.release());
        match found.map_err(|error| state_database_error(&error))? {
            RecordState::Claimed => Ok(ClaimOutcome::Acquired(self)),
            // What is in the log already is none of this ticket's.
            RecordState::Completed {
                request: before,
                response: answer,
                is_current_generation: is_recent,
            } => {
                self.release();
                require_same_request(&self.key, &request, &before)?;
                Ok(ClaimOutcome::Completed { reply: answer, is_recent })
            }
            RecordState::Incomplete { request: before, step } => {
                require_same_request(&self.key, &request, &before)
                    .inspect_err(|_| self.release())?;
                if on_crash == OnCrash::Resume {
                    let resumed = self.idempotency.log.reclaim(self.key.clone()).await;
                    let resumed = resumed.inspect_err(|_| self.release());
                    resumed.map_err(|error| state_database_error(&error))?;
                    self.crash_progress =
                        Some(step.map_or(CrashProgress::BeforeCheckpoint, |_| {
                            CrashProgress::AfterCheckpoint
                        }));
                    return Ok(ClaimOutcome::Acquired(self));
                }
                self.release();
                Ok(ClaimOutcome::Lost(step))
            }
            // Whatever it was, it was done, and may have been undone by others since: it is not done again.
            RecordState::Evicted { request: before, step } => {
                self.release();
                require_same_request(&self.key, &request, &before)?;
                Ok(ClaimOutcome::Lost(step))
            }
        }
    }

    /// Where a daemon died that did the work: what it has left.
    pub(super) fn crash_progress(&self) -> Option<CrashProgress> {
        self.crash_progress
    }

    /// Where it is said how far the work has come.
    pub(super) fn checkpoint(&self) -> Checkpoint {
        Checkpoint::new(self.idempotency.log.clone(), self.key.clone())
    }

    /// What has let the work in before, for who goes on with it.
    pub(super) fn take_authorization(&mut self) -> Option<Authorization> {
        self.authorization.take()
    }

    /// Somebody who waits for the answer.
    pub(super) fn waiter(&self) -> Waiter {
        Waiter::new(&self.in_flight, self.deadline)
    }

    /// Those who wait for the answer, as they come and go.
    pub(super) fn waiters(&self) -> watch::Receiver<Waiters> {
        self.in_flight.waiters.subscribe()
    }

    /// Waits until nobody has waited for a while. May be cancelled.
    pub(super) async fn abandoned(&self) {
        let mut callers = self.in_flight.waiters.subscribe();
        loop {
            // It cannot close: this ticket holds the sender.
            drop(callers.wait_for(Waiters::is_empty).await);
            tokio::select! {
                () = sleep(self.idempotency.detached_timeout) => return,
                _somebody = callers.wait_for(|callers| !callers.is_empty()) => {}
            }
        }
    }

    /// Waits until somebody would go on with the work. May be cancelled.
    pub(super) async fn takeover_requested(&self) {
        self.in_flight.takeover_requests.wait_for_any().await;
    }

    /// Gives the work, which this has let in, to the last who would go on with it and is there; to nobody
    /// else then. Answers itself where there is none.
    pub(super) fn transfer(mut self, authorization: Authorization) -> Option<Self> {
        let heirs = self.in_flight.takeover_requests.take_all();
        self.authorization = Some(authorization);
        for heir in heirs.into_iter().rev() {
            self = heir.send(self).err()?;
        }
        Some(self)
    }

    /// Keeps the answer, if `keep`, and tells all who wait.
    pub(super) async fn complete(mut self, answer: Bytes, keep: bool) {
        self.is_pending = false;
        let kept = keep.then(|| answer.clone());
        self.finish(ClaimState::Completed(answer), kept).await;
    }

    fn finish(&self, state: ClaimState, kept: Option<Bytes>) -> impl Future<Output = ()> + use<> {
        let (owner, shared) = (Arc::clone(&self.idempotency), Arc::clone(&self.in_flight));
        owner.finish(self.key.clone(), shared, state, kept)
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

impl Waiter {
    fn new(shared: &Arc<InFlightRequest>, deadline: Option<Instant>) -> Self {
        shared.waiters.send_modify(|callers| callers.add(deadline));
        Self { deadline, state: shared.state.subscribe(), in_flight: Arc::clone(shared) }
    }

    /// Asks for the right to go on with the work. Who does it may give it, or not.
    pub(super) fn request_takeover(&self) -> oneshot::Receiver<Claim> {
        self.in_flight.takeover_requests.request()
    }

    /// Waits for the answer; none if nothing was done.
    pub(super) async fn wait(mut self) -> Option<Bytes> {
        let state = self.state.wait_for(|state| !matches!(state, ClaimState::InFlight)).await;
        match state.as_deref() {
            Ok(ClaimState::Completed(answer)) => Some(answer.clone()),
            Ok(ClaimState::InFlight | ClaimState::Released) | Err(_) => None,
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let deadline = self.deadline;
        self.in_flight.waiters.send_modify(|callers| callers.remove(deadline));
    }
}

#[cfg(test)]
mod tests;
