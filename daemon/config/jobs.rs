//! Jobs: how many at a time, and what is kept of them.

use std::{collections::BTreeMap, time::Duration};

use super::{file, time::age_or};

/// What holds where nothing is said.
const RETENTION: Duration = Duration::from_secs(24 * 3600);
const KEPT: u32 = 10_000;
const KEPT_BYTES: u64 = 256 << 20;
const QUEUED: u32 = 10_000;
/// Of the largest parameters, that is some hundred jobs.
const QUEUED_BYTES: u64 = 1 << 30;
const CONCURRENT: u32 = 64;
/// As many as a batch has calls: each takes as long as it takes by itself.
const QUEUE_CONCURRENCY: u32 = 20;
/// Most of what is counted.
const MOST: u32 = 1 << 20;
/// Longest name of a queue, in bytes.
const LONGEST_NAME: usize = 80;

/// How jobs are done and kept.
#[derive(Debug, Clone)]
pub(crate) struct Jobs {
    /// How long those that have ended are kept.
    pub(crate) retention: Duration,
    /// How many.
    pub(crate) kept: u32,
    /// Bytes of all their results.
    pub(crate) kept_bytes: u64,
    /// How many may wait, of all workspaces together.
    pub(crate) queued: u32,
    /// Bytes of all their parameters.
    pub(crate) queued_bytes: u64,
    /// How many are done at a time, of all workspaces together.
    pub(crate) concurrent: u32,
    /// How many of one queue, where its name is not in `queues`.
    pub(crate) queue_concurrency: u32,
    /// How many of each queue.
    pub(crate) queues: BTreeMap<String, u32>,
}

/// Whether a queue can have this name.
pub(crate) fn is_queue_name(text: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._:-".contains(&byte);
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(allowed)
}

/// Checks the table.
pub(super) fn jobs(file: file::Jobs, problems: &mut Vec<String>) -> Jobs {
    let retention = file.retention.as_deref();
    let retention = age_or(RETENTION, retention, "jobs.retention", problems);
    let mut count = |written: Option<u32>, default: u32, key: &str| {
        let count = written.unwrap_or(default);
        if !(1..=MOST).contains(&count) {
            problems.push(format!("jobs.{key} must be from 1 to {MOST}"));
        }
        count
    };
    let jobs = Jobs {
        retention,
        kept: count(file.kept, KEPT, "kept"),
        kept_bytes: file.kept_bytes.unwrap_or(KEPT_BYTES),
        queued: count(file.queued, QUEUED, "queued"),
        queued_bytes: file.queued_bytes.unwrap_or(QUEUED_BYTES),
        concurrent: count(file.concurrent, CONCURRENT, "concurrent"),
        queue_concurrency: count(file.queue_concurrency, QUEUE_CONCURRENCY, "queue_concurrency"),
        queues: file.queues,
    };
    for (name, concurrency) in &jobs.queues {
        if !is_queue_name(name) {
            problems.push(format!(
                "jobs.queues: {name:?} is no name of a queue: 1 to {LONGEST_NAME} lower-case letters, digits and . _ : -"
            ));
        }
        if !(1..=MOST).contains(concurrency) {
            problems.push(format!("jobs.queues.{name} must be from 1 to {MOST}"));
        }
    }
    for (bytes, key) in [(jobs.kept_bytes, "kept_bytes"), (jobs.queued_bytes, "queued_bytes")] {
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
        jobs(toml::from_str(text).unwrap(), &mut problems);
        assert_eq!(problems.len(), 8, "{problems:#?}");
        problems.clear();
        let fine = jobs(toml::from_str("[queues]\nbuild = 1\n").unwrap(), &mut problems);
        assert_eq!(problems, [""; 0]);
        assert_eq!(fine.queues.get("build"), Some(&1));
    }
}
