//! Schedule of the measurements of a run, for limits that no cgroup enforces. Decides when to
//! measure next, and which limit a measurement exceeds. Pure: no clock, no system calls.

use std::time::{Duration, Instant};

use super::outcome::ResourceLimit;
use crate::daemon::sandbox::{
    limits::RunLimits,
    wire::{MeasurementBounds, RunMeasurement},
};

/// Bytes per second by which the memory of a run can grow on each CPU: more than one CPU can fill.
const MAX_GROWTH_BYTES_PER_CPU_SEC: u64 = 2 << 30;
/// CPUs that can fill memory at the same time, limited by memory bandwidth. Without this bound, a
/// sleeping run would be measured far too often.
const MAX_FILLING_CPUS: u64 = 8;
/// A measurement costs about 50 us of CPU time per process.
const MIN_MEASUREMENT_INTERVAL: Duration = Duration::from_millis(20);
/// Limits may be exceeded unnoticed for that long.
const MAX_MEASUREMENT_INTERVAL: Duration = Duration::from_secs(1);

/// The limits to watch for one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MeasurementSchedule {
    max_memory_bytes: Option<u64>,
    max_cpu_us: Option<u64>,
    max_open_files: u64,
    max_epoll_watches: u64,
    /// CPUs that the run can use at the same time.
    cpus: u64,
}

impl MeasurementSchedule {
    /// `has_memory_accounting` is true if a cgroup limits the memory. `cpus` are those of the machine.
    pub(super) fn new(limits: &RunLimits, has_memory_accounting: bool, cpus: u64) -> Self {
        Self {
            cpus: cpus.max(1),
            max_memory_bytes: (!has_memory_accounting).then_some(limits.memory_bytes),
            max_cpu_us: limits.cpu_sec.map(|seconds| u64::from(seconds) * 1_000_000),
            max_open_files: limits.open_files_total.into(),
            max_epoll_watches: limits.epoll_watches,
        }
    }

    /// Returns how precisely to measure.
    pub(super) fn measurement_bounds(&self, recount: bool) -> MeasurementBounds {
        MeasurementBounds {
            memory_bytes: self.max_memory_bytes.unwrap_or(u64::MAX),
            open_files: self.max_open_files,
            epoll_watches: self.max_epoll_watches,
            recount,
        }
    }

    /// Returns the limit that a measurement exceeds, if any.
    pub(super) fn exceeded_limit(&self, measure: &RunMeasurement) -> Option<ResourceLimit> {
        if self.max_memory_bytes.is_some_and(|max| measure.memory_bytes > max) {
            Some(ResourceLimit::Memory)
        } else if self.max_cpu_us.is_some_and(|max| measure.cpu_us > max) {
            Some(ResourceLimit::Cpu)
        } else if measure.open_files > self.max_open_files {
            Some(ResourceLimit::OpenFiles)
        } else if measure.epoll_watches > self.max_epoll_watches {
            Some(ResourceLimit::Epoll)
        } else {
            None
        }
    }

    /// Returns when to measure next: before the run can exceed a limit, within the bounds of
    /// [`MIN_MEASUREMENT_INTERVAL`] and [`MAX_MEASUREMENT_INTERVAL`].
    pub(super) fn next_measurement(&self, measure: &RunMeasurement, now: Instant) -> Instant {
        let time_to_limit = |max: Option<u64>, used: u64, per_second: u64| {
            let remaining = u128::from(max?.saturating_sub(used));
            let micros = remaining * 1_000_000 / u128::from(per_second);
            Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
        };
        let memory = time_to_limit(
            self.max_memory_bytes,
            measure.memory_bytes,
            MAX_GROWTH_BYTES_PER_CPU_SEC * self.cpus.min(MAX_FILLING_CPUS),
        );
        let cpu =
            time_to_limit(self.max_cpu_us, measure.cpu_us, self.cpus.saturating_mul(1_000_000));

        let soonest = memory.into_iter().chain(cpu).min().unwrap_or(MAX_MEASUREMENT_INTERVAL);
        now + soonest.clamp(MIN_MEASUREMENT_INTERVAL, MAX_MEASUREMENT_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn measure(memory_bytes: u64, cpu_us: u64) -> RunMeasurement {
        RunMeasurement { memory_bytes, cpu_us, ..RunMeasurement::default() }
    }

    #[test]
    fn interval_shrinks_as_a_run_nears_a_limit() {
        let limits = RunLimits { cpu_sec: Some(10), ..RunLimits::default() };
        let schedule = MeasurementSchedule::new(&limits, false, 2);
        let now = Instant::now();
        for (memory, cpu, milliseconds) in [
            (0, 0, 500),
            (GIB, 0, 250),
            (2 * GIB - 1, 0, 20),
            (3 * GIB, 0, 20),
            (0, 9_800_000, 100),
            (0, 11_000_000, 20),
        ] {
            let next = schedule.next_measurement(&measure(memory, cpu), now) - now;
            assert_eq!(next, Duration::from_millis(milliseconds), "{memory} {cpu}");
        }
        let generous = RunLimits { memory_bytes: 1 << 50, ..RunLimits::default() };
        let schedule = MeasurementSchedule::new(&generous, false, 2);
        assert_eq!(schedule.next_measurement(&measure(0, 0), now) - now, MAX_MEASUREMENT_INTERVAL);
        // More often with more CPUs.
        let schedule = MeasurementSchedule::new(&limits, false, 16);
        let next = schedule.next_measurement(&measure(0, 0), now) - now;
        assert_eq!(next, Duration::from_millis(125));
    }

    #[test]
    fn measurement_reports_the_exceeded_limit() {
        let limits = RunLimits { cpu_sec: Some(2), memory_bytes: 100, ..RunLimits::default() };
        let schedule = MeasurementSchedule::new(&limits, false, 2);
        for (memory, cpu, limit) in [
            (100, 2_000_000, None),
            (101, 0, Some(ResourceLimit::Memory)),
            (0, 2_000_001, Some(ResourceLimit::Cpu)),
        ] {
            assert_eq!(schedule.exceeded_limit(&measure(memory, cpu)), limit);
        }
        let counted = MeasurementSchedule::new(&limits, true, 2);
        assert_eq!(counted.exceeded_limit(&measure(101, 0)), None);
        for (open_files, epoll_watches, limit) in [
            (65_536, 65_536, None),
            (65_537, 0, Some(ResourceLimit::OpenFiles)),
            (0, 65_537, Some(ResourceLimit::Epoll)),
        ] {
            let measure = RunMeasurement { open_files, epoll_watches, ..measure(0, 0) };
            assert_eq!(counted.exceeded_limit(&measure), limit);
        }
    }
}
