//! Measures a run periodically, for limits that the kernel does not enforce.

use std::{sync::OnceLock, time::Instant};

use tokio::{
    sync::{oneshot, watch},
    time::sleep_until,
};

use super::{measurement_schedule::MeasurementSchedule, outcome::ResourceLimit};
use crate::daemon::{
    fd_exhaustion,
    sandbox::{
        limits::RunLimits,
        running::{MeasurementClient, RunningSandbox},
        wire::RunMeasurement,
    },
};

pub(super) struct LimitMonitor {
    schedule: MeasurementSchedule,
    client: MeasurementClient,
    next_measurement: Instant,
    /// The measurement in progress.
    pending_measurement: Option<oneshot::Receiver<RunMeasurement>>,
    /// Changes when the daemon runs out of a resource that it shares with runs.
    shortages: watch::Receiver<()>,
}

impl LimitMonitor {
    pub(super) fn new(limits: &RunLimits, sandbox: &RunningSandbox) -> Self {
        let schedule =
            MeasurementSchedule::new(limits, sandbox.has_memory_accounting(), machine_cpus());
        let now = Instant::now();
        Self {
            next_measurement: schedule.next_measurement(&RunMeasurement::default(), now),
            schedule,
            client: sandbox.measurement_client(),
            pending_measurement: None,
            shortages: fd_exhaustion::subscribe_shortages(),
        }
    }

    /// Waits until the run exceeds a limit. Cancel safe.
    pub(super) async fn wait_until_exceeded(&mut self) -> ResourceLimit {
        loop {
            let Some(pending) = &mut self.pending_measurement else {
                let recount = tokio::select! {
                    () = sleep_until(self.next_measurement.into()) => false,
                    Ok(()) = self.shortages.changed() => true,
                };
                self.pending_measurement =
                    self.client.measure(self.schedule.measurement_bounds(recount));
                if self.pending_measurement.is_none() {
                    self.next_measurement =
                        self.schedule.next_measurement(&RunMeasurement::default(), Instant::now());
                }
                continue;
            };

            let mut measure = pending.await.unwrap_or_default();
            self.pending_measurement = None;
            if let Some(cpu_us) = self.client.cpu_us() {
                measure.cpu_us = cpu_us;
            }
            if let Some(limit) = self.schedule.exceeded_limit(&measure) {
                return limit;
            }
            self.next_measurement = self.schedule.next_measurement(&measure, Instant::now());
        }
    }
}

/// Returns the CPUs of the machine: commands may run on others than the daemon
/// (sched_setaffinity(2)).
fn machine_cpus() -> u64 {
    static CPUS: OnceLock<u64> = OnceLock::new();
    *CPUS.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        // One line for the total, one for each CPU.
        let lines = text.lines().filter(|line| line.starts_with("cpu")).count();
        (lines as u64).saturating_sub(1)
    })
}
