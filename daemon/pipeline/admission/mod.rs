//! Admission control: limits on concurrent and queued calls, shared fairly between callers.
//!
//! ```text
//! rate limit ─▶ … ─▶ call permit ─▶ sandbox permit ─▶ start permit ─▶ the call starts
//!     │                  │ queue         │ queue           │ queue
//!     ▼                  ▼               ▼                 ▼
//! RESOURCE_EXHAUSTED  RESOURCE_EXHAUSTED: the queue is full, too many bytes, or queued too long;
//!                     TIMEOUT: the caller's deadline; DRAINING
//! ```
//!
//! * The **rate limit** belongs to the caller's key ([`super::access::token_bucket`]). It counts
//!   every request of a method with the option `rate_limited` once, on arrival, whatever its outcome
//!   (`server/body_limits.rs`). A rejection gives the exact time after which a call succeeds, unless
//!   another call with the same key comes first.
//! * A **call permit** is held as long as the work lasts. It limits calls in total, and calls of
//!   one caller as its key says. Started processes and transfers last long: they have limits of
//!   their own, and are rejected instead of queued. A call that needs a sandbox waits for a
//!   **sandbox permit** too; a started process waits for it as a process that has not started yet.
//! * A **start permit** keeps one caller's calls fast while another caller has thousands of calls.
//!   These compete for the CPUs, and the kernel does not know for which caller a thread works. So
//!   only a few calls may be starting at once: this is the part that costs the daemon most. A call
//!   releases the start permit when it ends, when it waits for something, or after a while
//!   (`Tool::START_PERMIT_HOLD`). From then on the kernel schedules its commands, which have a
//!   lower priority than the daemon.
//!
//! A call in a named shell first waits for a lease of it ([`shell_leases`]). Permits are granted by
//! fair queueing over callers, and first come first served within a caller
//! ([`crate::daemon::queue`]). If several callers have keys, one caller does not get the last
//! permits: these are headroom for callers that use few. If several callers want start permits,
//! there are fewer of them. While another caller has thousands of calls, a call is therefore
//! delayed by one of them.
//!
//! A queued call holds no thread, and its memory counts against [`ByteBudget`]. The retry delay of
//! a rejected call is an estimate: the number of calls before it times the recent duration of a
//! call. For long-lived work it is a fixed time.
//!
//! A request that is large or expensive to validate waits for a validation permit, and is validated
//! on a blocking thread.
//!
//! A caller is a principal: a key, or a user of this machine for calls without a key.

mod shell_lease;
pub(super) mod shell_leases;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;

use self::shell_leases::ShellLeases;
use super::{access::principal::Principal, idempotency::Waiters, shutdown::Shutdown};
use crate::daemon::{
    error::{Error, LIMIT_KIND, Reason},
    queue::{
        Acquire, ByteBudget, ByteReservation, DeferredPermit, Limiter, Permit, Saturated,
        SharedPermit, Sharing,
    },
    task,
    tool::response_deadline,
};

/// Retry delay for long-lived work, which ends at an unknown time.
const LONG_LIVED_RETRY_AFTER: Duration = Duration::from_secs(5);
/// Start permits per core while a single caller is active, if several callers have keys. Kept low: a
/// caller that arrives next waits for at most this many calls. A single caller would gain a little
/// from more. Without keys, all calls belong to one user, and there is no limit.
const MAX_STARTING_CALLS_PER_CORE: usize = 1;

/// The limiters for all calls.
#[derive(Debug)]
pub(crate) struct AdmissionControl {
    call_limiter: Arc<Limiter>,
    process_limiter: Arc<Limiter>,
    start_limiter: Arc<Limiter>,
    /// Limits the validation of large requests.
    validation_limiter: Arc<Limiter>,
    pending_bytes: Arc<ByteBudget>,
    shell_leases: ShellLeases,
    /// Calls that hold a call permit and wait for the other permits.
    awaiting_start: AtomicUsize,
    /// Those that wait for a sandbox permit.
    awaiting_sandbox: AtomicUsize,
    limits: AdmissionLimits,
    cores: usize,
}

/// What a call asks of admission control.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdmissionRequest<'a> {
    pub(crate) principal: &'a Principal,
    pub(crate) deadline: WaitDeadline<'a>,
    /// Memory that the call holds while it is queued, and that no other limit counts.
    pub(crate) held_bytes: usize,
    /// The limiter of sandboxes, if the call needs one.
    pub(crate) sandbox_limiter: Option<&'a Arc<Limiter>>,
}

/// When a queued call stops waiting.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WaitDeadline<'a> {
    /// At the deadline, if there is one.
    At(Option<Instant>),
    /// At the deadline of the last waiter.
    OfLastWaiter(&'a watch::Receiver<Waiters>),
}

impl WaitDeadline<'_> {
    /// Waits until `queue_deadline`, or until just before the deadline, so that the caller still
    /// gets the error. Returns whether the deadline came first.
    async fn passes_before(self, queue_deadline: Instant) -> bool {
        let wait_end = |deadline| {
            let now = Instant::now();
            response_deadline(now, queue_deadline.saturating_duration_since(now), deadline)
        };

        let mut waiters = match self {
            Self::At(deadline) => {
                let wait_end = wait_end(deadline);
                task::sleep_until(Some(wait_end)).await;
                return wait_end < queue_deadline;
            }
            Self::OfLastWaiter(waiters) => waiters.clone(),
        };
        loop {
            let wait_end = wait_end(waiters.borrow_and_update().last_deadline());
            tokio::select! {
                () = task::sleep_until(Some(wait_end)) => return wait_end < queue_deadline,
                // Fails if there can be no more waiters, but the holder of the claim is here.
                Ok(()) = waiters.changed() => {}
            }
        }
    }
}

impl<'a> From<&'a Principal> for AdmissionRequest<'a> {
    fn from(principal: &'a Principal) -> Self {
        Self { principal, deadline: WaitDeadline::At(None), held_bytes: 0, sandbox_limiter: None }
    }
}

/// Counts one more until it is dropped.
struct CountGuard<'a>(&'a AtomicUsize);

impl<'a> CountGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The configured limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdmissionLimits {
    /// Running calls.
    pub(crate) max_calls: usize,
    /// Started processes that have not ended.
    pub(crate) max_processes: usize,
    /// Queued calls of one caller.
    pub(crate) max_queued_per_principal: usize,
    /// Longest time in the queue.
    pub(crate) queue_timeout: Duration,
}

/// The permits of an admitted call.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Held as long as the work lasts.
    pub(crate) permit: Permit,
    /// Permission to use a sandbox, if the call needs one.
    pub(crate) sandbox_permit: Option<DeferredPermit>,
    /// Released when the first part of the call is over.
    pub(crate) start_permit: SharedPermit,
}

/// A limiter for long-lived work, which rejects instead of queueing.
#[derive(Debug)]
pub(crate) struct FailFastLimiter {
    limiter: Arc<Limiter>,
    capacity: usize,
    /// What the permits are for, in the plural.
    work: &'static str,
}

impl AdmissionControl {
    /// Creates the limiters for a machine with `cores` CPUs.
    pub(crate) fn new(limits: AdmissionLimits, cores: usize) -> Self {
        // Calls that wait for a start permit hold another permit, which limits their number.
        let start_permits = limits.max_calls.saturating_add(limits.max_processes);
        Self {
            call_limiter: Limiter::new(
                limits.max_calls,
                Sharing::Unlimited,
                limits.max_queued_per_principal,
            ),
            process_limiter: Limiter::new(limits.max_processes, Sharing::Unlimited, 0),
            start_limiter: Limiter::new(start_permits, Sharing::Unlimited, usize::MAX),
            validation_limiter: Limiter::new(
                (cores / 2).max(1),
                Sharing::Unlimited,
                limits.max_queued_per_principal,
            ),
            pending_bytes: Arc::default(),
            shell_leases: ShellLeases::default(),
            awaiting_start: AtomicUsize::new(0),
            awaiting_sandbox: AtomicUsize::new(0),
            limits,
            cores: cores.max(1),
        }
    }

    /// Permanently reserves headroom for callers that use little. Called when several have keys.
    pub(super) fn reserve_headroom(&self) {
        self.call_limiter.set_sharing(Sharing::KeepHeadroom);
        self.process_limiter.set_sharing(Sharing::KeepHeadroom);

        // If several callers compete, each has the cores to itself in turn. Two calls on one core
        // would each take twice as long.
        let contended_cap = (self.cores / 2).max(1);
        self.start_limiter.reconfigure(
            self.cores * MAX_STARTING_CALLS_PER_CORE,
            Sharing::CapWhenContended(contended_cap),
        );
    }

    /// Waits for all permits of a call. Cancel safe: the call leaves the queue.
    pub(super) async fn admit(
        &self,
        request: AdmissionRequest<'_>,
        shutdown: &Shutdown,
    ) -> Result<Admission, Error> {
        shutdown.check_accepting()?;
        let queue_deadline = Instant::now() + self.limits.queue_timeout;
        let max_calls = request.principal.concurrent_calls();
        let permit =
            self.acquire(&self.call_limiter, request, max_calls, queue_deadline, shutdown).await?;

        let awaiting_start = CountGuard::new(&self.awaiting_start);
        let sandbox_permit = match request.sandbox_limiter {
            Some(limiter) => {
                let _awaiting_sandbox = CountGuard::new(&self.awaiting_sandbox);
                Some(self.acquire(limiter, request, usize::MAX, queue_deadline, shutdown).await?)
            }
            None => None,
        };

        let start_permit = self.acquire_start_permit(request, queue_deadline, shutdown).await?;
        drop(awaiting_start);

        Ok(Admission {
            permit,
            sandbox_permit: sandbox_permit.map(DeferredPermit::Ready),
            start_permit,
        })
    }

    /// As [`Self::admit`], for a process that outlives the call that starts it. It waits for its
    /// sandbox as a process that has not started, which callers can see and end.
    pub(super) async fn admit_process(
        &self,
        request: AdmissionRequest<'_>,
        shutdown: &Shutdown,
    ) -> Result<Admission, Error> {
        shutdown.check_accepting()?;
        let permit = try_acquire_or_explain(
            &self.process_limiter,
            self.limits.max_processes,
            request.principal,
            "started processes",
            ", or end some processes (ListProcesses, SendSignal)",
        )?;

        let sandbox_permit = match request.sandbox_limiter {
            Some(limiter) => Some(self.acquire_sandbox_permit(limiter, request)?),
            None => None,
        };
        let queue_deadline = Instant::now() + self.limits.queue_timeout;
        let start_permit = self.acquire_start_permit(request, queue_deadline, shutdown).await?;

        Ok(Admission { permit, sandbox_permit, start_permit })
    }

    /// Waits for permission to validate a large request.
    pub(super) async fn acquire_validation_permit(
        &self,
        request: AdmissionRequest<'_>,
        shutdown: &Shutdown,
    ) -> Result<Permit, Error> {
        let queue_deadline = Instant::now() + self.limits.queue_timeout;
        self.acquire(&self.validation_limiter, request, usize::MAX, queue_deadline, shutdown).await
    }

    /// Returns the number of running calls.
    pub(crate) fn active(&self) -> usize {
        let awaiting_start = self.awaiting_start.load(Ordering::Relaxed);
        self.call_limiter.in_use().saturating_sub(awaiting_start)
    }

    /// Returns the number of queued calls.
    pub(crate) fn queued(&self) -> usize {
        self.validation_limiter.queued()
            + self.call_limiter.queued()
            + self.awaiting_sandbox.load(Ordering::Relaxed)
            + self.shell_leases.queued()
            + self.start_limiter.queued()
    }

    fn acquire_sandbox_permit(
        &self,
        limiter: &Arc<Limiter>,
        request: AdmissionRequest<'_>,
    ) -> Result<DeferredPermit, Error> {
        match limiter.acquire(request.principal.shared_name(), usize::MAX) {
            Ok(Acquire::Granted(permit)) => Ok(DeferredPermit::Ready(permit)),
            Ok(Acquire::Queued(pending)) => {
                let reservation = self.reserve_bytes(limiter, request, usize::MAX)?;
                Ok(DeferredPermit::Pending(pending, reservation))
            }
            Err(saturated) => Err(queue_full_error(saturated)),
        }
    }

    async fn acquire_start_permit(
        &self,
        request: AdmissionRequest<'_>,
        queue_deadline: Instant,
        shutdown: &Shutdown,
    ) -> Result<SharedPermit, Error> {
        let permit =
            self.acquire(&self.start_limiter, request, usize::MAX, queue_deadline, shutdown);
        Ok(SharedPermit::new(permit.await?))
    }

    async fn acquire(
        &self,
        limiter: &Arc<Limiter>,
        request: AdmissionRequest<'_>,
        max_in_use: usize,
        queue_deadline: Instant,
        shutdown: &Shutdown,
    ) -> Result<Permit, Error> {
        let principal = request.principal.shared_name();
        let mut pending = match limiter.acquire(principal, max_in_use) {
            Ok(Acquire::Granted(permit)) => return Ok(permit),
            Ok(Acquire::Queued(pending)) => pending,
            Err(saturated) => return Err(queue_full_error(saturated)),
        };

        let _reservation = self.reserve_bytes(limiter, request, max_in_use)?;
        let draining = shutdown.draining_token();
        tokio::select! {
            biased;
            () = draining.cancelled() => Err(Shutdown::draining_error()),
            permit = pending.wait() => Ok(permit),
            // A caller with a deadline gets the error before it.
            deadline_came_first = request.deadline.passes_before(queue_deadline) => {
                let saturated = limiter.reject(principal, max_in_use);
                Err(if deadline_came_first {
                    deadline_error(saturated)
                } else {
                    self.queue_timeout_error(saturated)
                })
            }
        }
    }

    /// Counts the request of a queued call against the byte budget.
    fn reserve_bytes(
        &self,
        limiter: &Limiter,
        request: AdmissionRequest<'_>,
        max_in_use: usize,
    ) -> Result<ByteReservation, Error> {
        let principal = request.principal.shared_name();
        let reserved = self.pending_bytes.reserve(principal, request.held_bytes as u64);
        reserved.map_err(|exceeded| {
            let saturated = limiter.reject(principal, max_in_use);
            let text = exceeded.describe("queued requests", request.held_bytes);
            saturated_error(text, saturated).with_metadata(LIMIT_KIND, "pending_bytes")
        })
    }

    fn queue_timeout_error(&self, saturated: Saturated) -> Error {
        let text = format!(
            "timed out after {:?} in the admission queue ({}). Retry after the delay in RetryInfo{}",
            self.limits.queue_timeout,
            describe_load(saturated),
            concurrency_advice(saturated)
        );
        saturated_error(text, saturated).with_metadata(LIMIT_KIND, "queue_timeout")
    }
}

impl FailFastLimiter {
    /// Allows `capacity` at a time. `work` names them in errors, in the plural.
    pub(crate) fn new(capacity: usize, work: &'static str) -> Self {
        let limiter = Limiter::new(capacity, Sharing::KeepHeadroom, 0);
        Self { limiter, capacity, work }
    }

    /// Acquires a permit, unless the limit is reached or the daemon is shutting down.
    pub(crate) fn try_acquire(
        &self,
        principal: &Principal,
        shutdown: &Shutdown,
    ) -> Result<Permit, Error> {
        shutdown.check_accepting()?;
        try_acquire_or_explain(&self.limiter, self.capacity, principal, self.work, "")
    }
}

/// Acquires a permit of `limiter` without waiting. The error tells how many are held by callers, and
/// ends with `alternative` to a retry.
fn try_acquire_or_explain(
    limiter: &Arc<Limiter>,
    capacity: usize,
    principal: &Principal,
    work: &str,
    alternative: &str,
) -> Result<Permit, Error> {
    let max_in_use = principal.concurrent_calls();
    let saturated = match limiter.try_acquire(principal.shared_name(), max_in_use) {
        Ok(permit) => return Ok(permit),
        Err(saturated) => saturated,
    };

    let limit = capacity.min(max_in_use);
    let Saturated { in_use, in_use_by_others, .. } = saturated;
    let load = if in_use >= limit {
        format!("this caller has {in_use} {work}, its maximum")
    } else if in_use + in_use_by_others >= capacity {
        format!(
            "this caller has {in_use} {work} and other callers have {in_use_by_others}, the maximum of {capacity}"
        )
    } else {
        format!(
            "this caller has {in_use} {work} and other callers have {in_use_by_others}; the rest of {capacity} is reserved for callers that use little"
        )
    };
    let text = format!("{load}. Retry after the delay in RetryInfo{alternative}");
    Err(Error::new(Reason::ResourceExhausted, text)
        .with_retry_after(LONG_LIVED_RETRY_AFTER)
        .with_metadata("limit", limit.to_string())
        .with_metadata(LIMIT_KIND, "concurrency"))
}

/// Returns the load that a queued call found, in words.
fn describe_load(saturated: Saturated) -> String {
    let Saturated { in_use, in_use_by_others, .. } = saturated;
    if own_calls(saturated) == 0 {
        return format!("other callers: {in_use_by_others} running");
    }

    format!(
        "this caller: {} queued, {in_use} running; other callers: {in_use_by_others} running",
        saturated.queued.saturating_sub(1)
    )
}

fn concurrency_advice(saturated: Saturated) -> &'static str {
    if own_calls(saturated) == 0 { "" } else { ", with fewer calls at a time" }
}

/// Returns the other calls of the same caller, queued and running.
fn own_calls(saturated: Saturated) -> usize {
    saturated.queued.saturating_sub(1) + saturated.in_use
}

fn deadline_error(saturated: Saturated) -> Error {
    let text = format!(
        "still queued at the deadline, and not started ({}). Retry after the delay in RetryInfo, with a longer deadline{}",
        describe_load(saturated),
        concurrency_advice(saturated)
    );
    Error::new(Reason::Timeout, text).with_retry_after(saturated.retry_after)
}

fn queue_full_error(saturated: Saturated) -> Error {
    let text = format!(
        "the queue of this caller is full ({} running, {} queued; limits.queued_calls). Retry after the delay in RetryInfo, with fewer calls at a time",
        saturated.in_use, saturated.queued
    );
    saturated_error(text, saturated)
        .with_metadata("limit", saturated.queued.to_string())
        .with_metadata(LIMIT_KIND, "queue")
}

fn saturated_error(text: String, saturated: Saturated) -> Error {
    Error::new(Reason::ResourceExhausted, text).with_retry_after(saturated.retry_after)
}
