//! What is kept of calls with a request id.

use std::time::Duration;

use super::{file, time::time};

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
    let mut given = |text: Option<&str>, default, name: &str| match text.map(time) {
        None => default,
        Some(Some(time)) => time,
        Some(None) => {
            let text = text.unwrap_or_default();
            problems.push(format!(
                "requests.{name} {text}: give a time of at most a day, such as 30s or 12h"
            ));
            default
        }
    };
    let requests = Requests {
        retention: given(file.retention.as_deref(), DEFAULT.retention, "retention"),
        kept: file.kept.unwrap_or(DEFAULT.kept),
        kept_bytes: file.kept_bytes.unwrap_or(DEFAULT.kept_bytes),
        linger: given(file.linger.as_deref(), DEFAULT.linger, "linger"),
    };
    if requests.kept == 0 || requests.kept_bytes == 0 {
        problems.push("requests.kept and requests.kept_bytes must be at least 1".to_owned());
    }
    requests
}
