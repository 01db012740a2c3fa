//! Who has a place, who waits for one, and whose turn it is: the rules, without anything that waits.
//!
//! Each caller has a lane. A free place goes to the lane that has had the fewest, and in it to whom has
//! waited longest. Lanes are compared by start-time fair queueing (Goyal, Vin and Cheng, 1996): each place
//! moves its lane's tag on by one, and a lane that wants one after a pause begins where the others are, so
//! that nobody saves up places while he wants none, and nobody is late who has just come.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::reserve::Reserve;

/// What tells one caller's lane from another's.
pub(crate) type Name = Arc<str>;

/// Places, and who waits for them. `W` is how somebody who waits is told.
#[derive(Debug)]
pub(super) struct Line<W> {
    taken: usize,
    at_most: usize,
    share: Share,
    lanes: HashMap<Name, Lane<W>>,
    /// The lanes in which somebody waits, in the order in which they began to.
    turns: Vec<Name>,
    /// Where the lanes are that want places.
    now: u64,
    waiting: usize,
    last: u64,
}

/// What one caller may have, so that there is something for others.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Share {
    /// All: there is nobody else.
    All,
    /// All but a quarter, which is there for those who have few: of 2048, 1536 for the first, and 32 for each
    /// of 16 who come when he has them, however long he keeps them. Where there are several, one is left at
    /// least.
    Reserve,
    /// This many times as many places as he leaves free. For what does not last: the third to come finds
    /// little.
    OfFree(usize),
    /// All while he is alone; where others have or want some, all callers together have so many.
    Alone(usize),
}

/// Lanes above which those are looked for that can be forgotten.
const MANY: usize = 1024;

#[derive(Debug)]
struct Lane<W> {
    /// Where it is among the others, when it wants a place.
    tag: u64,
    held: usize,
    /// Most that it may have, whatever is free.
    most: usize,
    /// With numbers by which they leave.
    waiting: VecDeque<(u64, W)>,
}

impl<W> Line<W> {
    /// So many places, none of them taken.
    pub(super) fn new(at_most: usize, share: Share) -> Self {
        Self {
            taken: 0,
            at_most,
            share,
            lanes: HashMap::new(),
            turns: Vec::new(),
            now: 0,
            waiting: 0,
            last: 0,
        }
    }

    /// Has so many places from now on. Nobody loses his: if there are more than that, those that are given
    /// back are not given to others.
    pub(super) fn change(&mut self, at_most: usize, share: Share) {
        self.at_most = at_most;
        self.share = share;
    }

    /// Takes a place, if one is free that nobody waits for who could have it, and the lane may have
    /// another one. `most` counts from now on.
    pub(super) fn take(&mut self, name: &Name, most: usize) -> bool {
        self.lane(name, most);
        let is_next = self.lanes.get(name).is_some_and(|lane| {
            lane.waiting.is_empty() && self.next_turn().is_none() && self.may_take(lane)
        });
        if is_next {
            self.serve(name);
        } else {
            self.forget(name);
        }
        is_next
    }

    /// Lets somebody wait behind the others of his lane, unless `bound` wait there already. Answers the
    /// number to leave with.
    pub(super) fn wait(
        &mut self,
        name: &Name,
        most: usize,
        bound: usize,
        waiter: W,
    ) -> Result<u64, W> {
        let number = self.last + 1;
        let lane = self.lane(name, most);
        if lane.waiting.len() >= bound {
            self.forget(name);
            return Err(waiter);
        }
        lane.waiting.push_back((number, waiter));
        let is_first = lane.waiting.len() == 1;
        self.last = number;
        self.waiting += 1;
        if is_first {
            self.turns.push(Arc::clone(name));
        }
        Ok(number)
    }

    /// Takes somebody out who waits. He may have got a place meanwhile.
    pub(super) fn leave(&mut self, name: &Name, number: u64) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let Ok(position) = lane.waiting.binary_search_by_key(&number, |(number, _)| *number) else {
            return;
        };
        lane.waiting.remove(position);
        self.waiting -= 1;
        if lane.waiting.is_empty() {
            self.turns.retain(|turn| turn != name);
            self.forget(name);
        }
    }

    /// Takes a place back.
    pub(super) fn give_back(&mut self, name: &Name) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.held -= 1;
            self.taken -= 1;
            self.forget(name);
        }
    }

    /// Gives a free place to whose turn it is, if there is one and somebody who may have it.
    pub(super) fn next(&mut self) -> Option<(Name, W)> {
        let position = self.next_turn()?;
        let name = self.turns.remove(position);
        let lane = self.lanes.get_mut(&name)?;
        let (_, waiter) = lane.waiting.pop_front()?;
        self.waiting -= 1;
        if !lane.waiting.is_empty() {
            self.turns.push(Arc::clone(&name));
        }
        self.serve(&name);
        Some((name, waiter))
    }

    /// Places that there are.
    pub(super) fn at_most(&self) -> usize {
        self.at_most
    }

    /// Places that are taken.
    pub(super) fn held(&self) -> usize {
        self.taken
    }

    /// Places that a lane has.
    pub(super) fn held_by(&self, name: &Name) -> usize {
        self.lanes.get(name).map_or(0, |lane| lane.held)
    }

    /// Those who wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Those who wait in a lane.
    pub(super) fn waiting_of(&self, name: &Name) -> usize {
        self.lanes.get(name).map_or(0, |lane| lane.waiting.len())
    }

    /// Lanes in which somebody waits.
    pub(super) fn lanes_waiting(&self) -> usize {
        self.turns.len()
    }

    /// Where the lane stands that gets the next place.
    fn next_turn(&self) -> Option<usize> {
        let lanes = self.turns.iter().enumerate();
        let lanes = lanes.filter_map(|(position, name)| {
            let lane = self.lanes.get(name)?;
            self.may_take(lane).then_some((lane.tag, position))
        });
        // Of those that have had as many, the one that has waited for longer.
        lanes.min().map(|(_, position)| position)
    }

    /// Whether a lane may have another place.
    fn may_take(&self, lane: &Lane<W>) -> bool {
        let free = self.at_most.saturating_sub(self.taken);
        let fits = match self.share {
            Share::All => true,
            Share::Reserve => {
                let (own, left) = (lane.held + 1, free.saturating_sub(1));
                Reserve::of_places(self.at_most).allows(own as u64, left as u64)
            }
            Share::OfFree(times) => lane.held < times.saturating_mul(free),
            Share::Alone(together) => {
                let others_wait = self.turns.len() > usize::from(!lane.waiting.is_empty());
                self.taken < together || lane.held == self.taken && !others_wait
            }
        };
        free > 0 && lane.held < lane.most && fits
    }

    /// Gives a lane a place.
    fn serve(&mut self, name: &Name) {
        if let Some(lane) = self.lanes.get_mut(name) {
            self.now = self.now.max(lane.tag);
            lane.tag += 1;
            lane.held += 1;
            self.taken += 1;
        }
        if self.lanes.len() > MANY {
            let now = self.now;
            self.lanes.retain(|_, lane| !lane.is_idle(now));
        }
    }

    fn lane(&mut self, name: &Name, most: usize) -> &mut Lane<W> {
        let now = self.now;
        let lane = self.lanes.entry(Arc::clone(name)).or_insert_with(|| Lane {
            tag: now,
            held: 0,
            most,
            waiting: VecDeque::new(),
        });
        lane.most = most;
        if lane.waiting.is_empty() {
            lane.tag = lane.tag.max(now);
        }
        lane
    }

    /// Forgets a lane that has nothing and wants nothing.
    fn forget(&mut self, name: &Name) {
        let now = self.now;
        if self.lanes.get(name).is_some_and(|lane| lane.is_idle(now)) {
            self.lanes.remove(name);
        }
    }
}

impl<W> Lane<W> {
    /// Whether nothing is lost with it: it has nothing, wants nothing, and is not before the others.
    fn is_idle(&self, now: u64) -> bool {
        self.held == 0 && self.waiting.is_empty() && self.tag <= now
    }
}

#[cfg(test)]
mod tests;
