//! What is kept of sessions.

use std::time::Duration;

use super::{duration::age_or_default, file};

/// What is kept where nothing is said.
const DEFAULT_SESSIONS: SessionsConfig = SessionsConfig {
    retention: Duration::from_secs(7 * 24 * 3600),
    max_entries: 10_000,
    max_bytes: 8 << 30,
    record_bytes: 256 << 20,
};
/// Least bytes of the records of a session: some calls with large parameters, so that what goes on can
/// be watched.
const MIN_RECORD_BYTES: u64 = 64 << 10;

/// What is kept of sessions: their records and artifacts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionsConfig {
    /// How long.
    pub(crate) retention: Duration,
    /// How many of each workspace.
    pub(crate) max_entries: u32,
    /// Bytes of all of them together.
    pub(crate) max_bytes: u64,
    /// Bytes of the records of each.
    pub(crate) record_bytes: u64,
}

/// Checks the table.
pub(super) fn parse_sessions(
    file: &file::SessionsTable,
    problems: &mut Vec<String>,
) -> SessionsConfig {
    let retention = file.retention.as_deref();
    let sessions = SessionsConfig {
        retention: age_or_default(
            DEFAULT_SESSIONS.retention,
            retention,
            "sessions.retention",
            problems,
        ),
        max_entries: file.kept.unwrap_or(DEFAULT_SESSIONS.max_entries),
        max_bytes: file.kept_bytes.unwrap_or(DEFAULT_SESSIONS.max_bytes),
        record_bytes: file.record_bytes.unwrap_or(DEFAULT_SESSIONS.record_bytes),
    };
    if sessions.max_entries == 0 || sessions.max_bytes == 0 {
        problems.push("sessions.kept and sessions.kept_bytes must be at least 1".to_owned());
    }
    if sessions.record_bytes < MIN_RECORD_BYTES {
        problems.push(format!("sessions.record_bytes must be at least {MIN_RECORD_BYTES}"));
    }
    sessions
}
