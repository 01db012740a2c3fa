//! Start-time fair queueing over principals (Goyal, Vin and Cheng, 1996). Pure state: no clocks, no
//! wake-ups.
//!
//! Each principal has a flow. A free permit goes to the flow with the smallest start tag, and
//! within a flow to the oldest waiter. Each permit advances the tag of its flow by one. A flow that
//! becomes active again starts at the virtual time of the others: an idle principal saves up
//! nothing, and a new one is not late.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::headroom::Headroom;

/// Identifies a principal.
pub(crate) type PrincipalName = Arc<str>;

/// Permits and the principals that wait for them. `W` is the handle that notifies a waiter.
#[derive(Debug)]
pub(super) struct FairQueue<W> {
    in_use: usize,
    capacity: usize,
    sharing: Sharing,
    flows: HashMap<PrincipalName, Flow<W>>,
    /// Flows with waiters, in the order in which they started to wait.
    waiting_flows: Vec<PrincipalName>,
    /// The largest start tag of a permit that was granted.
    virtual_time: u64,
    queued: usize,
    last_waiter_id: u64,
}

/// How many permits one principal may hold, with regard to others.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sharing {
    /// All of them, even if other principals wait.
    Unlimited,
    /// All except a quarter, which is headroom for principals that use few. Of 2048 permits, the first
    /// principal gets 1536, and each of 16 others gets 32, however long the first keeps its
    /// permits. Of several permits, at least one is headroom.
    KeepHeadroom,
    /// This many times the free permits. With a factor of 1, one principal gets half of all
    /// permits, a second one a quarter, a third one an eighth. For short-lived work only.
    MultipleOfFree(usize),
    /// All while it is alone. While others hold or want permits, this many for all together.
    CapWhenContended(usize),
}

/// Number of flows above which idle ones are removed.
const MAX_UNSWEPT_FLOWS: usize = 1024;

#[derive(Debug)]
struct Flow<W> {
    /// Virtual start tag of its next permit (see the module).
    start_tag: u64,
    in_use: usize,
    /// The principal's own limit, whatever is free.
    max_in_use: usize,
    /// Waiters with their ids, oldest first.
    waiters: VecDeque<(u64, W)>,
}

impl<W> FairQueue<W> {
    /// Creates a queue of `capacity` free permits.
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

    /// Changes the capacity. Holders keep their permits; surplus ones are not granted again when
    /// they are released.
    pub(super) fn reconfigure(&mut self, capacity: usize, sharing: Sharing) {
        self.capacity = capacity;
        self.sharing = sharing;
    }

    /// Acquires a permit if one is free, the principal may hold another one, and no waiter could
    /// have it. `max_in_use` is the principal's limit from now on.
    pub(super) fn try_acquire(&mut self, principal: &PrincipalName, max_in_use: usize) -> bool {
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

    /// Adds a waiter to the end of its flow, unless `max_queued` wait there. Returns its id.
    pub(super) fn enqueue(
        &mut self,
        principal: &PrincipalName,
        max_in_use: usize,
        max_queued: usize,
        waiter: W,
    ) -> Result<u64, W> {
        let waiter_id = self.last_waiter_id + 1;
        let flow = self.flow(principal, max_in_use);
        if flow.waiters.len() >= max_queued {
            self.remove_if_idle(principal);
            return Err(waiter);
        }

        flow.waiters.push_back((waiter_id, waiter));
        let is_first = flow.waiters.len() == 1;
        self.last_waiter_id = waiter_id;
        self.queued += 1;
        if is_first {
            self.waiting_flows.push(Arc::clone(principal));
        }

        Ok(waiter_id)
    }

    /// Removes a waiter. Does nothing if it has been granted a permit.
    pub(super) fn cancel(&mut self, principal: &PrincipalName, waiter_id: u64) {
        let Some(flow) = self.flows.get_mut(principal) else {
            return;
        };

        let Ok(position) = flow.waiters.binary_search_by_key(&waiter_id, |(id, _)| *id) else {
            return;
        };

        flow.waiters.remove(position);
        self.queued -= 1;

        if flow.waiters.is_empty() {
            self.waiting_flows.retain(|waiting| waiting != principal);
            self.remove_if_idle(principal);
        }
    }

    /// Releases a permit.
    pub(super) fn release(&mut self, principal: &PrincipalName) {
        if let Some(flow) = self.flows.get_mut(principal) {
            flow.in_use -= 1;
            self.in_use -= 1;
            self.remove_if_idle(principal);
        }
    }

    /// Grants a free permit to the next waiter that may have it.
    pub(super) fn grant_next(&mut self) -> Option<(PrincipalName, W)> {
        let position = self.next_flow()?;
        let principal = self.waiting_flows.remove(position);
        let flow = self.flows.get_mut(&principal)?;
        let (_, waiter) = flow.waiters.pop_front()?;
        self.queued -= 1;
        if !flow.waiters.is_empty() {
            self.waiting_flows.push(Arc::clone(&principal));
        }
        self.grant(&principal);
        Some((principal, waiter))
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the permits in use.
    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Returns the permits that a principal holds.
    pub(super) fn in_use_by(&self, principal: &PrincipalName) -> usize {
        self.flows.get(principal).map_or(0, |flow| flow.in_use)
    }

    /// Returns the number of waiters.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Returns the number of waiters of a principal.
    pub(super) fn queued_by(&self, principal: &PrincipalName) -> usize {
        self.flows.get(principal).map_or(0, |flow| flow.waiters.len())
    }

    /// Returns the number of flows with waiters.
    pub(super) fn waiting_flow_count(&self) -> usize {
        self.waiting_flows.len()
    }

    /// Returns the index in `waiting_flows` of the flow that gets the next permit.
    fn next_flow(&self) -> Option<usize> {
        let eligible = self.waiting_flows.iter().enumerate().filter_map(|(position, principal)| {
            let flow = self.flows.get(principal)?;
            self.may_acquire(flow).then_some((flow.start_tag, position))
        });
        // Of flows with equal tags, the one that has waited longest.
        eligible.min().map(|(_, position)| position)
    }

    /// Whether a flow may have another permit.
    fn may_acquire(&self, flow: &Flow<W>) -> bool {
        let free = self.capacity.saturating_sub(self.in_use);
        let is_fair = match self.sharing {
            Sharing::Unlimited => true,
            Sharing::KeepHeadroom => {
                let (own, free_after) = (flow.in_use + 1, free.saturating_sub(1));
                Headroom::of_permits(self.capacity).allows(own as u64, free_after as u64)
            }
            Sharing::MultipleOfFree(times) => flow.in_use < times.saturating_mul(free),
            Sharing::CapWhenContended(cap) => {
                let others_wait = self.waiting_flows.len() > usize::from(!flow.waiters.is_empty());
                self.in_use < cap || flow.in_use == self.in_use && !others_wait
            }
        };
        free > 0 && flow.in_use < flow.max_in_use && is_fair
    }

    /// Grants a permit to a flow.
    fn grant(&mut self, principal: &PrincipalName) {
        if let Some(flow) = self.flows.get_mut(principal) {
            self.virtual_time = self.virtual_time.max(flow.start_tag);
            flow.start_tag += 1;
            flow.in_use += 1;
            self.in_use += 1;
        }
        if self.flows.len() > MAX_UNSWEPT_FLOWS {
            let virtual_time = self.virtual_time;
            self.flows.retain(|_, flow| !flow.is_idle(virtual_time));
        }
    }

    fn flow(&mut self, principal: &PrincipalName, max_in_use: usize) -> &mut Flow<W> {
        let virtual_time = self.virtual_time;
        let flow = self.flows.entry(Arc::clone(principal)).or_insert_with(|| Flow {
            start_tag: virtual_time,
            in_use: 0,
            max_in_use,
            waiters: VecDeque::new(),
        });
        flow.max_in_use = max_in_use;
        if flow.waiters.is_empty() {
            flow.start_tag = flow.start_tag.max(virtual_time);
        }

        flow
    }

    /// Removes a flow that neither holds nor wants permits.
    fn remove_if_idle(&mut self, principal: &PrincipalName) {
        let virtual_time = self.virtual_time;
        if self.flows.get(principal).is_some_and(|flow| flow.is_idle(virtual_time)) {
            self.flows.remove(principal);
        }
    }
}

impl<W> Flow<W> {
    /// Whether removing the flow loses nothing: no permits, no waiters, and a tag not ahead of the
    /// virtual time.
    fn is_idle(&self, virtual_time: u64) -> bool {
        self.in_use == 0 && self.waiters.is_empty() && self.start_tag <= virtual_time
    }
}

#[cfg(test)]
mod tests;
