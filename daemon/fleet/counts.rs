//! Places and counts of fleet jobs by queue, for the runner and the metrics.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::{Mutex, MutexGuard, watch};

use crate::daemon::{
    config::fleet::FleetQueueConfig,
    pipeline::jobs::{ClaimedFleetJobs, JobRegistry},
};

/// What happened to a job at this daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FleetJobEvent {
    /// The daemon has claimed it.
    Claimed,
    /// Its end is stored.
    Finished,
    /// It is lost: the daemon that had it died, or did not run it to its end.
    Lost,
    /// It was given back.
    Released,
    /// It was invalid.
    Rejected,
    /// Another daemon has it, or has stored its end.
    Superseded,
}

/// All events, in the order of the counters.
const EVENTS: [(FleetJobEvent, &str); 6] = [
    (FleetJobEvent::Claimed, "claimed"),
    (FleetJobEvent::Finished, "finished"),
    (FleetJobEvent::Lost, "lost"),
    (FleetJobEvent::Released, "released"),
    (FleetJobEvent::Rejected, "rejected"),
    (FleetJobEvent::Superseded, "superseded"),
];

impl FleetJobEvent {
    /// Name in metrics and in the audit log.
    pub(super) fn name(self) -> &'static str {
        EVENTS.iter().find(|(event, _)| *event == self).map_or("", |(_, name)| name)
    }
}

/// The places and the counts of one queue.
#[derive(Debug)]
pub(crate) struct FleetQueueState {
    config: FleetQueueConfig,
    /// The queue in `taken`.
    index: usize,
    /// Places that have jobs, of all queues of this daemon.
    taken: watch::Sender<Vec<usize>>,
    /// Held while a queue of messages fetches some for free places.
    turn: Arc<Mutex<()>>,
    /// Metrics may outlive them.
    jobs: Weak<JobRegistry>,
    /// Changes when the free slots of `jobs` may have changed.
    slots: watch::Receiver<()>,
    counts: [AtomicU64; EVENTS.len()],
}

/// A place that has a job. It is free when this is dropped.
#[derive(Debug)]
pub(crate) struct FleetPlace(Arc<FleetQueueState>);

impl Drop for FleetPlace {
    fn drop(&mut self) {
        self.0.taken.send_modify(|taken| taken[self.0.index] -= 1);
    }
}

impl FleetQueueState {
    /// Returns the queues, in their order. All have free places as far as `jobs` has free slots.
    pub(super) fn of_all(queues: &[FleetQueueConfig], jobs: &Arc<JobRegistry>) -> Vec<Arc<Self>> {
        let taken = watch::Sender::new(vec![0; queues.len()]);
        let turn: Arc<Mutex<()>> = Arc::default();
        let state = |(index, config): (usize, &FleetQueueConfig)| {
            Arc::new(Self {
                config: config.clone(),
                index,
                taken: taken.clone(),
                turn: Arc::clone(&turn),
                jobs: Arc::downgrade(jobs),
                slots: jobs.watch_slots(),
                counts: Default::default(),
            })
        };
        queues.iter().enumerate().map(state).collect()
    }

    /// Takes at most `max` of the free places. Other queues, which share them, may have taken them.
    pub(super) fn take_places(self: &Arc<Self>, max: usize) -> Vec<FleetPlace> {
        let mut count = 0;
        self.taken.send_if_modified(|taken| {
            count = self.free_beside(taken).min(max);
            taken[self.index] += count;
            count > 0
        });
        (0..count).map(|_| FleetPlace(Arc::clone(self))).collect()
    }

    /// Takes a place, even if none is free.
    pub(super) fn take_place(self: &Arc<Self>) -> FleetPlace {
        self.taken.send_modify(|taken| taken[self.index] += 1);
        FleetPlace(Arc::clone(self))
    }

    /// Waits for the turn of this queue: two that fetch at the same time fetch for the same place.
    pub(super) async fn wait_for_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Waits until there are free places, or until there are none.
    pub(super) async fn wait_for_places(&self, are_free: bool) {
        let (mut taken, mut slots) = (self.taken.subscribe(), self.slots.clone());
        slots.mark_unchanged();
        while (self.free_places() > 0) != are_free {
            // The sender of `taken` lives as long as this queue.
            tokio::select! {
                _changed = taken.changed() => {}
                Ok(()) = slots.changed() => {}
            }
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// Jobs that the daemon would begin now: its other jobs, and those of its other queues, leave slots
    /// for them.
    pub(crate) fn free_places(&self) -> usize {
        self.free_beside(&self.taken.borrow())
    }

    fn free_beside(&self, taken: &[usize]) -> usize {
        let FleetQueueConfig { name, workspaces, places, .. } = &self.config;
        let claimed = ClaimedFleetJobs { total: taken.iter().sum(), in_queue: taken[self.index] };
        let Some(jobs) = self.jobs.upgrade() else { return 0 };
        let slots = jobs.free_fleet_slots(name, workspaces, claimed);
        slots.min((*places as usize).saturating_sub(claimed.in_queue))
    }

    pub(super) fn count(&self, event: FleetJobEvent) {
        if let Some(index) = EVENTS.iter().position(|(known, _)| *known == event) {
            self.counts[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts of jobs since the start of the daemon, by the name of the event.
    pub(crate) fn event_counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        EVENTS.iter().map(|(_, name)| *name).zip(counts)
    }
}
