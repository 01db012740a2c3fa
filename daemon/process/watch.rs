//! Measures a run from time to time, for limits that the kernel does not hold.

use std::time::Instant;

use tokio::{
    sync::{oneshot, watch},
    time::sleep_until,
};

use super::{outcome::Limit, watchdog::Watchdog};
use crate::daemon::{
    descriptors,
    sandbox::{running::Measurer, wire::Measure},
};

/// The measurements of one run.
pub(super) struct Watch {
    dog: Watchdog,
    measurer: Measurer,
    /// When to measure next.
    next: Instant,
    /// What is being measured, until it is known.
    asked: Option<oneshot::Receiver<Measure>>,
    /// Changes when the daemon meets the end of what it shares with runs.
    shortages: watch::Receiver<()>,
}

impl Watch {
    pub(super) fn new(dog: Watchdog, measurer: Measurer) -> Self {
        Self {
            dog,
            measurer,
            next: dog.next(&Measure::default(), Instant::now()),
            asked: None,
            shortages: descriptors::shortages(),
        }
    }

    /// Waits until the run is known to be over a limit. May be cancelled.
    pub(super) async fn over(&mut self) -> Limit {
        loop {
            let Some(asked) = &mut self.asked else {
                let recount = tokio::select! {
                    () = sleep_until(self.next.into()) => false,
                    Ok(()) = self.shortages.changed() => true,
                };
                self.asked = self.measurer.measure(self.dog.bounds(recount));
                if self.asked.is_none() {
                    self.next = self.dog.next(&Measure::default(), Instant::now());
                }
                continue;
            };
            let mut measure = asked.await.unwrap_or_default();
            self.asked = None;
            if let Some(cpu_us) = self.measurer.cpu_us() {
                measure.cpu_us = cpu_us;
            }
            if let Some(limit) = self.dog.judge(&measure) {
                return limit;
            }
            self.next = self.dog.next(&measure, Instant::now());
        }
    }
}
