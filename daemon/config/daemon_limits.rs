//! The `[limits]` table: limits of the daemon, which do not apply to single runs.

use std::time::Duration;

use super::{
    DEFAULT_ARTIFACT_BYTES, DEFAULT_CONCURRENT_CALLS, DEFAULT_CONCURRENT_FILE_OPERATIONS,
    DEFAULT_CONCURRENT_PROCESSES, DEFAULT_CONCURRENT_RUNS, DEFAULT_PROCESS_RETENTION,
    DEFAULT_QUEUE_TIMEOUT, DEFAULT_QUEUED_CALLS, DEFAULT_REPLAY_BYTES,
    duration::duration_or_default,
    file::{LimitsTable, MAX_CONFIGURED_LIMIT},
};

/// Valid values of `limits.replay_bytes`. The minimum is twice what a process can write at once.
const REPLAY_BYTES_RANGE: std::ops::RangeInclusive<usize> = 128 * 1024..=256 << 20;

/// The limits of `[limits]` that do not apply to single runs.
pub(super) struct DaemonLimits {
    pub(super) artifact_bytes: u64,
    pub(super) replay_bytes: usize,
    pub(super) process_retention: Duration,
    pub(super) concurrent_calls: usize,
    pub(super) concurrent_runs: usize,
    pub(super) concurrent_processes: usize,
    pub(super) concurrent_file_operations: usize,
    pub(super) queued_calls: usize,
    pub(super) queue_timeout: Duration,
}

/// Checks these limits.
pub(super) fn parse_daemon_limits(table: &LimitsTable, problems: &mut Vec<String>) -> DaemonLimits {
    let replay_bytes = table.replay_bytes.unwrap_or(DEFAULT_REPLAY_BYTES);
    if !REPLAY_BYTES_RANGE.contains(&replay_bytes) {
        problems.push(format!(
            "limits.replay_bytes {replay_bytes}: give {} to {} bytes",
            REPLAY_BYTES_RANGE.start(),
            REPLAY_BYTES_RANGE.end()
        ));
    }
    let process_retention = duration_or_default(
        DEFAULT_PROCESS_RETENTION,
        table.process_retention.as_deref(),
        "limits.process_retention",
        problems,
    );
    let queue_timeout = duration_or_default(
        DEFAULT_QUEUE_TIMEOUT,
        table.queue_timeout.as_deref(),
        "limits.queue_timeout",
        problems,
    );

    let mut count = |value: Option<usize>, default: usize, key: &str| {
        let count = value.unwrap_or(default);
        if !(1..=MAX_CONFIGURED_LIMIT as usize).contains(&count) {
            problems.push(format!("limits.{key} must be from 1 to {MAX_CONFIGURED_LIMIT}"));
        }
        count
    };
    DaemonLimits {
        artifact_bytes: table.artifact_bytes.unwrap_or(DEFAULT_ARTIFACT_BYTES),
        replay_bytes,
        process_retention,
        concurrent_calls: count(
            table.concurrent_calls,
            DEFAULT_CONCURRENT_CALLS,
            "concurrent_calls",
        ),
        concurrent_runs: count(table.concurrent_runs, DEFAULT_CONCURRENT_RUNS, "concurrent_runs"),
        concurrent_processes: count(
            table.concurrent_processes,
            DEFAULT_CONCURRENT_PROCESSES,
            "concurrent_processes",
        ),
        concurrent_file_operations: count(
            table.concurrent_file_operations,
            DEFAULT_CONCURRENT_FILE_OPERATIONS,
            "concurrent_file_operations",
        ),
        queued_calls: count(table.queued_calls, DEFAULT_QUEUED_CALLS, "queued_calls"),
        queue_timeout,
    }
}
