//! Whether a call may begin, and when: places are bounded, and given fairly to those who call.
//!
//! ```text
//! rate of the caller ─▶ … ─▶ a place among those of the caller, and among all ─▶ a turn ─▶ the call begins
//!        │                             │ queue                                 │ queue
//!        ▼                             ▼                                       ▼
//!  RESOURCE_EXHAUSTED        RESOURCE_EXHAUSTED: too many wait, or too much;  DRAINING
//!  (to the nanosecond)       too long; TIMEOUT: the caller's deadline
//! ```
//!
//! * The **rate** is that of the caller's key ([`super::access::bucket`]). It counts what came in, before
//!   anything is done for it, once and whatever comes of it (`server/intake.rs`). What is refused says
//!   after which time it is not: exactly then, unless another call with the same key comes first.
//! * A **place** is kept for as long as the work lasts. There are as many as calls may go on at one time,
//!   for one caller as many as its key says. Started processes and transfers, which last long, have
//!   places of their own, and do not wait for them. What needs a sandbox takes a place among those who have
//!   one, too, and waits for it likewise; a started process does that as a process that has not begun.
//! * A **turn** is what makes one caller's calls as quick as though another did not flood the daemon. With
//!   thousands of places it is not these that calls wait for but the CPUs, and the kernel does not know
//!   whose work a thread does. So only a few calls are in their first part at one time, where they cost
//!   the daemon the most: a call gives its turn back when it has ended, when it waits for something, or
//!   when it has lasted for some time (`Tool::TURN`). Those of commands that go on are the kernel's to
//!   share out: they yield to the daemon.
//!
//! Both are given in turn to the callers who wait, and to the calls of each in the order in which they
//! came ([`crate::daemon::queue`]). Where there are several keys, one caller does not get the last places, which are
//! there for those who have few. Turns are fewer where several want them: then a call has the machine nearly
//! to itself, after that of another caller. So beside a flood it takes its own time, and that of one call of
//! the flood. Who waits holds no thread, and no more memory than there is for such ([`Backlog`]). What is
//! told to who is refused is an estimate then: as many calls as are before it, each as long as those of
//! late. Of what lasts as long as somebody wants, it is a fixed time.
//!
//! A request that is large, or costs as much, waits for its turn to be looked at, too, and that is done on a
//! thread that may block: looking takes as long as the request is, and others must not wait for it.
//!
//! A caller is a key, or a user of this machine: whoever has no key of his own shares with his user.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::{access::principal::Principal, idempotency::Waiters, shutdown::Shutdown};
use crate::daemon::{
    error::{Error, Reason},
    queue::{
        Acquire, ByteBudget, ByteBudgetExceeded, ByteReservation, DeferredPermit, Limiter, Permit,
        Saturated, SharedPermit, Sharing,
    },
    task,
    tool::response_deadline,
};

/// When to come again where places become free when somebody ends what has them.
const LONG_LIVED_RETRY_AFTER: Duration = Duration::from_secs(5);
/// Turns for each core, where callers have keys and one of them is alone: he who comes next waits for those
/// that go on then. A single caller could do somewhat more with more of them; where there are no keys, it
/// is one user whose calls these are, and there is no such bound.
const STARTING_CALLS_PER_CORE: usize = 1;

/// The places for calls.
#[derive(Debug)]
pub(crate) struct AdmissionControl {
    call_limiter: Arc<Limiter>,
    process_limiter: Arc<Limiter>,
    start_limiter: Arc<Limiter>,
    /// For looking at large requests.
    validation_limiter: Arc<Limiter>,
    pending_bytes: Arc<ByteBudget>,
    /// Calls that have a place, and have not had their turn.
    awaiting_start: AtomicUsize,
    /// Of these, those that wait for a sandbox.
    awaiting_sandbox: AtomicUsize,
    limits: AdmissionLimits,
    cores: usize,
}

/// Who wants a place for a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdmissionRequest<'a> {
    /// Who.
    pub(crate) principal: &'a Principal,
    /// When he stops waiting.
    pub(crate) deadline: WaitDeadline<'a>,
    /// What of his is held in memory meanwhile, and nobody else counts.
    pub(crate) held_bytes: usize,
    /// Where it takes a place, too, if it needs a sandbox.
    pub(crate) sandbox_limiter: Option<&'a Arc<Limiter>>,
}

/// When it is of no use any more that a call begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WaitDeadline<'a> {
    /// Then, if ever.
    At(Option<Instant>),
    /// When the last of these stops waiting.
    OfLastWaiter(&'a watch::Receiver<Waiters>),
}

impl WaitDeadline<'_> {
    /// Waits `until` then, or until there is just time to learn of it before the deadline. Answers whether it
    /// was for that.
    async fn passes_before(self, until: Instant) -> bool {
        let early = |deadline| {
            let now = Instant::now();
            response_deadline(now, until.saturating_duration_since(now), deadline)
        };
        let mut callers = match self {
            Self::At(deadline) => {
                let early = early(deadline);
                task::sleep_until(Some(early)).await;
                return early < until;
            }
            Self::OfLastWaiter(callers) => callers.clone(),
        };
        loop {
            let deadline = callers.borrow_and_update().last_deadline();
            let early = early(deadline);
            tokio::select! {
                () = task::sleep_until(Some(early)) => return early < until,
                // Nobody comes any more where it fails; but who has the ticket is here.
                Ok(()) = callers.changed() => {}
            }
        }
    }
}

impl<'a> From<&'a Principal> for AdmissionRequest<'a> {
    fn from(principal: &'a Principal) -> Self {
        Self { principal, deadline: WaitDeadline::At(None), held_bytes: 0, sandbox_limiter: None }
    }
}

/// One more, until this is dropped.
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

/// How much may go on at one time, and wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdmissionLimits {
    /// Calls that go on.
    pub(crate) max_calls: usize,
    /// Started processes that have not ended.
    pub(crate) max_processes: usize,
    /// Calls of one caller that wait.
    pub(crate) max_queued_per_principal: usize,
    /// How long one waits.
    pub(crate) queue_timeout: Duration,
}

/// What a call is let in to.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Its place, for as long as the work lasts.
    pub(crate) permit: Permit,
    /// Its place among those who have sandboxes, where it needs one.
    pub(crate) sandbox_permit: Option<DeferredPermit>,
    /// Its turn.
    pub(crate) start_permit: SharedPermit,
}

/// Places that are not waited for, of things that last long.
#[derive(Debug)]
pub(crate) struct FailFastLimiter {
    limiter: Arc<Limiter>,
    capacity: usize,
    refusal_text: &'static str,
}

impl AdmissionControl {
    /// Admits so many, on a machine with `cores` CPUs.
    pub(crate) fn new(limits: AdmissionLimits, cores: usize) -> Self {
        // Who waits for one has a place: they are as many as there are places.
        let turns = limits.max_calls.saturating_add(limits.max_processes);
        Self {
            call_limiter: Limiter::new(
                limits.max_calls,
                Sharing::Unlimited,
                limits.max_queued_per_principal,
            ),
            process_limiter: Limiter::new(limits.max_processes, Sharing::Unlimited, 0),
            start_limiter: Limiter::new(turns, Sharing::Unlimited, usize::MAX),
            validation_limiter: Limiter::new(
                (cores / 2).max(1),
                Sharing::Unlimited,
                limits.max_queued_per_principal,
            ),
            pending_bytes: Arc::default(),
            awaiting_start: AtomicUsize::new(0),
            awaiting_sandbox: AtomicUsize::new(0),
            limits,
            cores: cores.max(1),
        }
    }

    /// Leaves something for others from now on: callers are told apart by keys.
    pub(super) fn keep_headroom(&self) {
        self.call_limiter.set_sharing(Sharing::KeepHeadroom);
        self.process_limiter.set_sharing(Sharing::KeepHeadroom);
        // Of those who are not alone, each has the cores to himself in turn: two calls at once on one of
        // them would each take twice as long.
        let together = (self.cores / 2).max(1);
        self.start_limiter
            .reconfigure(self.cores * STARTING_CALLS_PER_CORE, Sharing::CapWhenContended(together));
    }

    /// Lets a call in, once there is room for it. May be cancelled: then it does not wait any more.
    pub(super) async fn admit(
        &self,
        request: AdmissionRequest<'_>,
        shutdown: &Shutdown,
    ) -> Result<Admission, Error> {
        shutdown.check_accepting()?;
        let until = Instant::now() + self.limits.queue_timeout;
        let most = request.principal.concurrent_calls();
        let permit = self.acquire(&self.call_limiter, request, most, until, shutdown);
        let permit = permit.await?;
        let counted = CountGuard::new(&self.awaiting_start);
        let sandbox_permit = match request.sandbox_limiter {
            Some(seats) => {
                let _counted = CountGuard::new(&self.awaiting_sandbox);
                let sandbox_permit = self.acquire(seats, request, usize::MAX, until, shutdown);
                Some(sandbox_permit.await?)
            }
            None => None,
        };
        let start_permit = self.acquire_start_permit(request, until, shutdown).await?;
        drop(counted);
        Ok(Admission {
            permit,
            sandbox_permit: sandbox_permit.map(DeferredPermit::Ready),
            start_permit,
        })
    }

    /// As [`Self::enter`], for a process that goes on when the call that started it has ended. It waits for its
    /// sandbox as a process that has not begun, which can be seen, and ended.
    pub(super) async fn admit_process(
        &self,
        request: AdmissionRequest<'_>,
        shutdown: &Shutdown,
    ) -> Result<Admission, Error> {
        shutdown.check_accepting()?;
        let principal = request.principal;
        let most = principal.concurrent_calls();
        let what = "processes were started and have not ended, and no more are started at a time: end some (ListProcesses, SendSignal), or retry later";
        let permit = try_acquire_or_explain(
            &self.process_limiter,
            self.limits.max_processes,
            principal,
            most,
            what,
        )?;
        let sandbox_permit =
            request.sandbox_limiter.map(|seats| self.sandbox_permit(seats, request));
        let sandbox_permit = sandbox_permit.transpose()?;
        let until = Instant::now() + self.limits.queue_timeout;
        let start_permit = self.acquire_start_permit(request, until, shutdown).await?;
        Ok(Admission { permit, sandbox_permit, start_permit })
    }

    /// Waits until a large request may be looked at.
    pub(super) async fn acquire_validation_permit(
        &self,
        request: AdmissionRequest<'_>,
        shutdown: &Shutdown,
    ) -> Result<Permit, Error> {
        let until = Instant::now() + self.limits.queue_timeout;
        self.acquire(&self.validation_limiter, request, usize::MAX, until, shutdown).await
    }

    /// Calls going on.
    pub(crate) fn active(&self) -> usize {
        let before_turn = self.awaiting_start.load(Ordering::Relaxed);
        self.call_limiter.in_use().saturating_sub(before_turn)
    }

    /// Calls that wait until they may begin.
    pub(crate) fn queued(&self) -> usize {
        let before_seat = self.awaiting_sandbox.load(Ordering::Relaxed);
        self.validation_limiter.queued()
            + self.call_limiter.queued()
            + before_seat
            + self.start_limiter.queued()
    }

    fn sandbox_permit(
        &self,
        limiter: &Arc<Limiter>,
        request: AdmissionRequest<'_>,
    ) -> Result<DeferredPermit, Error> {
        match limiter.acquire(request.principal.key(), usize::MAX) {
            Ok(Acquire::Granted(place)) => Ok(DeferredPermit::Ready(place)),
            Ok(Acquire::Queued(waiting)) => {
                let held = self.reserve_bytes(limiter, request, usize::MAX)?;
                Ok(DeferredPermit::Pending(waiting, held))
            }
            Err(full) => Err(queue_full_error(full)),
        }
    }

    async fn acquire_start_permit(
        &self,
        request: AdmissionRequest<'_>,
        until: Instant,
        shutdown: &Shutdown,
    ) -> Result<SharedPermit, Error> {
        let permit = self.acquire(&self.start_limiter, request, usize::MAX, until, shutdown);
        Ok(SharedPermit::new(permit.await?))
    }

    async fn acquire(
        &self,
        limiter: &Arc<Limiter>,
        request: AdmissionRequest<'_>,
        most: usize,
        until: Instant,
        shutdown: &Shutdown,
    ) -> Result<Permit, Error> {
        let name = request.principal.key();
        match limiter.acquire(name, most) {
            Ok(Acquire::Granted(place)) => Ok(place),
            Ok(Acquire::Queued(mut waiting)) => {
                let _waits = self.reserve_bytes(limiter, request, most)?;
                let draining = shutdown.draining_token();
                tokio::select! {
                    biased;
                    () = draining.cancelled() => Err(Shutdown::draining_error()),
                    place = waiting.wait() => Ok(place),
                    // Whoever has a deadline learns before it that nothing was begun.
                    is_in_vain = request.deadline.passes_before(until) => {
                        let saturated = limiter.saturation(name, most);
                        Err(if is_in_vain { deadline_error(saturated) } else { self.queue_timeout_error(saturated) })
                    }
                }
            }
            Err(full) => Err(queue_full_error(full)),
        }
    }

    /// Makes room for the request of a call that waits.
    fn reserve_bytes(
        &self,
        limiter: &Limiter,
        request: AdmissionRequest<'_>,
        most: usize,
    ) -> Result<ByteReservation, Error> {
        let name = request.principal.key();
        self.pending_bytes
            .reserve(name, request.held_bytes as u64)
            .map_err(|ByteBudgetExceeded(bytes)| {
                let saturated = limiter.saturation(name, most);
                let text = format!(
                    "requests of {bytes} bytes of this caller wait, and there is no room for {} more: retry after the time given, with fewer or smaller ones at a time",
                    request.held_bytes
                );
                saturated_error(text, saturated).with_metadata("full", "requests that wait")
            })
    }

    fn queue_timeout_error(&self, saturated: Saturated) -> Error {
        let text = format!(
            "the call has waited for {:?} and could not begin, as {}: retry after the time given{}",
            self.limits.queue_timeout,
            describe_load(saturated),
            concurrency_advice(saturated)
        );
        saturated_error(text, saturated).with_metadata("full", "time to wait")
    }
}

impl FailFastLimiter {
    /// `at_most` of them. `what` follows their number where there are no more.
    pub(crate) fn new(at_most: usize, what: &'static str) -> Self {
        Self {
            limiter: Limiter::new(at_most, Sharing::KeepHeadroom, 0),
            capacity: at_most,
            refusal_text: what,
        }
    }

    /// Takes one, if there is one and the daemon is not shutting down.
    pub(crate) fn try_acquire(
        &self,
        principal: &Principal,
        shutdown: &Shutdown,
    ) -> Result<Permit, Error> {
        shutdown.check_accepting()?;
        let most = principal.concurrent_calls();
        try_acquire_or_explain(&self.limiter, self.capacity, principal, most, self.refusal_text)
    }
}

fn try_acquire_or_explain(
    limiter: &Arc<Limiter>,
    at_most: usize,
    principal: &Principal,
    most: usize,
    what: &str,
) -> Result<Permit, Error> {
    let full = match limiter.try_acquire(principal.key(), most) {
        Ok(place) => return Ok(place),
        Err(full) => full,
    };
    let at_most = at_most.min(most);
    let text = match full.in_use >= at_most {
        true => format!("{at_most} {what}"),
        false => format!(
            "{} of {at_most} places are taken by this caller, and the rest is for others: {what}",
            full.in_use
        ),
    };
    Err(Error::new(Reason::ResourceExhausted, text)
        .retry_after(LONG_LIVED_RETRY_AFTER)
        .with_metadata("limit", at_most.to_string())
        .with_metadata("full", "places"))
}

/// Whom one finds before him who has waited.
fn describe_load(saturated: Saturated) -> String {
    let Saturated { in_use: held, in_use_by_others: elsewhere, .. } = saturated;
    match own_calls(saturated) {
        0 => format!("the places are taken: {elsewhere} calls of other callers go on"),
        _ => format!(
            "{} others of this caller wait and {held} go on, beside {elsewhere} of other callers",
            saturated.queued.saturating_sub(1)
        ),
    }
}

/// What he can do about it.
fn concurrency_advice(saturated: Saturated) -> &'static str {
    match own_calls(saturated) {
        0 => "",
        _ => ", with fewer at a time",
    }
}

/// Those of his own.
fn own_calls(saturated: Saturated) -> usize {
    saturated.queued.saturating_sub(1) + saturated.in_use
}

/// What a call is told whose deadline comes before its turn.
fn deadline_error(saturated: Saturated) -> Error {
    let text = format!(
        "the call could not begin before its deadline, and nothing was done, as {}: retry after the time given, with more time{}",
        describe_load(saturated),
        concurrency_advice(saturated)
    );
    Error::new(Reason::Timeout, text).retry_after(saturated.retry_after)
}

fn queue_full_error(saturated: Saturated) -> Error {
    let text = format!(
        "{} calls of this caller go on and {} wait, and no more may wait at a time: retry after the time given, with fewer at a time",
        saturated.in_use, saturated.queued
    );
    saturated_error(text, saturated)
        .with_metadata("limit", saturated.queued.to_string())
        .with_metadata("full", "queue")
}

fn saturated_error(text: String, saturated: Saturated) -> Error {
    Error::new(Reason::ResourceExhausted, text).retry_after(saturated.retry_after)
}
