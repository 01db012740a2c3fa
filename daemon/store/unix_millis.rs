//! Times in the database: milliseconds since the Unix epoch.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn from_time(time: SystemTime) -> i64 {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn now() -> i64 {
    from_time(SystemTime::now())
}

pub(crate) fn to_time(milliseconds: i64) -> SystemTime {
    let since_epoch = Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0));
    UNIX_EPOCH.checked_add(since_epoch).unwrap_or(UNIX_EPOCH)
}
