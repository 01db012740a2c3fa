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

use super::headroom::Headroom;

/// What tells one caller's lane from another's.
pub(crate) type PrincipalKey = Arc<str>;

/// Places, and who waits for them. `W` is how somebody who waits is told.
#[derive(Debug)]
pub(super) struct FairQueue<W> {
    in_use: usize,
    capacity: usize,
    sharing: Sharing,
    flows: HashMap<PrincipalKey, Flow<W>>,
    /// The lanes in which somebody waits, in the order in which they began to.
    waiting_flows: Vec<PrincipalKey>,
    /// Where the lanes are that want places.
    virtual_time: u64,
    queued: usize,
    last_waiter_id: u64,
}

/// What one caller may have, so that there is something for others.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sharing {
    /// All: there is nobody else.
    Unlimited,
    /// All but a quarter, which is there for those who have few: of 2048, 1536 for the first, and 32 for each
    /// of 16 who come when he has them, however long he keeps them. Where there are several, one is left at
    /// least.
    KeepHeadroom,
    /// This many times as many places as he leaves free. For what does not last: the third to come finds
    /// little.
    MultipleOfFree(usize),
    /// All while he is alone; where others have or want some, all callers together have so many.
    CapWhenContended(usize),
}

/// Lanes above which those are looked for that can be forgotten.
const IDLE_FLOW_SWEEP_THRESHOLD: usize = 1024;

#[derive(Debug)]
struct Flow<W> {
    /// Where it is among the others, when it wants a place.
    start_tag: u64,
    in_use: usize,
    /// Most that it may have, whatever is free.
    max_in_use: usize,
    /// With numbers by which they leave.
    waiters: VecDeque<(u64, W)>,
}

impl<W> FairQueue<W> {
    /// So many places, none of them taken.
    pub(super) fn new(capacity: usize, sharing: Sharing) -> Self {
        Self {
            in_use: 0,
            capacity,
            sharing,
            flows: HashMap::new(),
            waiting_flows: Vec::new(),
            virtual_time: 0,
            queued: 0,
            last_waiter_id: 0,
        }
    }

    /// Has so many places from now on. Nobody loses his: if there are more than that, those that are given
    /// back are not given to others.
    pub(super) fn reconfigure(&mut self, capacity: usize, sharing: Sharing) {
        self.capacity = capacity;
        self.sharing = sharing;
    }

    /// Takes a place, if one is free that nobody waits for who could have it, and the lane may have
    /// another one. `most` counts from now on.
    pub(super) fn try_acquire(&mut self, principal: &PrincipalKey, max_in_use: usize) -> bool {
        self.flow(principal, max_in_use);
        let is_next = self.flows.get(principal).is_some_and(|flow| {
            flow.waiters.is_empty() && self.next_flow().is_none() && self.may_acquire(flow)
        });
        if is_next {
            self.grant(principal);
        } else {
            self.remove_if_idle(principal);
        }
        is_next
    }

    /// Lets somebody wait behind the others of his lane, unless `bound` wait there already. Answers the
    /// number to leave with.
    pub(super) fn enqueue(
        &mut self,
        principal: &PrincipalKey,
        max_in_use: usize,
        max_queued: usize,
        waiter: W,
    ) -> Result<u64, W> {
        let number = self.last_waiter_id + 1;
        let flow = self.flow(principal, max_in_use);
        if flow.waiters.len() >= max_queued {
            self.remove_if_idle(principal);
            return Err(waiter);
        }
        flow.waiters.push_back((number, waiter));
        let is_first = flow.waiters.len() == 1;
        self.last_waiter_id = number;
        self.queued += 1;
        if is_first {
            self.waiting_flows.push(Arc::clone(principal));
        }
        Ok(number)
    }

    /// Takes somebody out who waits. He may have got a place meanwhile.
    pub(super) fn cancel(&mut self, principal: &PrincipalKey, number: u64) {
        let Some(flow) = self.flows.get_mut(principal) else {
            return;
        };
        let Ok(position) = flow.waiters.binary_search_by_key(&number, |(number, _)| *number) else {
            return;
        };
        flow.waiters.remove(position);
        self.queued -= 1;
        if flow.waiters.is_empty() {
            self.waiting_flows.retain(|turn| turn != principal);
            self.remove_if_idle(principal);
        }
    }

    /// Takes a place back.
    pub(super) fn release(&mut self, principal: &PrincipalKey) {
        if let Some(flow) = self.flows.get_mut(principal) {
            flow.in_use -= 1;
            self.in_use -= 1;
            self.remove_if_idle(principal);
        }
    }

    /// Gives a free place to whose turn it is, if there is one and somebody who may have it.
    pub(super) fn grant_next(&mut self) -> Option<(PrincipalKey, W)> {
        let position = self.next_flow()?;
        let name = self.waiting_flows.remove(position);
        let flow = self.flows.get_mut(&name)?;
        let (_, waiter) = flow.waiters.pop_front()?;
        self.queued -= 1;
        if !flow.waiters.is_empty() {
            self.waiting_flows.push(Arc::clone(&name));
        }
        self.grant(&name);
        Some((name, waiter))
    }

    /// Places that there are.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Places that are taken.
    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Places that a lane has.
    pub(super) fn in_use_by(&self, principal: &PrincipalKey) -> usize {
        self.flows.get(principal).map_or(0, |flow| flow.in_use)
    }

    /// Those who wait.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Those who wait in a lane.
    pub(super) fn queued_by(&self, principal: &PrincipalKey) -> usize {
        self.flows.get(principal).map_or(0, |flow| flow.waiters.len())
    }

    /// Lanes in which somebody waits.
    pub(super) fn waiting_flow_count(&self) -> usize {
        self.waiting_flows.len()
    }

    /// Where the lane stands that gets the next place.
    fn next_flow(&self) -> Option<usize> {
        let flows = self.waiting_flows.iter().enumerate();
        let flows = flows.filter_map(|(position, name)| {
            let flow = self.flows.get(name)?;
            self.may_acquire(flow).then_some((flow.start_tag, position))
        });
        // Of those that have had as many, the one that has waited for longer.
        flows.min().map(|(_, position)| position)
    }

    /// Whether a lane may have another place.
    fn may_acquire(&self, flow: &Flow<W>) -> bool {
        let free = self.capacity.saturating_sub(self.in_use);
        let fits = match self.sharing {
            Sharing::Unlimited => true,
            Sharing::KeepHeadroom => {
                let (own, left) = (flow.in_use + 1, free.saturating_sub(1));
                Headroom::of_permits(self.capacity).allows(own as u64, left as u64)
            }
            Sharing::MultipleOfFree(times) => flow.in_use < times.saturating_mul(free),
            Sharing::CapWhenContended(together) => {
                let others_wait = self.waiting_flows.len() > usize::from(!flow.waiters.is_empty());
                self.in_use < together || flow.in_use == self.in_use && !others_wait
            }
        };
        free > 0 && flow.in_use < flow.max_in_use && fits
    }

    /// Gives a lane a place.
    fn grant(&mut self, principal: &PrincipalKey) {
        if let Some(flow) = self.flows.get_mut(principal) {
            self.virtual_time = self.virtual_time.max(flow.start_tag);
            flow.start_tag += 1;
            flow.in_use += 1;
            self.in_use += 1;
        }
        if self.flows.len() > IDLE_FLOW_SWEEP_THRESHOLD {
            let now = self.virtual_time;
            self.flows.retain(|_, flow| !flow.is_idle(now));
        }
    }

    fn flow(&mut self, principal: &PrincipalKey, max_in_use: usize) -> &mut Flow<W> {
        let now = self.virtual_time;
        let flow = self.flows.entry(Arc::clone(principal)).or_insert_with(|| Flow {
            start_tag: now,
            in_use: 0,
            max_in_use,
            waiters: VecDeque::new(),
        });
        flow.max_in_use = max_in_use;
        if flow.waiters.is_empty() {
            flow.start_tag = flow.start_tag.max(now);
        }
        flow
    }

    /// Forgets a lane that has nothing and wants nothing.
    fn remove_if_idle(&mut self, principal: &PrincipalKey) {
        let now = self.virtual_time;
        if self.flows.get(principal).is_some_and(|flow| flow.is_idle(now)) {
            self.flows.remove(principal);
        }
    }
}

impl<W> Flow<W> {
    /// Whether nothing is lost with it: it has nothing, wants nothing, and is not before the others.
    fn is_idle(&self, now: u64) -> bool {
        self.in_use == 0 && self.waiters.is_empty() && self.start_tag <= now
    }
}

#[cfg(test)]
mod tests;
