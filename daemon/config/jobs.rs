//! The `[jobs]` table: concurrency, queue lengths and retention of jobs.

use std::{collections::BTreeMap, time::Duration};

use super::{
    duration::age_or_default,
    file::{self, MAX_CONFIGURED_LIMIT},
};

const DEFAULT_RETENTION: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_MAX_ENTRIES: u32 = 10_000;
const DEFAULT_MAX_BYTES: u64 = 256 << 20;
const DEFAULT_MAX_QUEUED_JOBS: u32 = 10_000;
/// Room for some hundred jobs with parameters of the largest size.
const DEFAULT_MAX_QUEUED_BYTES: u64 = 1 << 30;
const DEFAULT_CONCURRENT_JOBS: u32 = 64;
/// The largest number of calls in a batch, so that a batch takes as long as its slowest call.
const DEFAULT_CONCURRENT_JOBS_PER_QUEUE: u32 = 20;
const MAX_QUEUE_NAME_BYTES: usize = 80;

/// The checked `[jobs]` table.
#[derive(Debug, Clone)]
pub(crate) struct JobsConfig {
    /// Time that an ended job is stored.
    pub(crate) retention: Duration,
    /// Number of ended jobs that are stored.
    pub(crate) max_entries: u32,
    /// Size of all stored results together.
    pub(crate) max_bytes: u64,
    /// Queued jobs of all workspaces together.
    pub(crate) max_queued: u32,
    /// Size of the parameters of all queued jobs.
    pub(crate) max_queued_bytes: u64,
    /// Running jobs of all workspaces together.
    pub(crate) concurrency: u32,
    /// Running jobs of a queue without an entry in `queues`.
    pub(crate) queue_concurrency: u32,
    /// Running jobs by queue.
    pub(crate) queues: BTreeMap<String, u32>,
}

/// Whether a queue can have this name.
pub(crate) fn is_queue_name(text: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._:-".contains(&byte);
    (1..=MAX_QUEUE_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

/// Checks the table.
pub(super) fn parse_jobs(file: file::JobsTable, problems: &mut Vec<String>) -> JobsConfig {
    let retention = file.retention.as_deref();
    let retention = age_or_default(DEFAULT_RETENTION, retention, "jobs.retention", problems);

    let mut count = |value: Option<u32>, default: u32, key: &str| {
        let count = value.unwrap_or(default);
        if !(1..=MAX_CONFIGURED_LIMIT).contains(&count) {
            problems.push(format!("jobs.{key} must be from 1 to {MAX_CONFIGURED_LIMIT}"));
        }
        count
    };
    let jobs = JobsConfig {
        retention,
        max_entries: count(file.max_entries, DEFAULT_MAX_ENTRIES, "max_entries"),
        max_bytes: file.max_bytes.unwrap_or(DEFAULT_MAX_BYTES),
        max_queued: count(file.max_queued, DEFAULT_MAX_QUEUED_JOBS, "max_queued"),
        max_queued_bytes: file.max_queued_bytes.unwrap_or(DEFAULT_MAX_QUEUED_BYTES),
        concurrency: count(file.concurrency, DEFAULT_CONCURRENT_JOBS, "concurrency"),
        queue_concurrency: count(
            file.queue_concurrency,
            DEFAULT_CONCURRENT_JOBS_PER_QUEUE,
            "queue_concurrency",
        ),
        queues: file.queues,
    };

    for (name, concurrency) in &jobs.queues {
        if !is_queue_name(name) {
            problems.push(format!(
                "jobs.queues: {name:?} is not a valid queue name: give 1 to {MAX_QUEUE_NAME_BYTES} lower-case letters, digits and . _ : -"
            ));
        }
        if !(1..=MAX_CONFIGURED_LIMIT).contains(concurrency) {
            problems.push(format!("jobs.queues.{name} must be from 1 to {MAX_CONFIGURED_LIMIT}"));
        }
    }
    for (bytes, key) in [(jobs.max_bytes, "max_bytes"), (jobs.max_queued_bytes, "max_queued_bytes")]
    {
        if bytes == 0 {
            problems.push(format!("jobs.{key} must be at least 1"));
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_reported() {
        let text = "retention = \"2y\"\nmax_entries = 0\nmax_queued = 0\nconcurrency = 0\nmax_bytes = 0\nmax_queued_bytes = 0\n[queues]\nBuild = 1\nslow = 0\n";
        let mut problems = Vec::new();
        parse_jobs(toml::from_str(text).unwrap(), &mut problems);
        assert_eq!(problems.len(), 8, "{problems:#?}");

        problems.clear();
        let jobs = parse_jobs(toml::from_str("[queues]\nbuild = 1\n").unwrap(), &mut problems);
        assert_eq!(problems, [""; 0]);
        assert_eq!(jobs.queues.get("build"), Some(&1));
    }
}
