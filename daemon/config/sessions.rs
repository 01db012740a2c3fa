//! The `[sessions]` table: retention of sessions with their records and artifacts.

use std::time::Duration;

use super::{duration::age_or_default, file};

const DEFAULT_SESSIONS: SessionsConfig = SessionsConfig {
    retention: Duration::from_secs(7 * 24 * 3600),
    max_entries: 10_000,
    max_bytes: 8 << 30,
    max_record_bytes: 256 << 20,
};
/// Least size of the records of a session: room for some calls with large parameters, so that
/// running calls can be watched.
const MIN_RECORD_BYTES: u64 = 64 << 10;

/// The checked `[sessions]` table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionsConfig {
    /// Time that steps with their records and artifacts are stored.
    pub(crate) retention: Duration,
    /// Sessions of each workspace.
    pub(crate) max_entries: u32,
    /// Disk usage of all sessions together.
    pub(crate) max_bytes: u64,
    /// Size of the records of one session.
    pub(crate) max_record_bytes: u64,
}

/// Checks the table.
pub(super) fn parse_sessions(
    file: &file::SessionsTable,
    problems: &mut Vec<String>,
) -> SessionsConfig {
    let sessions = SessionsConfig {
        retention: age_or_default(
            DEFAULT_SESSIONS.retention,
            file.retention.as_deref(),
            "sessions.retention",
            problems,
        ),
        max_entries: file.max_entries.unwrap_or(DEFAULT_SESSIONS.max_entries),
        max_bytes: file.max_bytes.unwrap_or(DEFAULT_SESSIONS.max_bytes),
        max_record_bytes: file.max_record_bytes.unwrap_or(DEFAULT_SESSIONS.max_record_bytes),
    };

    if sessions.max_entries == 0 || sessions.max_bytes == 0 {
        problems.push("sessions.max_entries and sessions.max_bytes must be at least 1".to_owned());
    }
    if sessions.max_record_bytes < MIN_RECORD_BYTES {
        problems.push(format!("sessions.max_record_bytes must be at least {MIN_RECORD_BYTES}"));
    }
    sessions
}
