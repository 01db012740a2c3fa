//! What is kept of calls with a request id.

use std::time::Duration;

use super::{
    file,
    time::{age_or, time_or},
};

/// What is kept where nothing is said.
const DEFAULT: Requests = Requests {
    retention: Duration::from_secs(24 * 3600),
    kept: 100_000,
    kept_bytes: 256 << 20,
    linger: Duration::from_secs(30),
};

/// How calls with a request id are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requests {
    /// How long answers are kept.
    pub(crate) retention: Duration,
    /// How many.
    pub(crate) kept: u32,
    /// Bytes of all of them.
    pub(crate) kept_bytes: u64,
    /// How long work goes on when nobody waits for it.
    pub(crate) linger: Duration,
}

/// Checks the table.
pub(super) fn requests(file: &file::Requests, problems: &mut Vec<String>) -> Requests {
    let retention = file.retention.as_deref();
    let linger = file.linger.as_deref();
    let requests = Requests {
        retention: age_or(DEFAULT.retention, retention, "requests.retention", problems),
        kept: file.kept.unwrap_or(DEFAULT.kept),
        kept_bytes: file.kept_bytes.unwrap_or(DEFAULT.kept_bytes),
        linger: time_or(DEFAULT.linger, linger, "requests.linger", problems),
    };
    if requests.kept == 0 || requests.kept_bytes == 0 {
        problems.push("requests.kept and requests.kept_bytes must be at least 1".to_owned());
    }
    requests
}
