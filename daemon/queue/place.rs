//! The places themselves, and waiting for one.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    line::{Line, Name, Share},
    pace::{Pace, number, told},
};

/// A number of places, and those who wait for them.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// Calls of one caller that may wait.
    bound: usize,
}

#[derive(Debug)]
struct State {
    line: Line<oneshot::Sender<Place>>,
    pace: Pace,
}

/// A place, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Queue>,
    name: Name,
    since: Instant,
}

/// There is no place, and none to wait for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    /// Places that the caller has.
    pub(crate) held: usize,
    /// Calls of the caller that wait.
    pub(crate) waiting: usize,
    /// Places that others have.
    pub(crate) elsewhere: usize,
    /// When there may be room.
    pub(crate) retry_after: Duration,
}

/// What was found at the door.
#[derive(Debug)]
pub(crate) enum Entry {
    /// A place.
    Place(Place),
    /// None is free: it will come.
    Wait(Waiting),
}

/// Somebody who waits for a place, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    queue: Arc<Queue>,
    name: Name,
    number: u64,
    place: oneshot::Receiver<Place>,
}

impl Queue {
    /// `at_most` places, of which one caller has his `share`; `bound` of his calls may wait.
    pub(crate) fn new(at_most: usize, share: Share, bound: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                line: Line::new(at_most, share),
                pace: Pace::new(Instant::now()),
            }),
            bound,
        })
    }

    /// Has so many places from now on, of which one caller has his `share`.
    pub(crate) fn change(self: &Arc<Self>, at_most: usize, share: Share) {
        let mut state = self.state();
        state.line.change(at_most, share);
        self.hand_over(state);
    }

    /// Another share of them is one caller's from now on.
    pub(crate) fn share(self: &Arc<Self>, share: Share) {
        let at_most = self.state().line.at_most();
        self.change(at_most, share);
    }

    /// Takes a place for a caller who may have `most`, or gets in line for one.
    pub(crate) fn enter(self: &Arc<Self>, name: &Name, most: usize) -> Result<Entry, Full> {
        let now = Instant::now();
        let mut state = self.state();
        if state.line.take(name, most) {
            state.pace.took(now);
            return Ok(Entry::Place(self.place(name, now)));
        }
        if self.bound == 0 {
            return Err(self.full(&mut state, name, most));
        }
        let (sender, receiver) = oneshot::channel();
        match state.line.wait(name, most, self.bound, sender) {
            Ok(number) => Ok(Entry::Wait(Waiting {
                queue: Arc::clone(self),
                name: Arc::clone(name),
                number,
                place: receiver,
            })),
            Err(_) => Err(self.full(&mut state, name, most)),
        }
    }

    /// Takes a place for a caller who may have `most`, or does not wait for one.
    pub(crate) fn at_once(self: &Arc<Self>, name: &Name, most: usize) -> Result<Place, Full> {
        match self.enter(name, most)? {
            Entry::Place(place) => Ok(place),
            Entry::Wait(_) => Err(self.fullness(name, most)),
        }
    }

    /// How full it is for a caller who may have `most`.
    pub(crate) fn fullness(&self, name: &Name, most: usize) -> Full {
        self.full(&mut self.state(), name, most)
    }

    /// Places that are taken.
    pub(crate) fn held(&self) -> usize {
        self.state().line.held()
    }

    /// Those who wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state().line.waiting()
    }

    fn full(&self, state: &mut State, name: &Name, most: usize) -> Full {
        let (held, waiting) = (state.line.held_by(name), state.line.waiting_of(name));
        let (lanes, width) = (state.line.lanes_waiting(), state.line.at_most().min(most));
        let now = Instant::now();
        let each = state.pace.between(lanes, width, now);
        // Where the line is as long as it may be, its first must get a place, and those of the others who
        // are sent away; else all of it must.
        let retry_after = match waiting >= self.bound {
            true => state.pace.put_off(name, each, now),
            false => told(each.saturating_mul(number(waiting + 1))),
        };
        Full { held, waiting, elsewhere: state.line.held() - held, retry_after }
    }

    fn place(self: &Arc<Self>, name: &Name, since: Instant) -> Place {
        Place { queue: Arc::clone(self), name: Arc::clone(name), since }
    }

    /// Gives free places to whose turn it is. The lock is not held while they are told: one who has left
    /// gives his place back at once.
    fn hand_over(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let mut given = Vec::new();
        let now = Instant::now();
        while let Some((name, waiter)) = state.line.next() {
            state.pace.took(now);
            given.push((waiter, self.place(&name, now)));
        }
        drop(state);
        for (waiter, place) in given {
            // Dropped with the error, and so given back.
            let _left = waiter.send(place);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Waits for the place.
    pub(crate) async fn place(&mut self) -> Place {
        match (&mut self.place).await {
            Ok(place) => place,
            // It cannot close: the queue, which holds the sender, is held by this.
            Err(_) => std::future::pending().await,
        }
    }

    /// As [`Self::place`], on a thread that may block; none if it cannot come any more.
    pub(crate) fn blocking_place(mut self) -> Option<Place> {
        let (_, never) = oneshot::channel();
        std::mem::replace(&mut self.place, never).blocking_recv().ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.line.leave(&self.name, self.number);
        // Others may have waited for this one's turn.
        self.queue.hand_over(state);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.line.give_back(&self.name);
        state.pace.gave_back(self.since, Instant::now());
        self.queue.hand_over(state);
    }
}
