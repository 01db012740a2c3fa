//! Whether a call may begin, and when: places are bounded, and given fairly to those who call.
//!
//! ```text
//! rate of the caller ─▶ a place among those of the caller, and among all ─▶ a turn ─▶ the call begins
//!        │                          │ queue                                 │ queue
//!        ▼                          ▼                                       ▼
//!  RESOURCE_EXHAUSTED     RESOURCE_EXHAUSTED: too many wait, or too long;  DRAINING
//!  (to the nanosecond)
//! ```
//!
//! * The **rate** is that of the caller's key ([`super::access::bucket`]). What is refused says after which time it is not:
//!   exactly then, unless another call with the same key comes first.
//! * A **place** is kept for as long as the work lasts. There are as many as calls may go on at one time,
//!   for one caller as many as its key says. Started processes and transfers, which last long, have
//!   places of their own, and do not wait for them.
//! * A **turn** is what makes one caller's calls as quick as though another did not flood the daemon. With
//!   thousands of places it is not these that calls wait for but the CPUs, and the kernel does not know
//!   whose work a thread does. So only a few calls are in their first part at one time, where they cost
//!   the daemon the most: a call gives its turn back when it has ended, when it waits for something, or
//!   when it has lasted for some time (`Tool::TURN`). Those of commands that go on are the kernel's to
//!   share out: they yield to the daemon.
//!
//! Both are given in turn to the callers who wait, and to the calls of each in the order in which they
//! came ([`crate::daemon::queue`]). Of the places, one caller does not get the last, which are there for
//! whoever comes next. Turns are fewer where several want them: then a call has the machine nearly to
//! itself, after that of another caller. So beside a flood it takes its own time, and that of one call of
//! the flood. Who waits holds no thread. What is told to who is refused is an estimate then: as
//! many calls as are before it, each as long as those of late, or as those that hold the places now.
//!
//! A caller is a key, or a user of this machine: whoever has no key of his own shares with his user.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{access::principal::Principal, drain::Drain};
use crate::daemon::{
    error::{Error, Reason},
    queue::{Entry, Full, Place, Queue, Share, Turn},
    task,
};

/// Places of one caller: nearly all when there is nobody else, and each who comes then finds some.
const SHARE: Share = Share::OfFree(15);
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
    limits: Limits,
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
    /// Admits so many, on a machine with `cores` CPUs. `has_keys`: whether callers are told apart by them.
    pub(crate) fn new(limits: Limits, cores: usize, has_keys: bool) -> Self {
        let turns = match has_keys {
            true => cores.max(1) * TURNS_PER_CORE,
            false => limits.calls.saturating_add(limits.processes),
        };
        // Of those who are not, each has the cores to himself in turn: two calls at once on one of them
        // would each take twice as long.
        let together = (cores / 2).max(1);
        Self {
            calls: Queue::new(limits.calls, SHARE, limits.queued),
            processes: Queue::new(limits.processes, SHARE, 0),
            // Who waits for one has a place: they are as many as there are places.
            turns: Queue::new(turns, Share::Alone(together), usize::MAX),
            limits,
        }
    }

    /// Lets a call in, once there is room for it. May be cancelled: then it does not wait any more.
    pub(crate) async fn enter(
        &self,
        principal: &Principal,
        drain: &Drain,
    ) -> Result<Admitted, Error> {
        begin(principal, drain)?;
        let until = Instant::now() + self.limits.wait;
        let most = principal.concurrent_calls();
        let place = self.take(&self.calls, principal, most, until, drain);
        let place = place.await?;
        let turn = self.turn(principal, until, drain).await?;
        Ok(Admitted { place, turn })
    }

    /// As [`Self::enter`], for a process that goes on when the call that started it has ended.
    pub(crate) async fn enter_process(
        &self,
        principal: &Principal,
        drain: &Drain,
    ) -> Result<Admitted, Error> {
        begin(principal, drain)?;
        let most = principal.concurrent_calls();
        let what = "processes were started and have not ended, and no more are started at a time: end some (ListProcesses, SendSignal), or retry later";
        let place = at_once(
            &self.processes,
            self.limits.processes,
            principal,
            most,
            what,
        )?;
        let until = Instant::now() + self.limits.wait;
        let turn = self.turn(principal, until, drain).await?;
        Ok(Admitted { place, turn })
    }

    /// Calls going on.
    pub(crate) fn active(&self) -> usize {
        self.calls.held().saturating_sub(self.turns.waiting())
    }

    /// Calls that wait until they may begin.
    pub(crate) fn waiting(&self) -> usize {
        self.calls.waiting() + self.turns.waiting()
    }

    async fn turn(
        &self,
        principal: &Principal,
        until: Instant,
        drain: &Drain,
    ) -> Result<Turn, Error> {
        let place = self.take(&self.turns, principal, usize::MAX, until, drain);
        Ok(Turn::new(place.await?))
    }

    async fn take(
        &self,
        queue: &Arc<Queue>,
        principal: &Principal,
        most: usize,
        until: Instant,
        drain: &Drain,
    ) -> Result<Place, Error> {
        let name = principal.lane();
        match queue.enter(name, most) {
            Ok(Entry::Place(place)) => Ok(place),
            Ok(Entry::Wait(mut waiting)) => {
                let draining = drain.begun_token();
                tokio::select! {
                    biased;
                    () = draining.cancelled() => Err(Drain::refusal()),
                    place = waiting.place() => Ok(place),
                    () = task::until(Some(until)) => Err(self.too_long(queue.fullness(name, most))),
                }
            }
            Err(full) => Err(too_many(full)),
        }
    }

    fn too_long(&self, full: Full) -> Error {
        let text = format!(
            "the call has waited for {:?} and could not begin, as {} others of this caller wait and {} go on: retry after the time given, with fewer at a time",
            self.limits.wait,
            full.waiting.saturating_sub(1),
            full.held
        );
        exhausted(text, full)
    }
}

impl Places {
    /// `at_most` of them. `what` follows their number where there are no more.
    pub(crate) fn new(at_most: usize, what: &'static str) -> Self {
        Self {
            queue: Queue::new(at_most, SHARE, 0),
            at_most,
            what,
        }
    }

    /// Takes one, if there is one and the daemon is not shutting down.
    pub(crate) fn enter(&self, principal: &Principal, drain: &Drain) -> Result<Place, Error> {
        begin(principal, drain)?;
        let most = principal.concurrent_calls();
        at_once(&self.queue, self.at_most, principal, most, self.what)
    }
}

/// Refuses who comes too late, or too often.
fn begin(principal: &Principal, drain: &Drain) -> Result<(), Error> {
    if drain.has_begun() {
        return Err(Drain::refusal());
    }
    principal.count_call(Instant::now())
}

fn at_once(
    queue: &Arc<Queue>,
    at_most: usize,
    principal: &Principal,
    most: usize,
    what: &str,
) -> Result<Place, Error> {
    let full = match queue.enter(principal.lane(), most) {
        Ok(Entry::Place(place)) => return Ok(place),
        Ok(Entry::Wait(_)) => queue.fullness(principal.lane(), most),
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
    Err(exhausted(text, full).with("limit", at_most.to_string()))
}

fn too_many(full: Full) -> Error {
    let text = format!(
        "{} calls of this caller go on and {} wait, and no more may wait at a time: retry after the time given, with fewer at a time",
        full.held, full.waiting
    );
    exhausted(text, full).with("limit", full.waiting.to_string())
}

fn exhausted(text: String, full: Full) -> Error {
    Error::new(Reason::ResourceExhausted, text).retry_after(full.retry_after)
}
