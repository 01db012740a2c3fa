//! The `[requests]` table: retention of results of calls with a request id.

use std::time::Duration;

use super::{
    duration::{age_or_default, duration_or_default},
    file,
};

const DEFAULT_REQUESTS: RequestsConfig = RequestsConfig {
    retention: Duration::from_secs(24 * 3600),
    max_entries: 100_000,
    max_bytes: 256 << 20,
    detached_timeout: Duration::from_secs(30),
};

/// The checked `[requests]` table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestsConfig {
    /// Time that a result is stored, from the end of its call.
    pub(crate) retention: Duration,
    /// Number of stored results.
    pub(crate) max_entries: u32,
    /// Size of all stored results together.
    pub(crate) max_bytes: u64,
    /// Time that work continues after all clients have disconnected.
    pub(crate) detached_timeout: Duration,
}

/// Checks the table.
pub(super) fn parse_requests(
    file: &file::RequestsTable,
    problems: &mut Vec<String>,
) -> RequestsConfig {
    let requests = RequestsConfig {
        retention: age_or_default(
            DEFAULT_REQUESTS.retention,
            file.retention.as_deref(),
            "requests.retention",
            problems,
        ),
        max_entries: file.max_entries.unwrap_or(DEFAULT_REQUESTS.max_entries),
        max_bytes: file.max_bytes.unwrap_or(DEFAULT_REQUESTS.max_bytes),
        detached_timeout: duration_or_default(
            DEFAULT_REQUESTS.detached_timeout,
            file.detached_timeout.as_deref(),
            "requests.detached_timeout",
            problems,
        ),
    };

    if requests.max_entries == 0 || requests.max_bytes == 0 {
        problems.push("requests.max_entries and requests.max_bytes must be at least 1".to_owned());
    }
    requests
}
