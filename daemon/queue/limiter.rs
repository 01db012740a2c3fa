//! A semaphore with fair hand-over: permits, and waiting for them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    fair_queue::{FairQueue, PrincipalName, Sharing},
    retry_estimate::{RetryEstimate, at_least_one, clamp_retry_after},
};

/// A number of permits, granted fairly between callers.
#[derive(Debug)]
pub(crate) struct Limiter {
    state: Mutex<LimiterState>,
    max_queued_per_principal: usize,
}

#[derive(Debug)]
struct LimiterState {
    queue: FairQueue<oneshot::Sender<Permit>>,
    retry_estimate: RetryEstimate,
}

/// Permission to proceed, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    principal: PrincipalName,
    acquired_at: Instant,
}

/// There is no free permit, and no room in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Saturated {
    /// Permits that the caller holds.
    pub(crate) in_use: usize,
    /// Waiters of the caller.
    pub(crate) queued: usize,
    /// Permits that other callers hold.
    pub(crate) in_use_by_others: usize,
    /// Estimate of when to retry.
    pub(crate) retry_after: Duration,
}

/// The result of [`Limiter::acquire`].
#[derive(Debug)]
pub(crate) enum Acquire {
    Granted(Permit),
    /// The permit comes later.
    Queued(PendingPermit),
}

/// A waiter in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct PendingPermit {
    limiter: Arc<Limiter>,
    principal: PrincipalName,
    waiter_id: u64,
    granted: oneshot::Receiver<Permit>,
}

impl Limiter {
    /// Creates `capacity` permits. Each principal may have `max_queued` waiters.
    pub(crate) fn new(capacity: usize, sharing: Sharing, max_queued: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(LimiterState {
                queue: FairQueue::new(capacity, sharing),
                retry_estimate: RetryEstimate::new(Instant::now()),
            }),
            max_queued_per_principal: max_queued,
        })
    }

    /// Changes the capacity and the sharing. Holders keep their permits.
    pub(crate) fn reconfigure(self: &Arc<Self>, capacity: usize, sharing: Sharing) {
        let mut state = self.lock();
        state.queue.reconfigure(capacity, sharing);
        self.grant_free_permits(state);
    }

    pub(crate) fn set_sharing(self: &Arc<Self>, sharing: Sharing) {
        let capacity = self.lock().queue.capacity();
        self.reconfigure(capacity, sharing);
    }

    /// Acquires a permit, or queues for one. `max_in_use` is the limit of this principal.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        principal: &PrincipalName,
        max_in_use: usize,
    ) -> Result<Acquire, Saturated> {
        let now = Instant::now();
        let mut state = self.lock();
        if state.queue.try_acquire(principal, max_in_use) {
            state.retry_estimate.record_acquire(now);
            return Ok(Acquire::Granted(self.permit(principal, now)));
        }

        if self.max_queued_per_principal == 0 {
            return Err(self.reject_locked(&mut state, principal, max_in_use));
        }

        let (sender, receiver) = oneshot::channel();

        match state.queue.enqueue(principal, max_in_use, self.max_queued_per_principal, sender) {
            Ok(waiter_id) => Ok(Acquire::Queued(PendingPermit {
                limiter: Arc::clone(self),
                principal: Arc::clone(principal),
                waiter_id,
                granted: receiver,
            })),
            Err(_) => Err(self.reject_locked(&mut state, principal, max_in_use)),
        }
    }

    /// Acquires a permit, without waiting. `max_in_use` is the limit of this principal.
    pub(crate) fn try_acquire(
        self: &Arc<Self>,
        principal: &PrincipalName,
        max_in_use: usize,
    ) -> Result<Permit, Saturated> {
        match self.acquire(principal, max_in_use)? {
            Acquire::Granted(permit) => Ok(permit),
            Acquire::Queued(_) => Err(self.reject(principal, max_in_use)),
        }
    }

    /// Describes the load to a call that is rejected. With a full queue, schedules its retry.
    pub(crate) fn reject(&self, principal: &PrincipalName, max_in_use: usize) -> Saturated {
        self.reject_locked(&mut self.lock(), principal, max_in_use)
    }

    /// Returns the permits in use.
    pub(crate) fn in_use(&self) -> usize {
        self.lock().queue.in_use()
    }

    /// Returns the number of waiters.
    pub(crate) fn queued(&self) -> usize {
        self.lock().queue.queued()
    }

    fn reject_locked(
        &self,
        state: &mut LimiterState,
        principal: &PrincipalName,
        max_in_use: usize,
    ) -> Saturated {
        let in_use = state.queue.in_use_by(principal);
        let queued = state.queue.queued_by(principal);
        let max_permits = state.queue.capacity().min(max_in_use);
        let now = Instant::now();
        let interval = state.retry_estimate.release_interval(
            state.queue.waiting_flow_count(),
            max_permits,
            now,
        );

        // If the queue of this principal is full, its first waiter and earlier rejected calls come
        // first. Otherwise the whole queue does.
        let retry_after = if queued >= self.max_queued_per_principal {
            state.retry_estimate.schedule_retry(principal, interval, now)
        } else {
            clamp_retry_after(interval.saturating_mul(at_least_one(queued + 1)))
        };

        Saturated { in_use, queued, in_use_by_others: state.queue.in_use() - in_use, retry_after }
    }

    fn permit(self: &Arc<Self>, principal: &PrincipalName, acquired_at: Instant) -> Permit {
        Permit { limiter: Arc::clone(self), principal: Arc::clone(principal), acquired_at }
    }

    /// Grants free permits. Notifies the waiters after unlocking, because a waiter that has gone
    /// releases its permit at once.
    fn grant_free_permits(self: &Arc<Self>, mut state: MutexGuard<'_, LimiterState>) {
        let mut granted = Vec::new();
        let now = Instant::now();
        while let Some((principal, waiter)) = state.queue.grant_next() {
            state.retry_estimate.record_acquire(now);
            granted.push((waiter, self.permit(&principal, now)));
        }

        drop(state);

        for (waiter, permit) in granted {
            // On an error, dropping it releases the permit.
            let _unsent = waiter.send(permit);
        }
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingPermit {
    /// Waits for the permit.
    pub(crate) async fn wait(&mut self) -> Permit {
        match (&mut self.granted).await {
            Ok(permit) => permit,
            // The channel cannot close: the queue holds the sender, and `self` holds the queue.
            Err(_) => std::future::pending().await,
        }
    }

    /// As [`Self::wait`], for a blocking thread. Returns `None` if no permit can come.
    pub(crate) fn blocking_wait(mut self) -> Option<Permit> {
        let (_, never) = oneshot::channel();
        std::mem::replace(&mut self.granted, never).blocking_recv().ok()
    }
}

impl Drop for PendingPermit {
    fn drop(&mut self) {
        let mut state = self.limiter.lock();
        state.queue.cancel(&self.principal, self.waiter_id);
        // Others may have waited behind this one.
        self.limiter.grant_free_permits(state);
    }
}

impl Permit {
    /// The caller that holds it.
    pub(crate) fn principal(&self) -> &PrincipalName {
        &self.principal
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
