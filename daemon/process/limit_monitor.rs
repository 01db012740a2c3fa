//! Measures a run from time to time, for limits that the kernel does not hold.

use std::time::Instant;

use tokio::{
    sync::{oneshot, watch},
    time::sleep_until,
};

use super::{outcome::ResourceLimit, watchdog::Watchdog};
use crate::daemon::{
    fd_exhaustion,
    sandbox::{running::Measurer, wire::RunMeasurement},
};

/// The measurements of one run.
pub(super) struct LimitMonitor {
    watchdog: Watchdog,
    measurer: Measurer,
    /// When to measure next.
    next_measurement: Instant,
    /// What is being measured, until it is known.
    pending_measurement: Option<oneshot::Receiver<RunMeasurement>>,
    /// Changes when the daemon meets the end of what it shares with runs.
    shortages: watch::Receiver<()>,
}

impl LimitMonitor {
    pub(super) fn new(dog: Watchdog, measurer: Measurer) -> Self {
        Self {
            watchdog: dog,
            measurer,
            next_measurement: dog.next_measurement(&RunMeasurement::default(), Instant::now()),
            pending_measurement: None,
            shortages: fd_exhaustion::subscribe_shortages(),
        }
    }

    /// Waits until the run is known to be over a limit. May be cancelled.
    pub(super) async fn wait_until_exceeded(&mut self) -> ResourceLimit {
        loop {
            let Some(asked) = &mut self.pending_measurement else {
                let recount = tokio::select! {
                    () = sleep_until(self.next_measurement.into()) => false,
                    Ok(()) = self.shortages.changed() => true,
                };
                self.pending_measurement =
                    self.measurer.measure(self.watchdog.measurement_bounds(recount));
                if self.pending_measurement.is_none() {
                    self.next_measurement =
                        self.watchdog.next_measurement(&RunMeasurement::default(), Instant::now());
                }
                continue;
            };
            let mut measure = asked.await.unwrap_or_default();
            self.pending_measurement = None;
            if let Some(cpu_us) = self.measurer.cpu_us() {
                measure.cpu_us = cpu_us;
            }
            if let Some(limit) = self.watchdog.exceeded_limit(&measure) {
                return limit;
            }
            self.next_measurement = self.watchdog.next_measurement(&measure, Instant::now());
        }
    }
}
