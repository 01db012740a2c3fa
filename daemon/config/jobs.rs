//! Jobs: how many at a time, and what is kept of them.

use std::{collections::BTreeMap, time::Duration};

use super::{duration::age_or_default, file};

/// What holds where nothing is said.
const DEFAULT_RETENTION: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_MAX_ENTRIES: u32 = 10_000;
const DEFAULT_MAX_BYTES: u64 = 256 << 20;
const DEFAULT_MAX_QUEUED: u32 = 10_000;
/// Of the largest parameters, that is some hundred jobs.
const DEFAULT_MAX_QUEUED_BYTES: u64 = 1 << 30;
const DEFAULT_CONCURRENCY: u32 = 64;
/// As many as a batch has calls: each takes as long as it takes by itself.
const DEFAULT_QUEUE_CONCURRENCY: u32 = 20;
/// Most of what is counted.
const MAX_COUNT: u32 = 1 << 20;
/// Longest name of a queue, in bytes.
const MAX_QUEUE_NAME_BYTES: usize = 80;

/// How jobs are done and kept.
#[derive(Debug, Clone)]
pub(crate) struct JobsConfig {
    /// How long those that have ended are kept.
    pub(crate) retention: Duration,
    /// How many.
    pub(crate) max_entries: u32,
    /// Bytes of all their results.
    pub(crate) max_bytes: u64,
    /// How many may wait, of all workspaces together.
    pub(crate) max_queued: u32,
    /// Bytes of all their parameters.
    pub(crate) max_queued_bytes: u64,
    /// How many are done at a time, of all workspaces together.
    pub(crate) concurrency: u32,
    /// How many of one queue, where its name is not in `queues`.
    pub(crate) queue_concurrency: u32,
    /// How many of each queue.
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
    let mut count = |written: Option<u32>, default: u32, key: &str| {
        let count = written.unwrap_or(default);
        if !(1..=MAX_COUNT).contains(&count) {
            problems.push(format!("jobs.{key} must be from 1 to {MAX_COUNT}"));
        }
        count
    };
    let jobs = JobsConfig {
        retention,
        max_entries: count(file.kept, DEFAULT_MAX_ENTRIES, "kept"),
        max_bytes: file.kept_bytes.unwrap_or(DEFAULT_MAX_BYTES),
        max_queued: count(file.queued, DEFAULT_MAX_QUEUED, "queued"),
        max_queued_bytes: file.queued_bytes.unwrap_or(DEFAULT_MAX_QUEUED_BYTES),
        concurrency: count(file.concurrent, DEFAULT_CONCURRENCY, "concurrent"),
        queue_concurrency: count(
            file.queue_concurrency,
            DEFAULT_QUEUE_CONCURRENCY,
            "queue_concurrency",
        ),
        queues: file.queues,
    };
    for (name, concurrency) in &jobs.queues {
        if !is_queue_name(name) {
            problems.push(format!(
                "jobs.queues: {name:?} is no name of a queue: 1 to {MAX_QUEUE_NAME_BYTES} lower-case letters, digits and . _ : -"
            ));
        }
        if !(1..=MAX_COUNT).contains(concurrency) {
            problems.push(format!("jobs.queues.{name} must be from 1 to {MAX_COUNT}"));
        }
    }
    for (bytes, key) in [(jobs.max_bytes, "kept_bytes"), (jobs.max_queued_bytes, "queued_bytes")] {
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
    fn every_problem_is_told() {
        let text = "retention = \"2y\"\nkept = 0\nqueued = 0\nconcurrent = 0\nkept_bytes = 0\nqueued_bytes = 0\n[queues]\nBuild = 1\nslow = 0\n";
        let mut problems = Vec::new();
        parse_jobs(toml::from_str(text).unwrap(), &mut problems);
        assert_eq!(problems.len(), 8, "{problems:#?}");
        problems.clear();
        let fine = parse_jobs(toml::from_str("[queues]\nbuild = 1\n").unwrap(), &mut problems);
        assert_eq!(problems, [""; 0]);
        assert_eq!(fine.queues.get("build"), Some(&1));
    }
}
