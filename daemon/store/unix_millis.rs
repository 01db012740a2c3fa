//! Times as the database has them: milliseconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The milliseconds of a time.
pub(crate) fn from_time(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The milliseconds of now.
pub(crate) fn now() -> i64 {
    from_time(SystemTime::now())
}

/// The time of so many milliseconds.
pub(crate) fn to_time(milliseconds: i64) -> SystemTime {
    let since = Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0));
    UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
}
