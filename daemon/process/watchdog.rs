//! When to look at what a run occupies, and what to make of it: limits that no cgroup holds. Pure: it
//! knows no clock and looks at nothing.

use std::time::{Duration, Instant};

use super::outcome::ResourceLimit;
use crate::daemon::sandbox::{
    limits::RunLimits,
    wire::{MeasurementBounds, RunMeasurement},
};

/// Bytes that a run can come to occupy in a second, with each CPU that there is: more than one fills.
const MAX_GROWTH_BYTES_PER_CPU_SEC: u64 = 2 << 30;
/// CPUs that can fill memory at one time: more have to wait for it, and a run that sleeps is not to be
/// looked at all the time.
const MAX_FILLING_CPUS: u64 = 8;
/// Shortest and longest time between two looks. One costs some 50 us of CPU for each process.
const MIN_AND_MAX_INTERVAL: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_secs(1));

/// What is watched of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Watchdog {
    max_memory_bytes: Option<u64>,
    max_cpu_us: Option<u64>,
    max_open_files: u64,
    max_epoll_watches: u64,
    /// CPUs that it can use at one time.
    cpus: u64,
}

impl Watchdog {
    /// Watches what `limits` name, on a machine of so many CPUs.
    pub(super) fn new(limits: &RunLimits, is_memory_counted: bool, cpus: u64) -> Self {
        Self {
            cpus: cpus.max(1),
            max_memory_bytes: (!is_memory_counted).then_some(limits.memory_bytes),
            max_cpu_us: limits.cpu_sec.map(|seconds| u64::from(seconds) * 1_000_000),
            max_open_files: limits.open_files_total.into(),
            max_epoll_watches: limits.epoll_watches,
        }
    }

    /// How closely to measure.
    pub(super) fn measurement_bounds(&self, recount: bool) -> MeasurementBounds {
        MeasurementBounds {
            memory_bytes: self.max_memory_bytes.unwrap_or(u64::MAX),
            open_files: self.max_open_files,
            epoll_watches: self.max_epoll_watches,
            recount,
        }
    }

    /// Which limit a run is over that occupies this.
    pub(super) fn exceeded_limit(&self, measure: &RunMeasurement) -> Option<ResourceLimit> {
        if self.max_memory_bytes.is_some_and(|most| measure.memory_bytes > most) {
            Some(ResourceLimit::Memory)
        } else if self.max_cpu_us.is_some_and(|most| measure.cpu_us > most) {
            Some(ResourceLimit::Cpu)
        } else if measure.open_files > self.max_open_files {
            Some(ResourceLimit::OpenFiles)
        } else if measure.epoll_watches > self.max_epoll_watches {
            Some(ResourceLimit::Epoll)
        } else {
            None
        }
    }

    /// When to look again: before it can be over a limit, but not all the time.
    pub(super) fn next_measurement(&self, measure: &RunMeasurement, now: Instant) -> Instant {
        let until = |most: Option<u64>, has: u64, a_second: u64| {
            let left = u128::from(most?.saturating_sub(has));
            let micros = left * 1_000_000 / u128::from(a_second);
            Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
        };
        let memory = until(
            self.max_memory_bytes,
            measure.memory_bytes,
            MAX_GROWTH_BYTES_PER_CPU_SEC * self.cpus.min(MAX_FILLING_CPUS),
        );
        let cpu = until(self.max_cpu_us, measure.cpu_us, self.cpus.saturating_mul(1_000_000));
        let soonest = memory.into_iter().chain(cpu).min().unwrap_or(MIN_AND_MAX_INTERVAL.1);
        now + soonest.clamp(MIN_AND_MAX_INTERVAL.0, MIN_AND_MAX_INTERVAL.1)
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
    fn it_looks_more_often_the_closer_a_run_is_to_a_limit() {
        let limits = RunLimits { cpu_sec: Some(10), ..RunLimits::default() };
        let watchdog = Watchdog::new(&limits, false, 2);
        let now = Instant::now();
        for (memory, cpu, milliseconds) in [
            (0, 0, 500),
            (GIB, 0, 250),
            (2 * GIB - 1, 0, 20),
            (3 * GIB, 0, 20),
            (0, 9_800_000, 100),
            (0, 11_000_000, 20),
        ] {
            let next = watchdog.next_measurement(&measure(memory, cpu), now) - now;
            assert_eq!(next, Duration::from_millis(milliseconds), "{memory} {cpu}");
        }
        let generous = RunLimits { memory_bytes: 1 << 50, ..RunLimits::default() };
        let watchdog = Watchdog::new(&generous, false, 2);
        assert_eq!(watchdog.next_measurement(&measure(0, 0), now) - now, MIN_AND_MAX_INTERVAL.1);
        // And the more CPUs there are.
        let watchdog = Watchdog::new(&limits, false, 16);
        let next = watchdog.next_measurement(&measure(0, 0), now) - now;
        assert_eq!(next, Duration::from_millis(125));
    }

    #[test]
    fn it_says_which_limit_was_passed() {
        let limits = RunLimits { cpu_sec: Some(2), memory_bytes: 100, ..RunLimits::default() };
        let watchdog = Watchdog::new(&limits, false, 2);
        for (memory, cpu, limit) in [
            (100, 2_000_000, None),
            (101, 0, Some(ResourceLimit::Memory)),
            (0, 2_000_001, Some(ResourceLimit::Cpu)),
        ] {
            assert_eq!(watchdog.exceeded_limit(&measure(memory, cpu)), limit);
        }
        let counted = Watchdog::new(&limits, true, 2);
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
