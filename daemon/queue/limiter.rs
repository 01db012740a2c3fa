//! The places themselves, and waiting for one.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    fair_queue::{FairQueue, PrincipalKey, Sharing},
    retry_estimate::{RetryEstimate, at_least_one, clamp_retry_after},
};

/// A number of places, and those who wait for them.
#[derive(Debug)]
pub(crate) struct Limiter {
    state: Mutex<LimiterState>,
    /// Calls of one caller that may wait.
    max_queued_per_principal: usize,
}

#[derive(Debug)]
struct LimiterState {
    queue: FairQueue<oneshot::Sender<Permit>>,
    retry_estimate: RetryEstimate,
}

/// A place, until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    principal: PrincipalKey,
    acquired_at: Instant,
}

/// There is no place, and none to wait for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Saturated {
    /// Places that the caller has.
    pub(crate) in_use: usize,
    /// Calls of the caller that wait.
    pub(crate) queued: usize,
    /// Places that others have.
    pub(crate) in_use_by_others: usize,
    /// When there may be room.
    pub(crate) retry_after: Duration,
}

/// What was found at the door.
#[derive(Debug)]
pub(crate) enum Acquire {
    /// A place.
    Granted(Permit),
    /// None is free: it will come.
    Queued(PendingPermit),
}

/// Somebody who waits for a place, until this is dropped.
#[derive(Debug)]
pub(crate) struct PendingPermit {
    limiter: Arc<Limiter>,
    principal: PrincipalKey,
    waiter_id: u64,
    granted: oneshot::Receiver<Permit>,
}

impl Limiter {
    /// `at_most` places, of which one caller has his `share`; `bound` of his calls may wait.
    pub(crate) fn new(capacity: usize, sharing: Sharing, max_queued: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(LimiterState {
                queue: FairQueue::new(capacity, sharing),
                retry_estimate: RetryEstimate::new(Instant::now()),
            }),
            max_queued_per_principal: max_queued,
        })
    }

    /// Has so many places from now on, of which one caller has his `share`.
    pub(crate) fn reconfigure(self: &Arc<Self>, capacity: usize, sharing: Sharing) {
        let mut state = self.lock();
        state.queue.reconfigure(capacity, sharing);
        self.grant_free_permits(state);
    }

    /// Another share of them is one caller's from now on.
    pub(crate) fn set_sharing(self: &Arc<Self>, sharing: Sharing) {
        let at_most = self.lock().queue.capacity();
        self.reconfigure(at_most, sharing);
    }

    /// Takes a place for a caller who may have `most`, or gets in line for one.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        principal: &PrincipalKey,
        max_in_use: usize,
    ) -> Result<Acquire, Saturated> {
        let now = Instant::now();
        let mut state = self.lock();
        if state.queue.try_acquire(principal, max_in_use) {
            state.retry_estimate.record_acquire(now);
            return Ok(Acquire::Granted(self.permit(principal, now)));
        }
        if self.max_queued_per_principal == 0 {
            return Err(self.saturated(&mut state, principal, max_in_use));
        }
        let (sender, receiver) = oneshot::channel();
        match state.queue.enqueue(principal, max_in_use, self.max_queued_per_principal, sender) {
            Ok(number) => Ok(Acquire::Queued(PendingPermit {
                limiter: Arc::clone(self),
                principal: Arc::clone(principal),
                waiter_id: number,
                granted: receiver,
            })),
            Err(_) => Err(self.saturated(&mut state, principal, max_in_use)),
        }
    }

    /// Takes a place for a caller who may have `most`, or does not wait for one.
    pub(crate) fn try_acquire(
        self: &Arc<Self>,
        principal: &PrincipalKey,
        max_in_use: usize,
    ) -> Result<Permit, Saturated> {
        match self.acquire(principal, max_in_use)? {
            Acquire::Granted(place) => Ok(place),
            Acquire::Queued(_) => Err(self.saturation(principal, max_in_use)),
        }
    }

    /// How full it is for a caller who may have `most`.
    pub(crate) fn saturation(&self, principal: &PrincipalKey, max_in_use: usize) -> Saturated {
        self.saturated(&mut self.lock(), principal, max_in_use)
    }

    /// Places that are taken.
    pub(crate) fn in_use(&self) -> usize {
        self.lock().queue.in_use()
    }

    /// Those who wait.
    pub(crate) fn queued(&self) -> usize {
        self.lock().queue.queued()
    }

    fn saturated(
        &self,
        state: &mut LimiterState,
        principal: &PrincipalKey,
        max_in_use: usize,
    ) -> Saturated {
        let (held, waiting) = (state.queue.in_use_by(principal), state.queue.queued_by(principal));
        let (lanes, width) =
            (state.queue.waiting_flow_count(), state.queue.capacity().min(max_in_use));
        let now = Instant::now();
        let each = state.retry_estimate.release_interval(lanes, width, now);
        // Where the line is as long as it may be, its first must get a place, and those of the others who
        // are sent away; else all of it must.
        let retry_after = match waiting >= self.max_queued_per_principal {
            true => state.retry_estimate.schedule_retry(principal, each, now),
            false => clamp_retry_after(each.saturating_mul(at_least_one(waiting + 1))),
        };
        Saturated {
            in_use: held,
            queued: waiting,
            in_use_by_others: state.queue.in_use() - held,
            retry_after,
        }
    }

    fn permit(self: &Arc<Self>, principal: &PrincipalKey, acquired_at: Instant) -> Permit {
        Permit { limiter: Arc::clone(self), principal: Arc::clone(principal), acquired_at }
    }

    /// Gives free places to whose turn it is. The lock is not held while they are told: one who has left
    /// gives his place back at once.
    fn grant_free_permits(self: &Arc<Self>, mut state: MutexGuard<'_, LimiterState>) {
        let mut given = Vec::new();
        let now = Instant::now();
        while let Some((name, waiter)) = state.queue.grant_next() {
            state.retry_estimate.record_acquire(now);
            given.push((waiter, self.permit(&name, now)));
        }
        drop(state);
        for (waiter, place) in given {
            // Dropped with the error, and so given back.
            let _left = waiter.send(place);
        }
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingPermit {
    /// Waits for the place.
    pub(crate) async fn wait(&mut self) -> Permit {
        match (&mut self.granted).await {
            Ok(place) => place,
            // It cannot close: the queue, which holds the sender, is held by this.
            Err(_) => std::future::pending().await,
        }
    }

    /// As [`Self::place`], on a thread that may block; none if it cannot come any more.
    pub(crate) fn blocking_wait(mut self) -> Option<Permit> {
        let (_, never) = oneshot::channel();
        std::mem::replace(&mut self.granted, never).blocking_recv().ok()
    }
}

impl Drop for PendingPermit {
    fn drop(&mut self) {
        let mut state = self.limiter.lock();
        state.queue.cancel(&self.principal, self.waiter_id);
        // Others may have waited for this one's turn.
        self.limiter.grant_free_permits(state);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.limiter.lock();
        state.queue.release(&self.principal);
        state.retry_estimate.record_release(self.acquired_at, Instant::now());
        self.limiter.grant_free_permits(state);
    }
}
