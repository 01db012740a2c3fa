//! What is kept of calls with a request id.

use std::time::Duration;

use super::{
    duration::{age_or_default, duration_or_default},
    file,
};

/// What is kept where nothing is said.
const DEFAULT_REQUESTS: RequestsConfig = RequestsConfig {
    retention: Duration::from_secs(24 * 3600),
    max_entries: 100_000,
    max_bytes: 256 << 20,
    detached_timeout: Duration::from_secs(30),
};

/// How calls with a request id are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestsConfig {
    /// How long answers are kept.
    pub(crate) retention: Duration,
    /// How many.
    pub(crate) max_entries: u32,
    /// Bytes of all of them.
    pub(crate) max_bytes: u64,
    /// How long work goes on when nobody waits for it.
    pub(crate) detached_timeout: Duration,
}

/// Checks the table.
pub(super) fn parse_requests(
    file: &file::RequestsTable,
    problems: &mut Vec<String>,
) -> RequestsConfig {
    let retention = file.retention.as_deref();
    let linger = file.linger.as_deref();
    let requests = RequestsConfig {
        retention: age_or_default(
            DEFAULT_REQUESTS.retention,
            retention,
            "requests.retention",
            problems,
        ),
        max_entries: file.kept.unwrap_or(DEFAULT_REQUESTS.max_entries),
        max_bytes: file.kept_bytes.unwrap_or(DEFAULT_REQUESTS.max_bytes),
        detached_timeout: duration_or_default(
            DEFAULT_REQUESTS.detached_timeout,
            linger,
            "requests.linger",
            problems,
        ),
    };
    if requests.max_entries == 0 || requests.max_bytes == 0 {
        problems.push("requests.kept and requests.kept_bytes must be at least 1".to_owned());
    }
    requests
}
