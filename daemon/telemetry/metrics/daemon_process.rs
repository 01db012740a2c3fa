//! Metrics of the daemon's own process. Linux reports them in `/proc/self`.

use std::{fs, time::Duration};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};
use opentelemetry::KeyValue;

use crate::daemon::telemetry::semconv;

/// What one collection reads. A value that cannot be read is absent.
#[derive(Debug, Clone, Copy)]
pub(super) enum ProcessValue {
    Memory,
    Threads,
    Descriptors,
}

impl ProcessValue {
    pub(super) fn read(self) -> Option<u64> {
        match self {
            Self::Memory => Some(read_status("VmRSS:")?.saturating_mul(1024)),
            Self::Threads => read_status("Threads:"),
            Self::Descriptors => count_descriptors(),
        }
    }
}

/// Reads a number of `/proc/self/status`.
fn read_status(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Counts descriptors. The directory's size is their number since Linux 6.2; before, it is 0.
fn count_descriptors() -> Option<u64> {
    let size = fs::metadata("/proc/self/fd").ok()?.len();
    if size > 0 {
        return Some(size);
    }
    // Without the descriptor of the directory itself.
    let count = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    u64::try_from(count).ok()
}

/// Reads the CPU time of the daemon, by mode.
pub(super) fn cpu_times() -> Option<[(Duration, KeyValue); 2]> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    Some(
        [("user", usage.user_time()), ("system", usage.system_time())]
            .map(|(mode, time)| (duration(time), KeyValue::new(semconv::CPU_MODE, mode))),
    )
}

fn duration(time: TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
    let micros = u64::try_from(time.tv_usec()).unwrap_or_default();
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}
