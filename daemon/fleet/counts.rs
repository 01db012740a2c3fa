//! Counts of fleet jobs by queue, for the metrics.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::Semaphore;

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
    name: String,
    /// The jobs that the daemon would begin now.
    pub(super) places: Arc<Semaphore>,
    counts: [AtomicU64; EVENTS.len()],
}

impl FleetQueueState {
    pub(super) fn new(name: &str, places: usize) -> Self {
        Self {
            name: name.to_owned(),
            places: Arc::new(Semaphore::new(places)),
            counts: Default::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Jobs that the daemon would begin now.
    pub(crate) fn free_places(&self) -> usize {
        self.places.available_permits()
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
