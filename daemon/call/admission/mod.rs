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

use super::{access::principal::Principal, drain::Drain, idempotency::Callers};
use crate::daemon::{
    error::{Error, Reason},
    queue::{Backlog, Entry, Full, Place, Queue, Seat, Share, TooMuch, Turn, Waits},
    task,
    tool::limit,
};

/// When to come again where places become free when somebody ends what has them.
const RETRY_LASTING: Duration = Duration::from_secs(5);
/// Turns for each core, where callers have keys and one of them is alone: he who comes next waits for those
/// that go on then. A single caller could do somewhat more with more of them; where there are no keys, it
/// is one user whose calls these are, and there is no such bound.
const TURNS_PER_CORE: usize = 1;

/// The places for calls.
#[derive(Debug)]
pub(crate) struct Admission {
    calls: Arc<Queue>,
    processes: Arc<Queue>,
    turns: Arc<Queue>,
    /// For looking at large requests.
    looks: Arc<Queue>,
    backlog: Arc<Backlog>,
    /// Calls that have a place, and have not had their turn.
    before_turn: AtomicUsize,
    /// Of these, those that wait for a sandbox.
    before_seat: AtomicUsize,
    limits: Limits,
    cores: usize,
}

/// Who wants a place for a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Applicant<'a> {
    /// Who.
    pub(crate) principal: &'a Principal,
    /// When he stops waiting.
    pub(crate) deadline: Deadline<'a>,
    /// What of his is held in memory meanwhile, and nobody else counts.
    pub(crate) bytes: usize,
    /// Where it takes a place, too, if it needs a sandbox.
    pub(crate) seats: Option<&'a Arc<Queue>>,
}

/// When it is of no use any more that a call begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Deadline<'a> {
    /// Then, if ever.
    At(Option<Instant>),
    /// When the last of these stops waiting.
    OfCallers(&'a watch::Receiver<Callers>),
}

impl Deadline<'_> {
    /// Waits `until` then, or until there is just time to learn of it before the deadline. Answers whether it
    /// was for that.
    async fn comes_before(self, until: Instant) -> bool {
        let early = |deadline| {
            let now = Instant::now();
            limit(now, until.saturating_duration_since(now), deadline)
        };
        let mut callers = match self {
            Self::At(deadline) => {
                let early = early(deadline);
                task::until(Some(early)).await;
                return early < until;
            }
            Self::OfCallers(callers) => callers.clone(),
        };
        loop {
            let deadline = callers.borrow_and_update().deadline();
            let early = early(deadline);
            tokio::select! {
                () = task::until(Some(early)) => return early < until,
                // Nobody comes any more where it fails; but who has the ticket is here.
                Ok(()) = callers.changed() => {}
            }
        }
    }
}

impl<'a> From<&'a Principal> for Applicant<'a> {
    fn from(principal: &'a Principal) -> Self {
        Self { principal, deadline: Deadline::At(None), bytes: 0, seats: None }
    }
}

/// One more, until this is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How much may go on at one time, and wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Calls that go on.
    pub(crate) calls: usize,
    /// Started processes that have not ended.
    pub(crate) processes: usize,
    /// Calls of one caller that wait.
    pub(crate) queued: usize,
    /// How long one waits.
    pub(crate) wait: Duration,
}

/// What a call is let in to.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// Its place, for as long as the work lasts.
    pub(crate) place: Place,
    /// Its place among those who have sandboxes, where it needs one.
    pub(crate) seat: Option<Seat>,
    /// Its turn.
    pub(crate) turn: Turn,
}

/// Places that are not waited for, of things that last long.
#[derive(Debug)]
pub(crate) struct Places {
    queue: Arc<Queue>,
    at_most: usize,
    what: &'static str,
}

impl Admission {
    /// Admits so many, on a machine with `cores` CPUs.
    pub(crate) fn new(limits: Limits, cores: usize) -> Self {
        // Who waits for one has a place: they are as many as there are places.
        let turns = limits.calls.saturating_add(limits.processes);
        Self {
            calls: Queue::new(limits.calls, Share::All, limits.queued),
            processes: Queue::new(limits.processes, Share::All, 0),
            turns: Queue::new(turns, Share::All, usize::MAX),
            looks: Queue::new((cores / 2).max(1), Share::All, limits.queued),
            backlog: Arc::default(),
            before_turn: AtomicUsize::new(0),
            before_seat: AtomicUsize::new(0),
            limits,
            cores: cores.max(1),
        }
    }

    /// Leaves something for others from now on: callers are told apart by keys.
    pub(super) fn share(&self) {
        self.calls.share(Share::Reserve);
        self.processes.share(Share::Reserve);
        // Of those who are not alone, each has the cores to himself in turn: two calls at once on one of
        // them would each take twice as long.
        let together = (self.cores / 2).max(1);
        self.turns.change(self.cores * TURNS_PER_CORE, Share::Alone(together));
    }

    /// Lets a call in, once there is room for it. May be cancelled: then it does not wait any more.
    pub(super) async fn enter(
        &self,
        applicant: Applicant<'_>,
        drain: &Drain,
    ) -> Result<Admitted, Error> {
        drain.refuse_new()?;
        let until = Instant::now() + self.limits.wait;
        let most = applicant.principal.concurrent_calls();
        let place = self.take(&self.calls, applicant, most, until, drain);
        let place = place.await?;
        let counted = Counted::new(&self.before_turn);
        let seat = match applicant.seats {
            Some(seats) => {
                let _counted = Counted::new(&self.before_seat);
                let seat = self.take(seats, applicant, usize::MAX, until, drain);
                Some(seat.await?)
            }
            None => None,
        };
        let turn = self.turn(applicant, until, drain).await?;
        drop(counted);
        Ok(Admitted { place, seat: seat.map(Seat::Taken), turn })
    }

    /// As [`Self::enter`], for a process that goes on when the call that started it has ended. It waits for its
    /// sandbox as a process that has not begun, which can be seen, and ended.
    pub(super) async fn enter_process(
        &self,
        applicant: Applicant<'_>,
        drain: &Drain,
    ) -> Result<Admitted, Error> {
        drain.refuse_new()?;
        let principal = applicant.principal;
        let most = principal.concurrent_calls();
        let what = "processes were started and have not ended, and no more are started at a time: end some (ListProcesses, SendSignal), or retry later";
        let place = at_once(&self.processes, self.limits.processes, principal, most, what)?;
        let seat = applicant.seats.map(|seats| self.seat(seats, applicant));
        let seat = seat.transpose()?;
        let until = Instant::now() + self.limits.wait;
        let turn = self.turn(applicant, until, drain).await?;
        Ok(Admitted { place, seat, turn })
    }

    /// Waits until a large request may be looked at.
    pub(super) async fn look(
        &self,
        applicant: Applicant<'_>,
        drain: &Drain,
    ) -> Result<Place, Error> {
        let until = Instant::now() + self.limits.wait;
        self.take(&self.looks, applicant, usize::MAX, until, drain).await
    }

    /// Calls going on.
    pub(crate) fn active(&self) -> usize {
        let before_turn = self.before_turn.load(Ordering::Relaxed);
        self.calls.held().saturating_sub(before_turn)
    }

    /// Calls that wait until they may begin.
    pub(crate) fn waiting(&self) -> usize {
        let before_seat = self.before_seat.load(Ordering::Relaxed);
        self.looks.waiting() + self.calls.waiting() + before_seat + self.turns.waiting()
    }

    fn seat(&self, seats: &Arc<Queue>, applicant: Applicant<'_>) -> Result<Seat, Error> {
        match seats.enter(applicant.principal.lane(), usize::MAX) {
            Ok(Entry::Place(place)) => Ok(Seat::Taken(place)),
            Ok(Entry::Wait(waiting)) => {
                let held = self.keep(seats, applicant, usize::MAX)?;
                Ok(Seat::Coming(waiting, held))
            }
            Err(full) => Err(too_many(full)),
        }
    }

    async fn turn(
        &self,
        applicant: Applicant<'_>,
        until: Instant,
        drain: &Drain,
    ) -> Result<Turn, Error> {
        let place = self.take(&self.turns, applicant, usize::MAX, until, drain);
        Ok(Turn::new(place.await?))
    }

    async fn take(
        &self,
        queue: &Arc<Queue>,
        applicant: Applicant<'_>,
        most: usize,
        until: Instant,
        drain: &Drain,
    ) -> Result<Place, Error> {
        let name = applicant.principal.lane();
        match queue.enter(name, most) {
            Ok(Entry::Place(place)) => Ok(place),
            Ok(Entry::Wait(mut waiting)) => {
                let _waits = self.keep(queue, applicant, most)?;
                let draining = drain.begun_token();
                tokio::select! {
                    biased;
                    () = draining.cancelled() => Err(Drain::refusal()),
                    place = waiting.place() => Ok(place),
                    // Whoever has a deadline learns before it that nothing was begun.
                    is_in_vain = applicant.deadline.comes_before(until) => {
                        let full = queue.fullness(name, most);
                        Err(if is_in_vain { in_vain(full) } else { self.too_long(full) })
                    }
                }
            }
            Err(full) => Err(too_many(full)),
        }
    }

    /// Makes room for the request of a call that waits.
    fn keep(&self, queue: &Queue, applicant: Applicant<'_>, most: usize) -> Result<Waits, Error> {
        let name = applicant.principal.lane();
        self.backlog
            .add(name, applicant.bytes as u64)
            .map_err(|TooMuch(bytes)| {
                let full = queue.fullness(name, most);
                let text = format!(
                    "requests of {bytes} bytes of this caller wait, and there is no room for {} more: retry after the time given, with fewer or smaller ones at a time",
                    applicant.bytes
                );
                exhausted(text, full).with("full", "requests that wait")
            })
    }

    fn too_long(&self, full: Full) -> Error {
        let text = format!(
            "the call has waited for {:?} and could not begin, as {}: retry after the time given{}",
            self.limits.wait,
            others(full),
            fewer(full)
        );
        exhausted(text, full).with("full", "time to wait")
    }
}

impl Places {
    /// `at_most` of them. `what` follows their number where there are no more.
    pub(crate) fn new(at_most: usize, what: &'static str) -> Self {
        Self { queue: Queue::new(at_most, Share::Reserve, 0), at_most, what }
    }

    /// Takes one, if there is one and the daemon is not shutting down.
    pub(crate) fn enter(&self, principal: &Principal, drain: &Drain) -> Result<Place, Error> {
        drain.refuse_new()?;
        let most = principal.concurrent_calls();
        at_once(&self.queue, self.at_most, principal, most, self.what)
    }
}

fn at_once(
    queue: &Arc<Queue>,
    at_most: usize,
    principal: &Principal,
    most: usize,
    what: &str,
) -> Result<Place, Error> {
    let full = match queue.at_once(principal.lane(), most) {
        Ok(place) => return Ok(place),
        Err(full) => full,
    };
    let at_most = at_most.min(most);
    let text = match full.held >= at_most {
        true => format!("{at_most} {what}"),
        false => format!(
            "{} of {at_most} places are taken by this caller, and the rest is for others: {what}",
            full.held
        ),
    };
    Err(Error::new(Reason::ResourceExhausted, text)
        .retry_after(RETRY_LASTING)
        .with("limit", at_most.to_string())
        .with("full", "places"))
}

/// Whom one finds before him who has waited.
fn others(full: Full) -> String {
    let Full { held, elsewhere, .. } = full;
    match own(full) {
        0 => format!("the places are taken: {elsewhere} calls of other callers go on"),
        _ => format!(
            "{} others of this caller wait and {held} go on, beside {elsewhere} of other callers",
            full.waiting.saturating_sub(1)
        ),
    }
}

/// What he can do about it.
fn fewer(full: Full) -> &'static str {
    match own(full) {
        0 => "",
        _ => ", with fewer at a time",
    }
}

/// Those of his own.
fn own(full: Full) -> usize {
    full.waiting.saturating_sub(1) + full.held
}

/// What a call is told whose deadline comes before its turn.
fn in_vain(full: Full) -> Error {
    let text = format!(
        "the call could not begin before its deadline, and nothing was done, as {}: retry after the time given, with more time{}",
        others(full),
        fewer(full)
    );
    Error::new(Reason::Timeout, text).retry_after(full.retry_after)
}

fn too_many(full: Full) -> Error {
    let text = format!(
        "{} calls of this caller go on and {} wait, and no more may wait at a time: retry after the time given, with fewer at a time",
        full.held, full.waiting
    );
    exhausted(text, full).with("limit", full.waiting.to_string()).with("full", "queue")
}

fn exhausted(text: String, full: Full) -> Error {
    Error::new(Reason::ResourceExhausted, text).retry_after(full.retry_after)
}
