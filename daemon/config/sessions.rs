//! What is kept of sessions.

use std::time::Duration;

use super::{file, time::age_or};

/// What is kept where nothing is said.
const DEFAULT: Sessions = Sessions {
    retention: Duration::from_secs(7 * 24 * 3600),
    kept: 10_000,
    kept_bytes: 8 << 30,
    record_bytes: 256 << 20,
};
/// Least bytes of the records of a session: some calls with large parameters, so that what goes on can
/// be watched.
const LEAST_RECORD_BYTES: u64 = 64 << 10;

/// What is kept of sessions: their records and artifacts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sessions {
    /// How long.
    pub(crate) retention: Duration,
    /// How many of each workspace.
    pub(crate) kept: u32,
    /// Bytes of all of them together.
    pub(crate) kept_bytes: u64,
    /// Bytes of the records of each.
    pub(crate) record_bytes: u64,
}

/// Checks the table.
pub(super) fn sessions(file: &file::Sessions, problems: &mut Vec<String>) -> Sessions {
    let retention = file.retention.as_deref();
    let sessions = Sessions {
        retention: age_or(DEFAULT.retention, retention, "sessions.retention", problems),
        kept: file.kept.unwrap_or(DEFAULT.kept),
        kept_bytes: file.kept_bytes.unwrap_or(DEFAULT.kept_bytes),
        record_bytes: file.record_bytes.unwrap_or(DEFAULT.record_bytes),
    };
    if sessions.kept == 0 || sessions.kept_bytes == 0 {
        problems.push("sessions.kept and sessions.kept_bytes must be at least 1".to_owned());
    }
    if sessions.record_bytes < LEAST_RECORD_BYTES {
        problems.push(format!("sessions.record_bytes must be at least {LEAST_RECORD_BYTES}"));
    }
    sessions
}
